"""A consumer's place in a group of a local store: LocalMembership, with a LocalClaim for each queue
that it has.

Everything that happens often is a look at shared memory: version(), commit() and set_status() make no system
call. A queue is owned by locking a byte of the group's file with the membership's own descriptor, so that the
kernel gives it up with the process; a claim that was refused leaves a mark, and a member that releases a
queue notifies the members with a mark.

A member whose process was stopped for longer than its lease has been evicted when it goes on. It finds out
with the next call, takes a place anew, and has no queue: every claim of before is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import xxhash

from mq.api.group import Member, Subscription
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.groups.claim import LocalClaim
from mq.broker.groups.member_slot import MemberSlot
from mq.broker.groups.member_table import MemberTable
from mq.broker.groups.open_groups import OpenGroups
from mq.errors import NotPermitted, TopicNotFound
from mq.message import MessageExt
from mq.store.directory.file_locks import lock_byte, unlock_byte
from mq.store.log.reappend import Turn
from mq.store.shared.group_file import NEWS, REFUSED, GroupFile, place_word
from mq.store.shared.group_slots import (
    NOTE_AT,
    NOTE_SIZE,
    OWNER,
    RESERVED_UNTIL,
    TURN,
    WANTED_BY,
    queue_byte,
    reserve_slot,
    reserved_until,
    slot_word,
)
from mq.store.shared.lease import end_of
from mq.store.shared.queue_table import topics_view
from mq.store.shared.waiting import Futex
from mq.uninterrupted import uninterrupted

__all__ = ["LocalMembership"]

LOOK_AGAIN = 1.0  # seconds after which it is looked whether all that are listed live
VERSION_WORD = 12  # of four bytes
log = logging.getLogger("mq.groups")

EMPTY = memoryview(bytes(1 << 10)).cast("q")  # What is looked at once the file is detached: nothing changes.


class LocalMembership:
    """See mq.api.group.Membership. Made by Groups.join."""

    def __init__(
        self,
        groups: OpenGroups,
        group: str,
        member_table: MemberTable,
        member: Member,
        slot: MemberSlot,
        subscribe: Callable[[LocalMembership, Member], Member],
        again: Callable[[LocalMembership], MemberSlot],
    ) -> None:
        self.client_id = member.client_id
        self.group = group
        self.member = member
        self.member_table = member_table
        self._groups = groups
        self._store = groups.store
        self.file: GroupFile = member_table.file
        self._change = subscribe
        self._again = again
        self._lock = threading.RLock()  # of the claims
        self._claims: dict[MessageQueue, LocalClaim] = {}
        self._between: set[int] = set()  # numbers of queues that are being taken, or given up
        self._refused: set[MessageQueue] = set()
        self._refused_at = -1
        self._client = xxhash.xxh3_64_intdigest(member.client_id.encode()) >> 1
        self._looked = monotonic()
        self._counters: Any = self.file.counters
        self._words: Any = self.file.words
        self.topics: Any = topics_view(self._store)
        self.left = False
        self._end_of_renewal: Callable[[], None] = lambda: None
        self._use_slot(slot)

    def _use_slot(self, slot: MemberSlot) -> None:
        self._awaited: dict[int, int] = {}  # number of a queue reserved for another client, and until when
        self.slot = slot
        self.place = slot.place
        self._fd = slot.fd
        try:
            self._event = self.file.event(slot.place)
        except ValueError:  # Another thread has closed the broker.
            self._store.closed_here(slot.fd)
            raise self._store.refusal() from None
        self._event_seen = self._event.value
        self._news = slot.at + NEWS

    def keep(self) -> None:
        """Have the lease renewed from now on."""
        if self.slot.lease:
            self._end_of_renewal = self._groups.takeover.keep(self.member_table, self)

    def renew(self) -> bool:
        """Have the lease from now on. False: it is over, and the next call of this member finds out."""
        if self.slot.renew():
            return True
        if not self.left:
            self._event.add()
            self._event.wake()
        return False

    def _be_member(self) -> None:
        """Be a member anew, if others have taken this one for gone. Called without the lock: the main thread
        has another thread do it, since an interrupt would leave a place in the group that nobody gives up."""
        self._live()
        if self.slot.is_evicted:
            uninterrupted(self._return)

    def _return(self) -> None:
        with self._lock:
            self._live()
            if self.slot.is_evicted:
                self._take_another_slot()

    def _take_another_slot(self) -> None:
        before = self.slot
        before.give_up()
        self._end_of_renewal()
        for claim in self._claims.values():
            claim.lose()
        self._claims.clear()
        self._between.clear()
        self._refused.clear()
        slot = self._again(self)
        self._use_slot(slot)
        self._store.closed_here(before.fd)  # What it had locked is of no use since it was evicted.
        self.file.changed()
        log.warning(
            "group %s: %s has no queue any more, and joins again: this process was stopped, or did not run,"
            " for longer than its lease of %g s, and others have taken over",
            *(self.group, self.client_id, before.lease),
        )
        self.keep()

    def version(self) -> int:
        """See Membership.version."""
        return int(self._counters[VERSION_WORD] + self._words[self._news] + self.topics[0])

    def members(self) -> list[Member]:
        """See Membership.members."""
        now = monotonic()
        if now - self._looked > LOOK_AGAIN:
            self._looked = now
            self._groups.takeover.evict_dead(self.member_table)
        self._be_member()
        with self._lock:
            self._live()
            is_free = self._settle_between()
            listed = self.member_table.listed(self._fd)
            listed[self.place] = self.member
        if is_free:
            self._tell()
        self._groups.takeover.watch_over(self.member_table, listed)
        return sorted(listed.values(), key=lambda member: member.client_id)

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """See Membership.subscribe."""
        # Half rewritten, the member would be none for all others, and its queues theirs.
        uninterrupted(partial(self._subscribe, tuple(sorted(subscriptions))))

    def _subscribe(self, subscriptions: tuple[Subscription, ...]) -> None:
        self._be_member()
        self.member = self._change(self, replace(self.member, subscriptions=subscriptions))

    def claim(self, queue: MessageQueue) -> LocalClaim | None:
        """See Membership.claim. The same claim again for a queue that it has."""
        self._be_member()
        with self._lock:
            self._live()
            claim = self._claims.get(queue)
            if claim is not None:
                return claim
            self._settle_between()
            number = self._groups.number(queue)
            self._between.add(number)
            # Before the attempt: a member that releases the queue after it failed sees the mark.
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
        self.file.ready(number)
        self._words[place_word(self.place) + REFUSED] = len(self._refused)

    def take(self, number: int) -> int | None:
        """Lock the queue: the turn for which it is locked; None if another one has it, or will again."""
        words, at = self._words, slot_word(number)
        while True:
            turn, owner = words[at + TURN], words[at + OWNER]
            if not self.file.has(number):
                return None  # Its topic was deleted just now, and the slot is another queue's.
            if until := reserved_until(words, number, self._client):
                self._await(number, until)
                return None
            if not lock_byte(self._fd, queue_byte(number, turn)):
                words[at + WANTED_BY] = self.place + 1
                if not self._groups.takeover.steal(self.member_table, number, turn):
                    return None
                continue
            # In one step, since this process may be stopped here, and another one be the owner by then.
            is_owner = self.file.swap(at + OWNER, owner, self.place + 1)
            # Looked at once more: who had it may have reserved it before the end.
            is_reserved = reserved_until(words, number, self._client)
            if is_owner and words[at + TURN] == turn and not is_reserved:
                words[at + WANTED_BY] = 0
                self.write_note(number, b"")
                return int(turn)
            self.file.swap(at + OWNER, self.place + 1, 0)
            unlock_byte(self._fd, queue_byte(number, turn))

    def write_note(self, number: int, text: bytes) -> None:
        if self.file.has(number):
            start = slot_word(number) * 8 + NOTE_AT
            self.file.bytes[start : start + NOTE_SIZE] = text.ljust(NOTE_SIZE, b"\0")

    def _await(self, number: int, until: int) -> None:
        """Be told when a queue is not reserved any more."""
        if self._awaited.get(number) != until:
            file, place = self.file, self.place
            # Not by the main thread: a signal handler may need what it would have locked.
            uninterrupted(lambda: self._groups.takeover.tell_at(until, lambda: file.notify(place)))
            self._awaited[number] = until

    def reserve(self, number: int, seconds: float) -> None:
        """For the owner of a queue."""
        if self.file.has(number):
            reserve_slot(self._words, number, self._client, end_of(seconds))

    def unreserve(self, queue: MessageQueue) -> None:
        """See Membership.unreserve."""
        self._live()
        number = self._groups.numbers.find(queue.topic, queue.queue_id)
        until = self._words[slot_word(number) + RESERVED_UNTIL] if self.file.has(number) else 0
        if until and not reserved_until(self._words, number, self._client):
            # In one step: another client may have reserved it by now.
            self.file.swap(slot_word(number) + RESERVED_UNTIL, until, 0)
            self._tell()

    def puller(self, queue: MessageQueue) -> Puller:
        """For the owner of a queue."""
        return self._groups.puller(queue, self)

    def send_back(
        self,
        message: MessageExt,
        delay_level: int,
        max_reconsume_times: int,
        turn: Callable[[], Turn | None],
    ) -> bool:
        """For the owner of a queue, by its turn."""
        return self._groups.send_back(message, self.group, delay_level, max_reconsume_times, turn)

    def words(self) -> tuple[tuple[Futex, int], tuple[Futex, int]]:
        """The words that change when there is something to do for this member, and what they say now."""
        word = self.file.version
        return (word, word.value), (self._event, self._event_seen)

    def mark_seen(self) -> None:
        """What waited for the words has been awake since."""
        self._event_seen = self._event.value

    def give_up(self, claim: LocalClaim) -> None:
        """Release a claim, and tell the members that were refused a queue."""
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
            if self.file.has(number) and self._words[at + OWNER] == self.place + 1:
                self.write_note(number, b"")
                self.file.swap(at + OWNER, self.place + 1, 0)
            # If another member has the queue by now, this does not touch its lock.
            unlock_byte(self._fd, queue_byte(number, int(self._words[at + TURN])))
        self._between.clear()
        return True

    def _unlock(self, number: int, turn: int) -> None:
        at = slot_word(number)
        # Unless it is another's by now.
        if self.file.has(number) and self._words[at + TURN] == turn:
            self.write_note(number, b"")
            self.file.swap(at + OWNER, self.place + 1, 0)
        unlock_byte(self._fd, queue_byte(number, turn))

    def _tell(self) -> None:
        """The version grows for all; only members that wait for a queue are woken."""
        self.file.version.add()
        for place in self.file.taken():
            if place != self.place and self._words[place_word(place) + REFUSED]:
                self.file.notify(place)

    def moved(self, claim: LocalClaim) -> bool:
        """After a change of topics: whether the claim is of a queue that is gone. It is taken to the queue of
        that name there is now; where another member has that one, the claim is lost."""
        queue = claim.queue
        if self._groups.numbers.find(queue.topic, queue.queue_id) == claim.number:
            return False
        with suppress(TopicNotFound, NotPermitted, ValueError), self._lock:
            number = self._groups.number(queue)
            if self._claims.get(queue) is not claim:
                return True  # It was given up meanwhile.
            self.file.ready(number)
            turn = self.take(number)
            self._unlock(claim.number, claim.turn)
            if turn is not None:
                claim.settle(number, turn)
            else:
                del self._claims[queue]
                claim.lose()
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
            self.slot.give_up()
            self._end_of_renewal()
            self.member_table.leave(self.place)
            self.left = True
            self._groups.left(self)
            fd, self._fd = self._fd, -1
            self._store.closed_here(fd)  # From here on everything is free.
            self.file.changed()
            self._event.add()
            self._event.wake()
            self._detach()
        log.info("group %s: %s left", self.group, self.client_id)

    def forked(self) -> None:
        """In a forked child: hands off what is the parent's."""
        self._lock = threading.RLock()  # Another thread of the parent may have had it.
        self.left = True
        self._fd = -1
        self._detach()
        for claim in self._claims.values():
            claim.drop()
        self._claims = {}

    def _detach(self) -> None:
        self._news = 0  # First: version() takes it after the words.
        self._counters = self._words = self.topics = EMPTY
        self._event = Futex(bytearray(4))
