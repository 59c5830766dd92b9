"""A consumer's place in a group of a local store: LocalMembership, and LocalClaim for each queue that it has.

Everything that happens often is a look at shared memory: version(), commit() and note() make no system call.
A queue is owned by locking a byte of the group's file with the membership's own descriptor, so that the
kernel gives it up with the process; a claim that was refused leaves a mark, and whoever releases a queue
rings the bells of those who have one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from mq.broker.membership import Member, Subscription
from mq.broker.results import MessageQueue
from mq.errors import NotPermitted, TopicNotFound
from mq.store.groupfile import NEWS, REFUSED, GroupFile, place_word
from mq.store.groupslots import (
    CHECK,
    NOTE_AT,
    NOTE_SIZE,
    OFFSET_MAX,
    OWNER,
    RESETS,
    TURN,
    WANTED_BY,
    queue_byte,
    slot_word,
    tag_of,
)
from mq.store.locks import lock_byte, unlock_byte
from mq.store.numbers import topics_view
from mq.store.waiting import Futex, Wait

if TYPE_CHECKING:
    from mq.broker.groups import Groups
    from mq.broker.roster import Roster

__all__ = ["LocalClaim", "LocalMembership"]

LOOK_AGAIN = 1.0  # seconds after which it is looked whether all who are listed live
VERSION_WORD = 12  # of four bytes
log = logging.getLogger("mq.groups")

EMPTY = memoryview(bytes(1 << 10)).cast("q")  # What those look at who let go of the file: nothing changes.
DROPPED = -1

Position = tuple[MessageQueue, int, "frozenset[int] | bytes | None"]


class LocalMembership:
    """See mq.broker.membership.Membership. Made by Groups.join."""

    def __init__(
        self,
        groups: Groups,
        group: str,
        roster: Roster,
        member: Member,
        place: int,
        fd: int,
        subscribe: Callable[[LocalMembership, Member], Member],
    ) -> None:
        self.client_id = member.client_id
        self.group = group
        self.member = member
        self.place = place
        self._groups = groups
        self._store = groups.store
        self._roster = roster
        self._file: GroupFile = roster.file
        self._fd = fd
        self._change = subscribe
        self._lock = threading.RLock()  # of the claims
        self._claims: dict[MessageQueue, LocalClaim] = {}
        self._between: set[int] = set()  # numbers of queues that are being taken, or given up
        self._refused: set[MessageQueue] = set()
        self._refused_at = -1
        self._bell = self._file.bell(place)
        self._bell_seen = self._bell.value
        self._looked = monotonic()
        self._counters: Any = self._file.counters
        self._words: Any = self._file.words
        self._news = place_word(place) + NEWS
        self._topics: Any = topics_view(self._store)
        self.left = False

    def version(self) -> int:
        """See Membership.version."""
        return int(self._counters[VERSION_WORD] + self._words[self._news] + self._topics[0])

    def members(self) -> list[Member]:
        """See Membership.members."""
        now = monotonic()
        if now - self._looked > LOOK_AGAIN:
            self._looked = now
            self._groups.bury(self._roster)
        with self._lock:
            self._live()
            is_free = self._settle_between()
            listed = self._roster.listed(self._fd)
        if is_free:
            self._tell()
        listed[self.place] = self.member
        self._groups.watch_over(self._roster, listed)
        return sorted(listed.values(), key=lambda member: member.client_id)

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """See Membership.subscribe."""
        self._live()
        self.member = self._change(self, replace(self.member, subscriptions=tuple(sorted(subscriptions))))

    def claim(self, queue: MessageQueue) -> LocalClaim | None:
        """See Membership.claim. The same claim again for a queue that it has."""
        with self._lock:
            self._live()
            claim = self._claims.get(queue)
            if claim is not None:
                return claim
            self._settle_between()
            number = self._groups.number(queue)
            self._between.add(number)
            # Before the attempt: whoever releases the queue after it failed sees the mark.
            self._mark_refused(queue, number)
            turn = self.take(number)
            if turn is None:
                self._between.discard(number)
                return None
            self._refused.discard(queue)
            self._words[place_word(self.place) + REFUSED] = len(self._refused)
            claim = self._claims[queue] = LocalClaim(self, queue, number, turn)
            self._between.discard(number)
        log.info("group %s: %s owns %s/%d", self.group, self.client_id, queue.topic, queue.queue_id)
        return claim

    def _mark_refused(self, queue: MessageQueue, number: int) -> None:
        version = self.version()
        if version != self._refused_at:
            # What was wanted before may not be wanted any more.
            self._refused_at = version
            self._refused.clear()
        self._refused.add(queue)
        self._file.ready(number)
        self._words[place_word(self.place) + REFUSED] = len(self._refused)

    def take(self, number: int) -> int | None:
        """Lock the queue: the turn for which it is locked; None if another one has it."""
        words, at = self._words, slot_word(number)
        while True:
            turn = words[at + TURN]
            if not self._file.has(number):
                return None  # Its topic was deleted just now, and the slot is another queue's.
            if not lock_byte(self._fd, queue_byte(number, turn)):
                words[at + WANTED_BY] = self.place + 1
                if not self._groups.wrest(self._roster, number, turn):
                    return None
                continue
            words[at + OWNER] = self.place + 1
            self._file.version.add(0)  # A barrier: whoever wrests sees the owner, or is seen.
            if words[at + TURN] == turn:
                words[at + WANTED_BY] = 0
                self.write_note(number, b"")
                return int(turn)
            unlock_byte(self._fd, queue_byte(number, turn))

    def write_note(self, number: int, text: bytes) -> None:
        if self._file.has(number):
            start = slot_word(number) * 8 + NOTE_AT
            self._file.bytes[start : start + NOTE_SIZE] = text.ljust(NOTE_SIZE, b"\0")

    def committed(self, queue: MessageQueue) -> int | None:
        """See Membership.committed."""
        self._live()
        return self._file.committed(self._groups.numbers.find(queue.topic, queue.queue_id))

    def wait(self, positions: Sequence[Position], version: int, timeout: float) -> None:
        """See Membership.wait."""
        self._live()
        words, topics = self.words(), int(self._topics[0])
        if self.version() == version:
            Wait(
                self._store,
                [
                    (number, offset, hashes)
                    for queue, offset, hashes in positions
                    if (number := self._number(queue)) >= 0
                ],
                version=topics,
                words=words,
            ).sleep(timeout)
        self.heard()

    def words(self) -> tuple[tuple[Futex, int], tuple[Futex, int]]:
        """The words that change when there is something to do for this member, and what they say now."""
        word = self._file.version
        return (word, word.value), (self._bell, self._bell_seen)

    def heard(self) -> None:
        """Whoever waited for the words has been awake since."""
        self._bell_seen = self._bell.value

    def _number(self, queue: MessageQueue) -> int:
        claim = self._claims.get(queue)
        if claim is not None:
            return claim.number
        # With a place in the table, also before its first message: that one could come while nobody looks.
        return self._groups.numbers.find(queue.topic, queue.queue_id, add=True)

    def poke(self) -> None:
        """See Membership.poke."""
        if not self.left:
            self._bell.add()
            self._bell.wake()

    def give_up(self, claim: LocalClaim) -> None:
        """Release a claim, and tell those who were refused a queue."""
        with self._lock:
            if self._claims.get(claim.queue) is not claim:
                return
            self._between.add(claim.number)
            del self._claims[claim.queue]
            self._unlock(claim.number, claim.turn)
        self._tell()
        self._between.discard(claim.number)
        queue = claim.queue
        log.info("group %s: %s gave %s/%d up", self.group, self.client_id, queue.topic, queue.queue_id)

    def _settle_between(self) -> bool:
        """Give up queues that an interrupt left locked without a claim; whether there may have been one."""
        if not self._between:
            return False
        claimed = {claim.number for claim in self._claims.values()}
        for number in list(self._between - claimed):
            at = slot_word(number)
            if self._file.has(number) and self._words[at + OWNER] == self.place + 1:
                self._words[at + OWNER] = 0
                self.write_note(number, b"")
            # If another member has the queue by now, this does not touch its lock.
            unlock_byte(self._fd, queue_byte(number, int(self._words[at + TURN])))
        self._between.clear()
        return True

    def _unlock(self, number: int, turn: int) -> None:
        if self._file.has(number):
            self._words[slot_word(number) + OWNER] = 0
        self.write_note(number, b"")
        unlock_byte(self._fd, queue_byte(number, turn))

    def _tell(self) -> None:
        """The version grows for all; only those who wait for a queue are woken."""
        self._file.version.add()
        for place in self._file.taken():
            if place != self.place and self._words[place_word(place) + REFUSED]:
                self._file.ring(place)

    def moved(self, claim: LocalClaim) -> bool:
        """After a change of topics: whether the claim is of a queue that is gone. It is taken to the queue of
        that name there is now, if that can be had."""
        queue = claim.queue
        if self._groups.numbers.find(queue.topic, queue.queue_id) == claim.number:
            return False
        with suppress(TopicNotFound, NotPermitted, ValueError), self._lock:
            number = self._groups.number(queue)
            self._file.ready(number)
            turn = self.take(number)
            if turn is not None:
                self._unlock(claim.number, claim.turn)
                claim.settle(number, turn)
        return True

    def check_open(self) -> None:
        """Raises BrokerClosed, ForkedBroker."""
        self._store.live()

    def _live(self) -> None:
        self._store.live()
        if self.left:
            if self._groups.is_closed:  # It left since its broker is closing.
                raise self._store.refusal()
            raise ValueError(f"this member of group {self.group} has left it: join again")

    def leave(self) -> None:
        """See Membership.leave."""
        with self._lock:
            if self.left:
                return
            for claim in list(self._claims.values()):
                self._unlock(claim.number, claim.turn)
                claim.drop()
            self._claims.clear()
            self._roster.leave(self.place)
            self.left = True
            self._groups.left(self)
            fd, self._fd = self._fd, -1
            self._store.closed_here(fd)  # From here on everything is free.
            self._file.changed()
            self._bell.add()
            self._bell.wake()
            self._let_go()
        log.info("group %s: %s left", self.group, self.client_id)

    def forked(self) -> None:
        """In a forked child: hands off what is the parent's."""
        self._lock = threading.RLock()  # Another thread of the parent may have had it.
        self.left = True
        self._fd = -1
        self._let_go()
        for claim in self._claims.values():
            claim.drop()
        self._claims = {}

    def _let_go(self) -> None:
        self._counters = self._words = self._topics = EMPTY
        self._news = 0
        self._bell = Futex(bytearray(4))


