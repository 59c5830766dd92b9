"""Pulls from one queue for a reader that is not a consumer: see mq.api.queues.Puller.

A broker checks only every 5 s whether a held pull has timed out, so the client applies the limit itself: a
pull that is not answered in time has found nothing, and its late answer is dropped.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout
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

__all__ = ["QueuePuller"]

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
        remoting, address = self._brokers.remoting, self._brokers.address(self._queue.broker_name)
        limit = time_left() or remoting.options.timeout
        if not hold:
            answer = remoting.call(address, framed(request), limit)
        else:
            future = remoting.submit(address, framed(request), hold + ANSWER_SECONDS)
            try:
                answer = future.result(hold)
            except FutureTimeout:
                if future.done() and future.exception() is not None:
                    raise
                future.cancel()
                return PullResult(PullStatus.NO_NEW_MESSAGE, [], offset, 0, offset)
        return pulled(answer, self._queue, offset, address, self._namespace).result


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
