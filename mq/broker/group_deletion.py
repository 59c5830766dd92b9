"""A group is forgotten: all that its directory keeps of it.

    mq/groups/<group>, config/consumerOffset.json    its offsets
    mq/broadcast/<group>/, <group>.reset             those of its broadcasting consumers, and their resets
    mq/once/<group>                                  the keys that it has handled
    config/consumerFilter.json                       its filters, of which extensions of queue units have bits
    %RETRY%<group>                                   a topic: what it failed to consume, and nobody else wants
    %DLQ%<group>                                     a topic that stays, unless the caller says otherwise

All is done under byte 0 of the group's file, under which consumers join. Of what tells that there is such a
group, the offsets go last: who finds the group after a death in between can delete it again. The retry topic
goes after them, since a message that is due meanwhile makes it anew for a group that has offsets (see
Catalog.is_abandoned).

RocketMQ: broker/processor/AdminBrokerProcessor.java, deleteSubscriptionGroup.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from mq.api.joining import check_deletable, check_unused
from mq.broker.broadcast.groups import BroadcastGroups
from mq.broker.filter_bitmaps import ConsumerFilters
from mq.broker.groups.groups import Groups
from mq.broker.groups.member_table import log_deaths
from mq.broker.once.handled_key_files import OnceFiles
from mq.broker.topics.registry import Catalog
from mq.errors import TopicNotFound
from mq.names import DEAD_PREFIX, RETRY_PREFIX
from mq.uninterrupted import uninterrupted

__all__ = ["Deletion"]

log = logging.getLogger("mq.groups")


class Deletion:
    """Of the groups of one broker."""

    def __init__(
        self,
        groups: Groups,
        broadcast: BroadcastGroups,
        catalog: Catalog,
        once: OnceFiles,
        filters: ConsumerFilters | None,
    ) -> None:
        self._groups = groups
        self._broadcast = broadcast
        self._catalog = catalog
        self._once = once
        self._filters = filters

    def delete(self, group: str, dead_letters: bool) -> None:
        """See ConsumerGroups.delete."""
        check_deletable(group)
        self._groups.check_writable()
        uninterrupted(lambda: self._delete(group, dead_letters), of=self._groups.store)

    def _delete(self, group: str, dead_letters: bool) -> None:
        member_table = self._groups.made(group)
        with member_table.file.changing() as fd:
            dead = member_table.evict_dead(fd)
            check_unused(group, list(member_table.listed(fd).values()))
            self._broadcast.forget(group)
            self._once.forget(group)
            if self._filters is not None:
                self._filters.forget(group)
            self._groups.forget(member_table)
            for prefix in (RETRY_PREFIX, DEAD_PREFIX) if dead_letters else (RETRY_PREFIX,):
                with suppress(TopicNotFound):
                    self._catalog.delete(prefix + group, self._groups.forget_topic)
        log_deaths(group, dead)
        log.info("group %s: deleted", group)
