"""Queues of a local store that a consumer is told to have: see mq.api.group.Assigned.

Nobody owns such a queue: any number may have the same, and members of the group as well. So what is committed
is written under the lock of the group's file. A queue of a topic that was deleted and made anew has another
number: the offsets that its consumer knows are those of the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mq.api.group import LastingClaim, Resets
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.groups.offsets import check_offset
from mq.broker.groups.open_groups import OpenGroups
from mq.errors import NotPermitted
from mq.message import MessageExt
from mq.names import check_group
from mq.store.shared.group_slots import APPLIED, RESETS, slot_word
from mq.store.shared.waiting import Futex

__all__ = ["AssignedClaim", "LocalAssigned"]

log = logging.getLogger("mq.groups")


class LocalAssigned:
    """See mq.api.group.Assigned. Made by Groups.assigned."""

    def __init__(self, groups: OpenGroups, group: str) -> None:
        check_group(group)
        self._groups = groups
        self._group = group

    def version(self) -> int:
        """See Assigned.version."""
        member_table = self._groups.member_table(self._group)
        changes = member_table.file.version.value if member_table is not None else 0
        return int(self._groups.store.topics_version()[0]) + changes

    def claim(self, queue: MessageQueue) -> AssignedClaim:
        """See Assigned.claim."""
        return AssignedClaim(self, self._groups, self._group, queue)

    def resets(self, queue: MessageQueue) -> Resets:
        """See Assigned.resets."""
        number = self._groups.numbers.find(queue.topic, queue.queue_id)
        member_table = self._groups.member_table(self._group)
        if member_table is None or not member_table.file.has(number):
            return Resets(number, -1, is_pending=False)
        words, at = member_table.file.words, slot_word(number)
        return Resets(number, int(words[at + RESETS]), bool(words[at + RESETS] != words[at + APPLIED]))

    def raise_to(self, queue: MessageQueue, offset: int, seen: Resets | None = None) -> int | None:
        """Commit an offset unless a greater one is. Returns what is committed then; None, and nothing is
        done, if the offset was reset since that was seen."""
        check_offset(offset)
        file, number = self._groups.made(self._group).file, self._groups.number(queue)
        with file.changing():
            if seen is not None and self.resets(queue).since(seen):
                return None
            file.raise_to(number, offset)
            return file.committed(number) or 0

    def correct(self, queue: MessageQueue, offset: int, seen: Resets) -> None:
        """Set an offset, also downwards, unless it was reset since that was seen. An owner of the queue goes
        on, and commits over it."""
        file, number = self._groups.made(self._group).file, self._groups.number(queue)
        with file.changing():
            if not self.resets(queue).since(seen):
                file.correct(number, offset)

    def words(self) -> Sequence[tuple[Futex, int]]:
        """The word that changes when an offset is reset, and what it says now. A group has it from when
        somebody waits for it."""
        try:
            version = self._groups.made(self._group).file.version
        except NotPermitted:
            return ()  # Nobody can reset an offset by this broker, which only reads.
        return ((version, version.value),)

    def mark_seen(self) -> None:
        """Nothing: a consumer with assigned queues has no notifications."""


class AssignedClaim(LastingClaim):
    """See mq.api.group.Claim."""

    def __init__(self, assigned: LocalAssigned, groups: OpenGroups, group: str, queue: MessageQueue) -> None:
        self.queue = queue
        self._assigned = assigned
        self._groups = groups
        self._group = group
        self._seen = assigned.resets(queue)
        self._has_told = False  # that a smaller offset than is committed was ignored

    def committed(self) -> int | None:
        """See Claim.committed."""
        self._seen = self._assigned.resets(self.queue)
        return self._groups.committed(self._group, self.queue)

    def is_current(self) -> bool:
        """See Claim.is_current."""
        now = self._assigned.resets(self.queue)
        if now.since(self._seen):
            return False
        self._seen = now  # The first commit of any queue makes the slots of all.
        return True

    def commit(self, offset: int) -> bool:
        """See Claim.commit."""
        if not self.is_current():
            return False
        committed = self._assigned.raise_to(self.queue, offset, self._seen)
        if committed is None:
            return False
        if committed > offset and not self._has_told:
            self._has_told = True
            log.warning(
                "group %s: a commit of offset %d of %s/%d is ignored: %d is committed, and reset() goes back",
                *(self._group, offset, self.queue.topic, self.queue.queue_id, committed),
            )
        return True

    def puller(self) -> Puller:
        """See Claim.puller."""
        return self._groups.puller(self.queue, None)

    def send_back(self, message: MessageExt, *, delay_level: int = 0, max_reconsume_times: int = 16) -> bool:
        """See Claim.send_back."""
        return self._groups.send_back(message, self._group, delay_level, max_reconsume_times, lambda: None)

    def correct(self, offset: int) -> None:
        """See Claim.correct. A reset that is not acknowledged yet stands."""
        if self.is_current():
            self._assigned.correct(self.queue, offset, self._seen)
