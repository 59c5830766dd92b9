"""Consumer groups as a client sees them: who is in one, which queue is whose, what is committed.

A consumer joins and gets a Membership; by that it claims queues, one live member at a time for each queue,
over all processes, and commits on the Claim. Group is a group looked at from outside. The values are plain;
what they mean is the same for every broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from mq.api.results import MessageQueue
from mq.names import RETRY_PREFIX

if TYPE_CHECKING:
    from mq.api.broker import Broker

__all__ = [
    "Assigned",
    "BroadcastOffsets",
    "Claim",
    "Group",
    "Member",
    "Membership",
    "QueueState",
    "Subscription",
    "Versioned",
]

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
    model: str  # "clustering" or "broadcasting"
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


class Claim(Protocol):
    """A queue that a member owns, exclusively in its group, over all processes."""

    queue: MessageQueue

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

    def note(self, reason: str) -> None:
        """Why the queue does not move, for QueueState; "" when it does. Costs little when unchanged."""
        ...

    def release(self) -> None:
        """Give the queue up, after the last commit; the other members are told. Twice is fine."""
        ...


class Versioned(Protocol):
    """What a consumer looks at to know whether something changed."""

    def version(self) -> int:
        """Another number after every change."""
        ...


class Assigned(Versioned, Protocol):
    """The queues that one consumer was told to have: it is no member of the group, and nobody is asked."""

    def version(self) -> int:
        """Another one after every change of topics, and every reset of the group's offsets."""
        ...

    def claim(self, queue: MessageQueue) -> Claim:
        """Have a queue, although other consumers may have it too. Its offset is the group's."""
        ...


class Membership(Versioned, Protocol):
    """One consumer's place in a group."""

    client_id: str

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

    def committed(self, queue: MessageQueue) -> int | None:
        """What is committed, None where nothing is."""
        ...

    def wait(
        self,
        positions: Sequence[tuple[MessageQueue, int, frozenset[int] | bytes | None]],
        version: int,
        timeout: float,
    ) -> None:
        """Wait until there is something to do, at most `timeout` seconds.

        That is: one of the queues has a message at or after its offset whose tag hash is among the set (None:
        any); version() is no longer `version`; poke() was called since the last wait returned. It may return
        early for nothing.
        """
        ...

    def poke(self) -> None:
        """Have wait() return, from any thread."""
        ...

    def leave(self) -> None:
        """Release every claim and be gone. Twice is fine."""
        ...


class BroadcastOffsets(Protocol):
    """How far one consumer of a broadcasting group is; nobody else has its client id until close()."""

    client_id: str
    is_dirty: bool  # whether there is something to save

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


class Lookout(Protocol):
    """Waits for several consumers of one broker at once, by one thread at a time."""

    def wait(
        self,
        positions: Sequence[tuple[MessageQueue, int, frozenset[int] | bytes | None]],
        members: Sequence[tuple[Versioned, int]],
        timeout: float,
    ) -> None:
        """Wait as Membership.wait does, until one of the queues, or one of the members (or of Assigned) with
        the version that was seen of it, has something to do, or poke() was called since the last wait
        returned."""
        ...

    def poke(self) -> None:
        """Have wait() return, from any thread."""
        ...


class Group:
    """One consumer group of a broker, from outside. A name that nobody used is a group without members."""

    __slots__ = ("_broker", "name")

    def __init__(self, broker: Broker, name: str) -> None:
        self.name: Final = name
        self._broker = broker

    def members(self) -> list[Member]:
        """The live consumers, by client_id."""
        return self._broker.group_members(self.name)

    def topics(self) -> list[str]:
        """Topics that the group has offsets of, or a member subscribes to."""
        return self._broker.group_topics(self.name)

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """What is committed, of the queues that have an offset."""
        return self._broker.group_offsets(self.name, topic)

    def states(self, topic: str) -> list[QueueState]:
        """Each queue of a topic: owner, offset, lag, and why it does not move. A queue that the topic has no
        more to read is among them while it holds messages that the group has not consumed."""
        return self._broker.group_states(self.name, topic)

    def retrying(self) -> dict[str, int]:
        """Topic to how many of its messages failed and wait for another attempt: until they are due, or in
        the retry topic."""
        return self._broker.group_retrying(self.name)

    def lag(self, topic: str) -> int:
        """How many messages of a topic the group is not done with: those that are kept and not consumed, also
        in queues that nobody reads, and those that failed and wait for another attempt. 0 where all is done;
        dead letters are."""
        # First what is not consumed: what is sent back meanwhile is found behind.
        unconsumed = sum(state.lag for state in self.states(topic))
        if topic.startswith(RETRY_PREFIX):
            return unconsumed  # What lies there counts for the topic that it was sent to as well.
        return unconsumed + self._broker.group_retrying(self.name).get(topic, 0)

    def reset(self, topic: str, *, to_ms: int | None = None, to: str | None = None) -> None:
        """Have the group consume from elsewhere: the messages stored at to_ms or later, or to "earliest" or
        "latest". Members that are at work go on from there at once. Of a broadcasting group every consumer
        does, those that are not at work when they start."""
        if (to is None) == (to_ms is None):
            raise ValueError("give either to_ms, or to: 'earliest' or 'latest'")
        if to not in (None, "earliest", "latest"):
            raise ValueError(f"to is {to!r}: give 'earliest' or 'latest'")
        broker = self._broker
        queues = broker.readable(topic)
        if to_ms is not None:
            offsets = {queue: broker.offset_at(queue, to_ms) for queue in queues}
        elif to == "earliest":
            offsets = {queue: broker.min_offset(queue) for queue in queues}
        else:
            offsets = {queue: broker.max_offset(queue) for queue in queues}
        broker.reset_offsets(self.name, offsets)

    def __repr__(self) -> str:
        return f"Group({self.name!r})"
