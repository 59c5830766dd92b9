"""The consumer groups of a store: see mq.api.consumer_groups.ConsumerGroups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mq.api.consumer_groups import ConsumerGroups
from mq.api.group import Assigned, BroadcastOffsets, Member, Membership, QueueState
from mq.api.queues import Queues
from mq.api.results import MessageQueue
from mq.broker.broadcast.groups import BroadcastGroups
from mq.broker.group_deletion import Deletion
from mq.broker.groups.groups import Groups
from mq.broker.groups.retry_counts import Retries
from mq.errors import NotPermitted

__all__ = ["LocalConsumerGroups"]


class LocalConsumerGroups(ConsumerGroups):
    """Clustering and broadcasting groups, and what waits for another attempt of theirs."""

    def __init__(
        self, groups: Groups, broadcast: BroadcastGroups, retries: Retries, deletion: Deletion
    ) -> None:
        self._groups = groups
        self._broadcast = broadcast
        self._retries = retries
        self._deletion = deletion

    def names(self) -> list[str]:
        return sorted({*self._groups.names(), *self._groups.slowest.names()})

    def admit(self, group: str, member: Member, consume_from: str | int | None) -> Membership:
        return self._groups.admit(group, member, consume_from)

    def begin_at_the_end(self, group: str, topic: str, queues: Queues) -> bool:
        # In one step, also where two consumers do so; and for a topic that is not there yet as well.
        try:
            self._groups.begin_at_the_end(group, topic)
        except NotPermitted:
            return bool(self._groups.offsets(group, topic))
        return True

    def assigned(self, group: str) -> Assigned:
        return self._groups.assigned(group)

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        return self._broadcast.offsets(group, client_id, directory)

    def members(self, group: str) -> list[Member]:
        return self._groups.members(group)

    def topics(self, group: str) -> list[str]:
        return self._groups.topics(group)

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        return self._groups.offsets(group, topic)

    def states(self, group: str, topic: str) -> list[QueueState]:
        return self._groups.states(group, topic)

    def retrying(self, group: str) -> dict[str, int]:
        return self._retries.of(group)

    def delete(self, group: str, *, dead_letters: bool = False) -> None:
        self._deletion.delete(group, dead_letters)

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        self._broadcast.reset(group, offsets)
