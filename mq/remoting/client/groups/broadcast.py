"""The offsets of one consumer of a broadcasting group on a cluster.

Each consumer keeps its own offsets in files on this machine, as with a directory. There is one file per
broker, since each broker numbers its queues from 0. The first file has the consumer's client id; its lock
excludes other consumers of this machine.

RocketMQ: client/consumer/store/LocalFileOffsetStore.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mq.api.beginning import first_offset
from mq.api.group import Claim, Membership
from mq.api.queues import Puller, Queues
from mq.api.results import MessageQueue
from mq.broker.broadcast.offsets import BroadcastOffsets, Source

__all__ = ["RemoteBroadcastOffsets", "default_directory"]

IDENTITY = "client"  # the directory whose lock stands for the client id


def default_directory(cluster: str, namespace: str) -> Path:
    """The default directory of the offset files. cluster: the addresses of the name servers."""
    parts = [cluster, namespace] if namespace else [cluster]
    return Path.home().joinpath(".mq", "broadcast", *(re.sub(r"[^\w.-]", "_", part) for part in parts))


class RemoteBroadcastOffsets:
    """See mq.api.group.BroadcastOffsets."""

    def __init__(
        self,
        directory: Path,
        group: str,
        client_id: str | None,
        queues: Queues,
        puller: Callable[[MessageQueue, Membership], Puller],
    ) -> None:
        self._base = directory / group
        self._group = group
        self._queues = queues
        self._puller = puller
        self._membership: Membership | None = None
        self._of_broker: dict[str, BroadcastOffsets] = {}
        self._began: dict[str, str | int] = {}  # topic to consume_from
        self._identity = BroadcastOffsets(
            self._base / IDENTITY, group, client_id, Source(lambda *_: {}, _never)
        )
        self.client_id = self._identity.client_id

    @property
    def is_dirty(self) -> bool:
        return any(each.is_dirty for each in list(self._of_broker.values()))

    def begin(self, topic: str, consume_from: str | int) -> None:
        """See BroadcastOffsets.begin."""
        self._began[topic] = consume_from
        for name in sorted({queue.broker_name for queue in self._queues.readable(topic)}):
            self._offsets(name).begin(topic, consume_from)

    def claim(self, queue: MessageQueue, membership: Membership) -> Claim:
        """See BroadcastOffsets.claim."""
        self._membership = membership
        is_new = queue.broker_name not in self._of_broker
        offsets = self._offsets(queue.broker_name)
        if is_new and queue.topic in self._began:
            offsets.begin(queue.topic, self._began[queue.topic])
        return offsets.claim(queue, membership)

    def save(self) -> None:
        """See BroadcastOffsets.save."""
        for each in list(self._of_broker.values()):
            each.save()

    def close(self) -> None:
        """See BroadcastOffsets.close."""
        for each in (*self._of_broker.values(), self._identity):
            each.close()

    def _offsets(self, broker_name: str) -> BroadcastOffsets:
        found = self._of_broker.get(broker_name)
        if found is None:
            base = self._base / re.sub(r"[^\w.-]", "_", broker_name)
            source = Source(lambda *topic: self._begin(broker_name, *topic), self._pull)
            found = BroadcastOffsets(base, self._group, self.client_id, source)
            self._of_broker[broker_name] = found
        return found

    def _begin(self, broker_name: str, topic: str, consume_from: str | int) -> dict[int, int]:
        """The first offsets for the queues of one broker."""
        return {
            queue.queue_id: first_offset(self._queues, queue, consume_from)
            for queue in self._queues.readable(topic)
            if queue.broker_name == broker_name
        }

    def _pull(self, queue: MessageQueue) -> Puller:
        assert self._membership is not None
        return self._puller(queue, self._membership)


def _never(queue: MessageQueue) -> Puller:
    raise AssertionError(f"{queue} is not pulled by the offsets that stand for the client id")
