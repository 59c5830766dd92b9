"""The consumer groups of the broker in memory, as others ask for them: under its one lock."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mq.api.consumer_groups import ConsumerGroups
from mq.api.group import Member, Membership, QueueState, Subscription
from mq.api.results import MessageQueue
from mq.broker.broadcast.offsets import BroadcastOffsets
from tests.support.memory.broadcast import MemorySource
from tests.support.memory.groups import MemoryAssigned, MemoryGroups, new_member

if TYPE_CHECKING:
    from tests.support.memory.broker import MemoryBroker


class MemoryConsumerGroups(ConsumerGroups):
    """See mq.api.consumer_groups.ConsumerGroups."""

    def __init__(self, broker: MemoryBroker, groups: MemoryGroups, clock: Callable[[], int]) -> None:
        self._broker = broker
        self._groups = groups
        self._clock = clock
        self._directory: tempfile.TemporaryDirectory[str] | None = None  # of broadcasting consumers

    @contextmanager
    def _opened(self) -> Iterator[MemoryGroups]:
        with self._groups.changed:
            self._broker.check_open()
            yield self._groups

    def join(
        self,
        group: str,
        *,
        client_id: str,
        model: str,
        consume_type: str,
        ordered: bool,
        subscriptions: Sequence[Subscription],
        consume_from: str | int = "first",
    ) -> Membership:
        with self._opened() as groups:
            member = new_member(client_id, self._clock(), model, consume_type, ordered)
            return groups.join(group, member, subscriptions, consume_from)

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        with self._opened() as groups:
            if directory is None:
                self._directory = self._directory or tempfile.TemporaryDirectory()
                directory = Path(self._directory.name)
            base = directory / "memory" / group
            return BroadcastOffsets(base, group, client_id, MemorySource(self._broker, groups, group))

    def assigned(self, group: str) -> MemoryAssigned:
        with self._opened() as groups:
            return MemoryAssigned(groups, group)

    def members(self, group: str) -> list[Member]:
        with self._opened() as groups:
            return groups.members(group)

    def topics(self, group: str) -> list[str]:
        with self._opened() as groups:
            return groups.topics(group)

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        with self._opened() as groups:
            return groups.offsets(group, topic)

    def states(self, group: str, topic: str) -> list[QueueState]:
        with self._opened() as groups:
            return groups.states(group, topic)

    def retrying(self, group: str) -> dict[str, int]:
        with self._opened() as groups:
            return self._broker.retrying(group, groups.state(group).offsets)

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        with self._opened() as groups:
            groups.reset(group, offsets)

    def close(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
