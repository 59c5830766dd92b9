"""A queue that a member of a group of a local store owns: see LocalMembership, which makes them.

It is owned for a turn. A process that was stopped for longer than its lease has lost its queues when it goes
on, and their turns are others: a commit looks at the turn in one step with what it writes, and a listener
gets a message only while it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.fastpath import commit_slot, while_unchanged
from mq.message import MessageExt
from mq.store.log.reappend import Turn, TurnOver
from mq.store.shared.group_file import GroupFile
from mq.store.shared.group_slots import (
    NOTE_SIZE,
    RESETS,
    TURN,
    correct_slot,
    no_slot,
    slot_address,
    slot_word,
)

__all__ = ["LocalClaim"]

T = TypeVar("T")

EMPTY, NOWHERE = no_slot()  # What is looked at once the file is detached: nothing changes.
NO_SLOT: tuple[Any, int, Any, int] = EMPTY, 0, NOWHERE, slot_address(NOWHERE, 0)
DROPPED, LOST = -1, -2  # instead of how many resets were seen


class Owner(Protocol):
    """What a claim asks of the membership that made it: see LocalMembership."""

    file: GroupFile
    topics: Any

    def puller(self, queue: MessageQueue) -> Puller: ...
    def send_back(
        self,
        message: MessageExt,
        delay_level: int,
        max_reconsume_times: int,
        turn: Callable[[], Turn | None],
    ) -> bool: ...
    def write_note(self, number: int, text: bytes) -> None: ...
    def reserve(self, number: int, seconds: float) -> None: ...
    def give_up(self, claim: LocalClaim) -> None: ...
    def moved(self, claim: LocalClaim) -> bool: ...
    def check_open(self) -> None: ...


class LocalClaim:
    """See mq.api.group.Claim."""

    def __init__(self, membership: Owner, queue: MessageQueue, number: int, turn: int) -> None:
        self.queue = queue
        self._membership = membership
        self._file = membership.file
        self._noted = ""
        self.settle(number, turn)

    def settle(self, number: int, turn: int) -> None:
        """Be the claim of this number from now on."""
        self.number = number
        self.turn = turn
        # One value, since drop() may come in between where another thread closes the broker.
        words, at, kept = self._file.words, slot_word(number), self._file.pointer
        self._slot: tuple[Any, int, Any, int] = words, at, kept, slot_address(kept, at)
        self._topics: Any = self._membership.topics
        self._topics_seen = self._topics[0]
        # As it was taken: whatever was reset before is what committed() says.
        seen = self._file.apply_reset(number, turn)
        self._seen = seen if seen >= 0 else LOST

    def committed(self) -> int | None:
        """See Claim.committed."""
        # Asked twice: by now it may be the claim of the queue that there is now.
        if self._is_dropped() or (self._is_moved() and self._is_moved()):
            return None
        if not self.is_lost():
            seen = self._file.apply_reset(self.number, self.turn)
            if self._seen >= 0 <= seen:
                self._seen = seen
        return self._file.committed(self.number)

    def is_current(self) -> bool:
        """See Claim.is_current."""
        if self._is_dropped() or self._is_moved() or self.is_lost():
            return False
        words, at, _, _ = self._slot
        return bool(words[at + RESETS] == self._seen)

    def puller(self) -> Puller:
        """See Claim.puller."""
        return self._membership.puller(self.queue)

    def send_back(self, message: MessageExt, *, delay_level: int = 0, max_reconsume_times: int = 16) -> bool:
        """See Claim.send_back."""
        return self._membership.send_back(message, delay_level, max_reconsume_times, self.turn_of_it)

    def is_lost(self) -> bool:
        """See Claim.is_lost."""
        words, at, _, _ = self._slot
        turn = words[at + TURN]
        # Of another use of its place, the queue is another one, or none: see _is_moved.
        return self._seen == LOST or (
            turn != self.turn and turn >> 32 == self.turn >> 32 and self._seen != DROPPED
        )

    def turn_of_it(self) -> Turn | None:
        """The turn of this owner: what it guards is done while the turn lasts, and not after. None once the
        claim was released. Raises TurnOver if it is lost."""
        if self.is_lost():
            raise TurnOver
        if self._seen == DROPPED:
            return None
        _, _, kept, address = self._slot
        return Turn(address + 8 * TURN, self.turn, kept)

    def while_held(self, messages: Iterator[T]) -> Iterator[T]:
        """See Claim.while_held."""
        _, _, kept, address = self._slot
        return while_unchanged(messages, kept, address + 8 * TURN, self.turn)

    def commit(self, offset: int) -> bool:
        """See Claim.commit."""
        if self._topics[0] != self._topics_seen and not self.is_current():
            return False
        _, _, _kept, address = self._slot  # The memory stays while this has it.
        if commit_slot(address, self.turn, self._seen, offset):
            return True
        self._is_dropped()  # Which raises what there is to say of a broker that is closed.
        return False

    def correct(self, offset: int) -> None:
        """See Claim.correct. A reset that is not acknowledged yet stands."""
        _, _, _kept, address = self._slot
        if not correct_slot(address, self.turn, self._seen, offset):
            self._is_dropped()

    def set_status(self, reason: str) -> None:
        """See Claim.set_status. Cut to NOTE_SIZE bytes."""
        if reason != self._noted and not self._is_dropped() and not self.is_lost():
            self._noted = reason
            text = reason.encode()[:NOTE_SIZE].decode("utf-8", "ignore").encode()
            self._membership.write_note(self.number, text)

    def reserve(self, seconds: float) -> None:
        """See Claim.reserve."""
        if not self._is_dropped() and not self.is_lost():
            self._membership.reserve(self.number, seconds)

    def release(self) -> None:
        """See Claim.release."""
        self._membership.give_up(self)
        self.drop()

    def drop(self) -> None:
        """Be of no use from now on."""
        self._slot, self._topics = NO_SLOT, EMPTY
        self._seen = DROPPED

    def lose(self) -> None:
        """The queue is another's, or may be: its member was evicted."""
        self._slot, self._topics = NO_SLOT, EMPTY
        self._seen = LOST
        self._topics_seen = 0

    def _is_dropped(self) -> bool:
        """Whether it was released. Raises what the store says of a broker that is closed or was forked."""
        if self._seen != DROPPED:
            return False
        self._membership.check_open()
        return True

    def _is_moved(self) -> bool:
        """Whether the queue is another one, or none, since a topic changed; asked again while it is none."""
        version = self._topics[0]
        if version == self._topics_seen:
            return False
        self._topics_seen = -1
        if self._membership.moved(self):
            return True
        self._topics_seen = version
        return False
