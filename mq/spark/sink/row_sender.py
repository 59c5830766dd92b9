"""Send rows to the brokers of a cluster: in batches, with retries until they are stored.

A batch that a broker does not acknowledge is sent again with the same unique ids, for a minute. Rows for any
queue of their topic go to another broker; others go to the same one, which may have a new master by then. A
FLUSH_DISK_TIMEOUT or a slave's timeout does not count as an acknowledgement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from mq.api.bulk import Row
from mq.api.results import MessageQueue, SendStatus
from mq.errors import MQError, RemotingError, RequestTimeout
from mq.remoting.client.broker_errors import is_final
from mq.spark.cluster import ClusterBroker

__all__ = ["RowSender", "batches"]

RETRY_SECONDS = 60.0
BACKOFF_SECONDS = (0.05, 2.0)  # between two attempts: the first and the longest pause
BATCH_BYTES, BATCH_ROWS = 512 << 10, 1000
ROW_BYTES = 100  # the approximate overhead of a row in a request, besides body and properties
DELAYS = (b"DELAY\x01", b"TIMER_DELIVER_MS\x01")


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in batches, in their order. A delayed or a large row is a batch of its own."""
    together: list[Row] = []
    size = 0
    for row in rows:
        more = len(row.body) + len(row.properties) + ROW_BYTES
        if together and (is_delayed(row) or size + more > BATCH_BYTES or len(together) == BATCH_ROWS):
            yield together
            together, size = [], 0
        if is_delayed(row):
            yield [row]
            continue
        together.append(row)
        size += more
    if together:
        yield together


def is_delayed(row: Row) -> bool:
    return row.properties.startswith(DELAYS) or any(b"\x02" + name in row.properties for name in DELAYS)


class RowSender:
    """Sends the rows of one task. clock is monotonic."""

    def __init__(
        self,
        broker: ClusterBroker,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._broker = broker
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._sleep = sleep

    def send(self, queue: MessageQueue, rows: Iterable[Row], *, is_free: bool) -> None:
        """Store rows in their order. is_free: another queue of the topic may be used. Raises RemotingError,
        RequestTimeout, NotPermitted and the like."""
        for batch in batches(rows):
            queue = self._stored(queue, batch, is_free)

    def _stored(self, queue: MessageQueue, rows: Sequence[Row], is_free: bool) -> MessageQueue:
        """Store the rows; returns the queue that has them."""
        deadline, wait = self._clock() + self._retry_seconds, BACKOFF_SECONDS[0]
        silent: set[str] = set()
        while True:
            try:
                result = self._broker.append_rows(queue, rows)
                if result.status is SendStatus.SEND_OK:
                    return queue
                raise RemotingError(
                    f"broker {queue.broker_name!r} stored {len(rows)} rows, and says {result.status.name}:"
                    " they are lost if it fails now"
                )
            except (RemotingError, RequestTimeout) as error:
                if is_final(error) or self._clock() + wait > deadline:
                    raise
            silent.add(queue.broker_name)
            self._sleep(wait)
            wait = min(2 * wait, BACKOFF_SECONDS[1])
            with suppress(MQError):
                self._broker.topic(queue.topic)  # Fetches the route.
                if is_free:
                    queue = self._other(queue, silent)

    def _other(self, queue: MessageQueue, silent: set[str]) -> MessageQueue:
        """A queue of a broker that has not failed yet; if all have, the next queue."""
        queues = self._broker.publishable(queue.topic)
        others = [each for each in queues if each.broker_name not in silent]
        if not others:
            silent.clear()
            others = [each for each in queues if each != queue]
        return others[hash(queue) % len(others)] if others else queue
