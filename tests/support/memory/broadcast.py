"""What the offsets of a broadcasting consumer ask of the broker in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.broadcast.text_format import TopicOffsets

if TYPE_CHECKING:
    from tests.support.memory.broker import MemoryBroker
    from tests.support.memory.groups import MemoryGroups


@dataclass(frozen=True)
class MemorySource:
    """See mq.broker.broadcast.offsets.Source."""

    broker: MemoryBroker
    groups: MemoryGroups
    group: str

    def made_at(self, topic: str) -> int | None:
        return self.broker.made_at(topic)

    def resets(self) -> Mapping[str, TopicOffsets]:
        return self.groups.state(self.group).broadcast_resets

    def earlier(self, client_id: str) -> Mapping[str, dict[int, int]]:
        return {}

    def begin(self, topic: str, consume_from: str | int) -> dict[int, int]:
        queues = self.broker.readable(topic)
        if consume_from == "last":
            return self.ends(topic)
        if isinstance(consume_from, int):
            return {queue.queue_id: self.broker.offset_at(queue, consume_from) for queue in queues}
        return {queue.queue_id: 0 for queue in queues}

    def ends(self, topic: str) -> dict[int, int]:
        return {queue.queue_id: self.broker.max_offset(queue) for queue in self.broker.readable(topic)}

    def puller(self, queue: MessageQueue) -> Puller:
        return self.broker.puller(queue)
