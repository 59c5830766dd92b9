"""Read a queue of a cluster as columns: pulls from its master or a slave, without an object for each message.

By default a broker returns 32 messages per pull. So the next pull is sent as soon as an answer arrives, and
one batch holds the records of many answers. If the master does not answer, its slave is asked, and vice
versa; the route is refreshed meanwhile.

A slave may lack the newest messages, so its end of the queue is not trusted: the slave or its master is asked
again until the messages are there.

RocketMQ: client/impl/consumer/PullAPIWrapper.java, broker/processor/PullMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep
from typing import NamedTuple

from mq.api.bulk import Batch
from mq.api.group import Subscription
from mq.api.results import MessageQueue, PullStatus
from mq.errors import MQError, RemotingError, RequestTimeout, StoreCorrupted
from mq.remoting.client.broker_errors import is_final
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import framed
from mq.remoting.client.connections.connection import PendingAnswer
from mq.remoting.client.connections.remoting import waited
from mq.remoting.client.pulling import PullHead, pull_head, pull_request
from mq.remoting.codec.bodies.route import MASTER_ID
from mq.store.queue.wire_columns import WireColumns

__all__ = ["RETRY_SECONDS", "QueueScan"]

RETRY_SECONDS = 60.0  # how long to retry brokers that do not answer or lack the messages
BACKOFF_SECONDS = (0.05, 1.0)  # between two attempts: the first and the longest pause
PULL_COUNT = 1024
PULL_BYTES = 1 << 20


class _Asked(NamedTuple):
    """A pending pull."""

    offset: int
    address: str
    answer: PendingAnswer


class _Place(NamedTuple):
    """The pulled records that were not returned yet, and the offset of the next pull."""

    content: bytes
    at: int
    offset: int
    pulled_to: int


class QueueScan:
    """See mq.api.bulk.Scan."""

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        queue: MessageQueue,
        wire_queue: MessageQueue,
        columns: Sequence[str],
        unit: str,
        tags: str,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._queue = queue
        self._wire_queue = wire_queue
        self._columns = WireColumns(queue, wire_queue.topic, columns, unit)
        self._subscription = Subscription(wire_queue.topic, tags)
        self._retry_seconds = retry_seconds
        self._broker_id = MASTER_ID  # the one to ask next
        self._asked: _Asked | None = None
        self._sender = ""  # address of the last answer
        self._left = _Place(b"", 0, -1, -1)
        self._known = PullHead(PullStatus.NO_NEW_MESSAGE, 0, 0, 0, MASTER_ID)

    def read(self, offset: int, end: int, count_max: int, byte_max: int) -> Batch:
        """See Scan.read. Raises StoreCorrupted for a damaged record, RemotingError, RequestTimeout."""
        left = self._left
        if left.offset != offset:
            left = _Place(b"", 0, offset, offset)
        self._left = _Place(b"", 0, -1, -1)
        pieces = [memoryview(left.content)[left.at :]]
        size, pulled_to = len(pieces[0]), left.pulled_to
        while size < byte_max and pulled_to < min(end, offset + count_max):
            head, body = self._pulled(pulled_to, end)
            self._known = head
            if head.status is PullStatus.NO_MATCHED_MESSAGE and self._subscription.expression == "*":
                # The pull has no filter, so the broker has just deleted these messages.
                head = head._replace(status=PullStatus.OFFSET_ILLEGAL, min_offset=head.next_offset)
            if head.status in {PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL}:
                if size or pulled_to > offset:
                    break  # Return the records so far; the next read meets the error again.
                is_out = head.status is PullStatus.OFFSET_ILLEGAL
                records = self._columns.take(b"", 0, offset, end, 1, 1).records
                return Batch(records, offset, head.min_offset, head.max_offset, is_out)
            pieces.append(memoryview(body))
            size += len(body)
            pulled_to = head.next_offset
        content = b"".join(pieces)
        try:
            records, next_offset, at = self._columns.take(content, 0, offset, end, count_max, byte_max)
        except StoreCorrupted as error:
            raise StoreCorrupted(
                f"{error}. The last answer came from {self._sender}",
                queue=error.queue,
                queue_offset=error.queue_offset,
            ) from None
        if at == len(content):
            next_offset = min(max(pulled_to, next_offset), end)
        self._left = _Place(content, at, next_offset, pulled_to)
        return Batch(records, next_offset, self._known.min_offset, self._known.max_offset, False)

    def _pulled(self, offset: int, end: int) -> tuple[PullHead, bytes]:
        """The next messages, from the first broker that has them."""
        deadline, wait = monotonic() + self._retry_seconds, BACKOFF_SECONDS[0]
        failures: dict[str, MQError] = {}  # by address
        avoided = ""
        while True:
            asked, self._asked = self._asked, None
            if asked is None or asked.offset != offset:
                asked = self._ask(offset, end, avoided)
            try:
                answer = waited(asked.answer, asked.address, self._brokers.remoting.options.timeout)
                head = pull_head(answer, self._queue, offset, asked.address)
                lacking = self._lacking(head, asked.address, offset, end)
                if lacking is None:
                    self._broker_id, self._sender = head.broker_id, asked.address
                    if head.status is PullStatus.FOUND and head.next_offset < end:
                        self._asked = self._ask(head.next_offset, end)
                    return head, answer.body
                raise lacking
            except (RemotingError, RequestTimeout) as error:
                failures[asked.address] = error
                if is_final(error) or (monotonic() + wait > deadline and len(failures) == 1):
                    raise
                if monotonic() + wait > deadline:
                    text = "; ".join(map(str, failures.values()))
                    raise RemotingError(text, address=asked.address) from None
                avoided = asked.address
            sleep(wait)
            wait = min(2 * wait, BACKOFF_SECONDS[1])
            self._look_again()

    def _lacking(self, head: PullHead, address: str, offset: int, end: int) -> RemotingError | None:
        """The error for an answer that makes no progress, or that only a master may give."""
        if head.status is PullStatus.NO_MATCHED_MESSAGE and head.next_offset <= offset:
            return RemotingError(
                f"{address} has no message of {self._queue.topic}/{self._queue.queue_id} at queue offset"
                f" {offset}, and says to go on at {head.next_offset}",
                address=address,
            )
        is_behind = head.status is PullStatus.NO_NEW_MESSAGE or (
            head.status is PullStatus.OFFSET_ILLEGAL and offset > head.max_offset
        )
        master = self._brokers.cluster.address(self._queue.broker_name)
        if not is_behind or address == master:
            return None
        return RemotingError(
            f"slave {address} of broker {self._queue.broker_name!r} does not have {self._queue.topic}/"
            f"{self._queue.queue_id} up to offset {end} yet, but up to {head.max_offset}; its master is"
            f" {'at ' + master if master else 'not there'}",
            address=address,
        )

    def _ask(self, offset: int, end: int, avoided: str = "") -> _Asked:
        request = pull_request(
            self._group,
            self._wire_queue,
            offset,
            min(end - offset, PULL_COUNT),
            PULL_BYTES,
            subscription=self._subscription,
        )
        address = self._address(avoided)
        return _Asked(offset, address, self._brokers.remoting.submit(address, framed(request)))

    def _address(self, avoided: str) -> str:
        """The address of the suggested broker, the master or a slave, but not the avoided one."""
        name, cluster = self._queue.broker_name, self._brokers.cluster
        cluster.use(self._wire_queue.topic)
        if name not in cluster.brokers:  # The route of this topic is not known yet.
            cluster.route(self._wire_queue.topic)
        broker = cluster.brokers.get(name)
        known = {} if broker is None else broker.broker_addrs
        ids = sorted(known, key=lambda each: (each != self._broker_id, each))
        for each in ids:
            if known[each] != avoided:
                return known[each]
        return known[ids[0]] if ids else self._brokers.address(name)

    def _look_again(self) -> None:
        """Refresh the route: the broker may have another address by now, or a slave."""
        try:
            self._brokers.cluster.refresh(self._wire_queue.topic)
        except MQError:
            return  # The next attempt refreshes the route again.