class LocalClaim:
    """See mq.broker.membership.Claim."""

    def __init__(self, membership: LocalMembership, queue: MessageQueue, number: int, turn: int) -> None:
        self.queue = queue
        self._membership = membership
        self._file = membership._file
        self._noted = ""
        self.settle(number, turn)

    def settle(self, number: int, turn: int) -> None:
        """Be the claim of this number from now on."""
        self.number = number
        self.turn = turn
        self._tag = tag_of(number)
        # One value, since drop() may come in between where another thread closes the broker.
        self._slot: tuple[Any, int] = self._file.words, slot_word(number)
        self._topics: Any = self._membership._topics
        self._topics_seen = self._topics[0]
        # As it was taken: whatever was reset before is what committed() says.
        self._seen = self._file.apply_reset(number)

    def committed(self) -> int | None:
        """See Claim.committed."""
        if self._is_dropped() or self._is_moved():
            return None
        self._seen = self._file.apply_reset(self.number)
        return self._file.committed(self.number)

    def is_current(self) -> bool:
        """See Claim.is_current."""
        if self._is_dropped() or self._is_moved():
            return False
        words, at = self._slot
        return bool(words[at + RESETS] == self._seen)

    def commit(self, offset: int) -> bool:
        """See Claim.commit."""
        words, at = self._slot
        is_changed = words[at + RESETS] != self._seen or self._topics[0] != self._topics_seen
        if is_changed and not self.is_current():
            return False
        # What is no offset of this queue counts as nothing: see groupslots.py.
        if not offset < words[at] - self._tag <= OFFSET_MAX:
            value = offset + 1 + self._tag
            words[at] = value
            words[at + CHECK] = -value
        return True

    def correct(self, offset: int) -> None:
        """See Claim.correct. A reset that is not acknowledged yet stands."""
        words, at = self._slot
        if words[at + RESETS] == self._seen and not self._is_dropped():
            self._file.commit(self.number, offset)

    def note(self, reason: str) -> None:
        """See Claim.note. Cut to NOTE_SIZE bytes."""
        if reason != self._noted and not self._is_dropped():
            self._noted = reason
            text = reason.encode()[:NOTE_SIZE].decode("utf-8", "ignore").encode()
            self._membership.write_note(self.number, text)

    def release(self) -> None:
        """See Claim.release."""
        self._membership.give_up(self)
        self.drop()

    def drop(self) -> None:
        """Be of no use from now on."""
        self._slot, self._topics = (EMPTY, 0), EMPTY
        self._seen = DROPPED

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
