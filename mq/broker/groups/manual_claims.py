"""Queues of a local store that a consumer is told to have: see mq.api.group.Assigned.

Nobody owns such a queue: any number may have the same, and members of the group as well. So what is committed
is written under the lock of the group's file. A queue of a topic that was deleted and made anew has another
number: the offsets that its consumer knows are those of the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mq.api.group import LastingClaim
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.groups.offsets import check_offset
from mq.broker.groups.open_groups import OpenGroups
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

    def raise_to(self, queue: MessageQueue, offset: int) -> int:
        """Commit an offset unless a greater one is; what is committed then."""
        check_offset(offset)
        file, number = self._groups.made(self._group).file, self._groups.number(queue)
        with file.changing():
            file.raise_to(number, offset)
            return file.committed(number) or 0

    def correct(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset, also downwards. An owner of the queue goes on, and commits over it."""
        file, number = self._groups.made(self._group).file, self._groups.number(queue)
        with file.changing():
            file.correct(number, offset)

    def words(self) -> Sequence[tuple[Futex, int]]:
        """The word that changes when an offset is reset, and what it says now."""
        member_table = self._groups.member_table(self._group)
        return () if member_table is None else ((member_table.file.version, member_table.file.version.value),)

    def mark_seen(self) -> None:
        """Nothing: a consumer with assigned queues has no notifications."""


class AssignedClaim(LastingClaim):
    """See mq.api.group.Claim."""

    def __init__(self, assigned: LocalAssigned, groups: OpenGroups, group: str, queue: MessageQueue) -> None:
        self.queue = queue
        self._assigned = assigned
        self._groups = groups
        self._group = group
        self._seen = self._state()
        self._has_told = False  # that a smaller offset than is committed was ignored

    def _state(self) -> tuple[int, int]:
        """Which queue of its name this is, and how often its offset was reset; -1: the group has no slot of
        it."""
        number = self._groups.numbers.find(self.queue.topic, self.queue.queue_id)
        member_table = self._groups.member_table(self._group)
        if member_table is None or not member_table.file.has(number):
            return number, -1
        return number, int(member_table.file.words[slot_word(number) + RESETS])

    def _is_reset(self, number: int) -> bool:
        """Whether nobody has taken note of a reset yet, of a queue that has a slot."""
        member_table = self._groups.member_table(self._group)
        if member_table is None:
            return False
        words, at = member_table.file.words, slot_word(number)
        return bool(words[at + RESETS] != words[at + APPLIED])

    def committed(self) -> int | None:
        """See Claim.committed."""
        self._seen = self._state()
        return self._groups.committed(self._group, self.queue)

    def is_current(self) -> bool:
        """See Claim.is_current."""
        state = self._state()
        if state != self._seen and self._seen[1] < 0 and state[0] == self._seen[0]:
            # The first commit of any queue makes the slots of all.
            if self._is_reset(state[0]):
                return False
            self._seen = state
        return state == self._seen

    def commit(self, offset: int) -> bool:
        """See Claim.commit."""
        if not self.is_current():
            return False
        committed = self._assigned.raise_to(self.queue, offset)
        if committed > offset and not self._has_told:
            self._has_told = True
            log.warning(
                "group %s: a commit of offset %d of %s/%d is ignored: %d is committed, and reset() goes back",
                *(self._group, offset, self.queue.topic, self.queue.queue_id, committed),
            )
        if self._seen[1] < 0:
            self._seen = self._state()
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
            self._assigned.correct(self.queue, offset)
            if self._seen[1] < 0:
                self._seen = self._state()
