"""Pulls from one queue for a reader that is not a consumer: see mq.api.queues.Puller.

A broker checks only every 5 s whether a held pull has timed out, so the client applies the limit itself: a
pull that is not answered in time has found nothing, and its late answer is dropped.
"""

from __future__ import annotations

from time import monotonic

from mq.api.group import Subscription
from mq.api.queues import READ_SIZE_MAX
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.fastpath import time_left
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import framed
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.pulling import HOLD_SECONDS, READER_GROUP, pull_request, pulled
from mq.remoting.client.topics import RemoteTopics
from mq.remoting.codec.bodies.route import MASTER_ID

__all__ = ["QueuePuller"]

LACKING = frozenset({PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL})
ANSWER_SECONDS = 10.0  # time limit in addition to the time that a broker holds a pull


class QueuePuller:
    """Thread-safe."""

    def __init__(
        self, brokers: Brokers, queue: MessageQueue, namespace: Namespace, topics: RemoteTopics
    ) -> None:
        self._brokers = brokers
        self._queue = queue
        self._namespace = namespace
        self._wire_queue = namespace.wire_queue(queue)
        self._topics = topics
        self._version = -1  # the route version at which the queue was last found readable
        self._all = Subscription(self._wire_queue.topic)
        self._broker_id = MASTER_ID  # of the master or the slave to ask next, as the last answer suggested

    def __call__(
        self,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
        /,
    ) -> PullResult:
        """See Puller."""
        if not isinstance(count_max, int) or count_max < 1:
            raise ValueError(f"count_max is {count_max!r}: ask for at least one message")
        version = self._topics.version()
        if version != self._version:
            self._topics.check_readable(self._queue)
            self._version = version
        deadline = monotonic() + wait
        while True:
            found = self._pull(offset, count_max, byte_max, max(0.0, deadline - monotonic()))
            if found.status is not PullStatus.NO_NEW_MESSAGE or monotonic() >= deadline:
                return _cut(found, byte_max)

    def _pull(self, offset: int, count_max: int, byte_max: int, wait: float) -> PullResult:
        self._brokers.cluster.use(self._wire_queue.topic)
        hold = min(wait, HOLD_SECONDS)
        request = pull_request(
            READER_GROUP,
            self._wire_queue,
            offset,
            count_max,
            min(byte_max, READ_SIZE_MAX),
            hold=hold,
            subscription=self._all,
        )
        remoting, address = self._brokers.remoting, self._address()
        limit = time_left() or remoting.options.timeout
        suggested, self._broker_id = self._broker_id, MASTER_ID  # An error leads back to the master.
        if not hold:
            answer = remoting.call(address, framed(request), limit)
        else:
            pending = remoting.submit(address, framed(request), hold + ANSWER_SECONDS)
            if not pending.wait(hold):
                self._broker_id = suggested
                return PullResult(PullStatus.NO_NEW_MESSAGE, [], offset, 0, offset)
            answer = pending.result()
        result, self._broker_id = pulled(answer, self._queue, offset, address, self._namespace)
        if result.status in LACKING and self._is_slave(address):
            self._broker_id = MASTER_ID  # A slave may lack the newest messages.
            return self._pull(offset, count_max, byte_max, 0.0)
        return result

    def _is_slave(self, address: str) -> bool:
        """Whether it is a slave's address, and there is a master."""
        master = self._brokers.cluster.address(self._queue.broker_name)
        return master is not None and address != master

    def _address(self) -> str:
        """The address of the suggested broker if it is known, else the master's or any slave's."""
        name = self._queue.broker_name
        return self._brokers.cluster.address(name, self._broker_id) or self._brokers.address(name)


def _cut(found: PullResult, byte_max: int) -> PullResult:
    """Cut the result to byte_max, which a broker ignores. The first message is always kept."""
    size = 0
    for count, message in enumerate(found.messages):
        size += message.store_size
        if count and size > byte_max:
            return PullResult(
                found.status,
                found.messages[:count],
                message.queue_offset,
                found.min_offset,
                found.max_offset,
            )
    return found
