"""Messages of a cluster's queues as columns, and many queues at once: see mq.api.bulk.Scans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep

from mq.api.group import Subscription
from mq.api.results import MessageQueue
from mq.errors import MQError, NotPermitted, RemotingError, RequestTimeout
from mq.remoting.client.broker_errors import is_final, translated
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.columns.queue_scan import QueueScan
from mq.remoting.client.connections.answers import checked, fields_of, framed
from mq.remoting.client.connections.connection import PendingAnswer
from mq.remoting.client.connections.remoting import waited
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.pulling import READER_GROUP, pull_head, pull_request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.offsets import GetMaxOffset, GetMinOffset, OffsetAnswer

__all__ = ["RemoteScans"]

log = logging.getLogger("mq.remoting")

OLDEST_SECONDS = 1.0  # how long the oldest offset of a queue is cached
LOOK_SECONDS = (0.05, 0.25)  # between two polls for a message: the first and the longest pause
AT_ONCE = 512  # concurrent requests

OffsetRequest = type[GetMinOffset] | type[GetMaxOffset]


class RemoteScans:
    """The scans of one broker object and one consumer group. For one thread at a time."""

    def __init__(
        self, brokers: Brokers, namespace: Namespace, version: Callable[[], int], group: str | None = None
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._version = version
        self._group = READER_GROUP if group is None else namespace.wire(group)
        self._ends: dict[MessageQueue, int] = {}  # from masters
        self._oldest: dict[MessageQueue, tuple[float, int]] = {}  # with the time of the answer

    def scan(
        self, queue: MessageQueue, columns: Sequence[str], *, unit: str = "us", tags: str = "*"
    ) -> QueueScan:
        """See Scans.scan."""
        wire_queue = self._namespace.wire_queue(queue)
        return QueueScan(self._brokers, self._group, queue, wire_queue, columns, unit, tags)

    def limits(self, queues: Sequence[MessageQueue]) -> tuple[Sequence[int], Sequence[int]]:
        """See Scans.limits, and Cluster.scans."""
        now = monotonic()
        old = [
            queue
            for queue in queues
            if queue not in self._oldest or now - self._oldest[queue][0] > OLDEST_SECONDS
        ]
        self._oldest |= {queue: (now, offset) for queue, offset in self._asked(GetMinOffset, old).items()}
        ends = self._asked(GetMaxOffset, queues)
        oldest = [self._oldest[queue][1] for queue in queues]
        return oldest, [max(ends[queue], least) for queue, least in zip(queues, oldest, strict=True)]

    def wait(self, positions: Mapping[MessageQueue, int], seconds: float, version: int | None = None) -> None:
        """See Scans.wait. Polls the ends of the queues."""
        deadline, between = monotonic() + seconds, LOOK_SECONDS[0]
        while (left := deadline - monotonic()) > 0:
            sleep(min(between, left))
            between = min(2 * between, LOOK_SECONDS[1])
            if version is not None and self._version() != version:
                return
            if monotonic() < deadline:  # Otherwise the caller polls next.
                ends = self._asked(GetMaxOffset, list(positions))
                if any(ends[queue] > offset for queue, offset in positions.items()):
                    return

    def _asked(self, kind: OffsetRequest, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The answers of the brokers of queues, asked concurrently."""
        found: dict[MessageQueue, int] = {}
        for first in range(0, len(queues), AT_ONCE):
            under_way = [(queue, self._submitted(kind, queue)) for queue in queues[first : first + AT_ONCE]]
            for queue, answer in under_way:
                found[queue] = self._answered(kind, queue, answer)
        if kind is GetMaxOffset:
            self._ends |= found
        return found

    def _submitted(self, kind: OffsetRequest, queue: MessageQueue) -> tuple[str, PendingAnswer] | MQError:
        try:
            address = self._brokers.master(queue.broker_name)
            return address, self._brokers.remoting.submit(address, self._request(kind, queue))
        except RemotingError as error:
            return error

    def _answered(
        self, kind: OffsetRequest, queue: MessageQueue, asked: tuple[str, PendingAnswer] | MQError
    ) -> int:
        try:
            if isinstance(asked, MQError):
                raise asked
            address, answer = asked
            found = waited(answer, address, self._brokers.remoting.options.timeout)
            return self._offset(kind, queue, found, address)
        except (RemotingError, RequestTimeout) as error:
            if isinstance(error, NotPermitted):
                return self._told_by_pull(kind, queue)
            if is_final(error):
                raise
            log.debug("the master of %s does not tell the end of the queue: %s", queue, error)
            known = self._ends.get(queue) if kind is GetMaxOffset else self._oldest.get(queue, (0, None))[1]
            return self._of_slave(kind, queue, error) if known is None else known

    def _told_by_pull(self, kind: OffsetRequest, queue: MessageQueue) -> int:
        """The offset from the answer to a pull: 5.x denies the direct request to accounts with only SUB."""
        address, offset = self._brokers.master(queue.broker_name), self._ends.get(queue, 0)
        wire_queue = self._namespace.wire_queue(queue)
        everything = Subscription(wire_queue.topic)
        request = pull_request(self._group, wire_queue, offset, 1, 1, subscription=everything)
        answer = self._brokers.remoting.call(address, framed(request))
        head = pull_head(answer, queue, offset, address)
        return head.min_offset if kind is GetMinOffset else head.max_offset

    def _of_slave(self, kind: OffsetRequest, queue: MessageQueue, failure: MQError) -> int:
        """The offset from the master at its new address, or from a slave."""
        self._brokers.cluster.refresh(self._namespace.wire(queue.topic))
        broker = self._brokers.cluster.brokers.get(queue.broker_name)
        for _, address in sorted(broker.broker_addrs.items()) if broker is not None else ():
            try:
                answer = self._brokers.remoting.call(address, self._request(kind, queue))
                return self._offset(kind, queue, answer, address)
            except (RemotingError, RequestTimeout) as error:
                failure = error
        raise failure

    def _request(self, kind: OffsetRequest, queue: MessageQueue) -> Frame:
        return framed(kind(self._namespace.wire(queue.topic), queue.queue_id))

    def _offset(self, kind: OffsetRequest, queue: MessageQueue, answer: Frame, address: str) -> int:
        try:
            return fields_of(OffsetAnswer, checked(answer, kind, address)).offset
        except RemotingError as error:
            raise translated(error, queue.topic) from None
