"""Consumer groups as a client sees them: their members, the owner of each queue, what is committed.

A consumer joins and gets a Membership; by that it claims queues, one live member at a time for each queue,
over all processes, and pulls, commits and sends back by the Claim. The values are plain; what they mean is
the same for every broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.api.waiter import Versioned
from mq.message import MessageExt

__all__ = [
    "Assigned",
    "BroadcastOffsets",
    "Claim",
    "LastingClaim",
    "Member",
    "Membership",
    "Model",
    "QueueState",
    "Resets",
    "Subscription",
]

Model = Literal["clustering", "broadcasting"]
T = TypeVar("T")


class Subscription(NamedTuple):
    """What a member wants of a topic: a value that can be sorted and compared."""

    topic: str
    expression: str = "*"  # as the user wrote it, stripped
    kind: str = "TAG"  # or "SQL92"


@dataclass(frozen=True, slots=True)
class Member:
    """One live consumer of a group."""

    client_id: str
    pid: int
    host: str
    since_ms: int
    model: Model
    consume_type: str  # "push" or "pull"
    ordered: bool
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of a group: how far it is, and why it does not move."""

    queue: MessageQueue
    owner: Member | None
    committed: int | None  # None: nothing yet, consumption starts at the queue's min_offset
    end: int
    lag: int  # messages kept that are not consumed, those that a filter will leave out included
    oldest_unconsumed_ms: int | None  # when the oldest of them was stored
    reason: str  # "" when it moves or has nothing to do; else words that a person can act on


class Resets(NamedTuple):
    """What was reset of a queue of a group, as it was at one moment."""

    number: int  # of the queue, another one where its topic was made anew; below 0: not used yet, or gone
    times: int  # below 0: the group has nothing of the queue
    is_pending: bool  # no consumer has taken note of the last one

    def since(self, before: Resets | None) -> bool:
        """Whether the offset is another queue's, or was reset, since that moment; None: since whenever."""
        if before is None or before.number < 0:
            return self.is_pending
        if self.number != before.number:
            return True
        return self.is_pending if before.times < 0 else self.times != before.times


class Claim(Protocol):
    """A queue that a member owns, exclusively in its group, over all processes."""

    @property
    def queue(self) -> MessageQueue: ...

    def committed(self) -> int | None:
        """What is committed, None where nothing is. Acknowledges a reset."""
        ...

    def is_current(self) -> bool:
        """Whether what committed() said, and what was committed since, still is of this queue: the group's
        offset was not reset, and the topic not deleted and made anew."""
        ...

    def is_lost(self) -> bool:
        """Whether the queue was taken over by other members, since this process was stopped for longer than
        its lease. Nothing is committed by this claim any more: forget all that came by it."""
        ...

    def while_held(self, messages: Iterator[T]) -> Iterator[T]:
        """The same messages, for a listener; none from when on the claim is lost."""
        ...

    def commit(self, offset: int) -> bool:
        """Raise the offset; a smaller one is ignored.

        False, and nothing is done, where is_current() is not true any more: drop what is cached and, unless
        it is lost, start again from committed().
        """
        ...

    def correct(self, offset: int) -> None:
        """Set the offset, also downwards: for a queue that ends or begins elsewhere than it says."""
        ...

    def puller(self) -> Puller:
        """What pulls from the queue for its owner, as often as wanted. One whose subscription is in SQL92,
        and that pulls all tags, may be spared messages that it leaves out for sure."""
        ...

    def send_back(self, message: MessageExt, *, delay_level: int = 0, max_reconsume_times: int = 16) -> bool:
        """Have the group get a message of the queue again, later: at a delay level, or by its times of
        consumption (0). It goes to the dead letters after max_reconsume_times, or at once (below 0). False,
        and nothing is stored, where the claim is lost: another member gets it. NotPermitted for a
        broadcasting group, which has no retry topic."""
        ...

    def set_status(self, reason: str) -> None:
        """Why the queue does not move, for QueueState; "" when it does. Costs little when unchanged."""
        ...

    def reserve(self, seconds: float) -> None:
        """Have nobody but this client own the queue for so many seconds from now, whatever becomes of the
        claim and this process. For a client elsewhere that goes by a lock of its own."""
        ...

    def release(self) -> None:
        """Give the queue up, after the last commit; the other members are told. Twice is fine."""
        ...


class LastingClaim:
    """What is the same for every Claim that no other member takes over. reason: what was noted last."""

    reason = ""

    def is_lost(self) -> bool:
        """It is not."""
        return False

    def while_held(self, messages: Iterator[T]) -> Iterator[T]:
        """All of them."""
        return messages

    def set_status(self, reason: str) -> None:
        """See Claim.set_status."""
        self.reason = reason

    def reserve(self, seconds: float) -> None:
        """Nobody else asks for it."""

    def release(self) -> None:
        """Nothing was taken."""


class Assigned(Versioned, Protocol):
    """The queues that one consumer was told to have: it is no member of the group, and nobody is asked."""

    def version(self) -> int:
        """Another one after every change of topics, and every reset of the group's offsets."""
        ...

    def claim(self, queue: MessageQueue) -> Claim:
        """Have a queue, although other consumers may have it too. Its offset is the group's."""
        ...

    def resets(self, queue: MessageQueue) -> Resets:
        """What was reset of a queue until now."""
        ...


class Membership(Versioned, Protocol):
    """One consumer's place in a group."""

    @property
    def client_id(self) -> str: ...

    def members(self) -> list[Member]:
        """The live ones, this one included, by client_id."""
        ...

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Have these subscriptions from now on, and no others. Raises SubscriptionConflict."""
        ...

    def version(self) -> int:
        """Grows with every change of members, subscriptions, ownership and topics, and every reset of
        offsets."""
        ...

    def claim(self, queue: MessageQueue) -> Claim | None:
        """Own a queue from now on. None while another live member has it, whose release or death makes
        version() grow."""
        ...

    def unreserve(self, queue: MessageQueue) -> None:
        """Let others own a queue that was reserved for this client, by this claim of it or an earlier one."""
        ...

    def leave(self) -> None:
        """Release every claim and be gone. Twice is fine."""
        ...


class BroadcastOffsets(Protocol):
    """How far one consumer of a broadcasting group is; nobody else has its client id until close()."""

    @property
    def client_id(self) -> str: ...
    @property
    def is_dirty(self) -> bool:
        """Whether there is something to save."""
        ...

    def begin(self, topic: str, consume_from: str | int) -> None:
        """Set where the consumer begins with a topic that it has no offset of, or that was made anew."""
        ...

    def claim(self, queue: MessageQueue, membership: Membership) -> Claim:
        """A queue of the consumer, which has all of them."""
        ...

    def save(self) -> None:
        """Have everything on disk that was committed before. Raises OSError, MQError."""
        ...

    def close(self) -> None:
        """Let another consumer have the client id. Twice is fine."""
        ...
