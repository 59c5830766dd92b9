"""Rows to the brokers of a cluster: cut into batches, and sent again until they are stored.

What a broker does not acknowledge goes out again under the same unique ids, for a minute: rows that may be in
any queue of their topic to another broker, others to the same one, which may have a new master by then. An
acknowledgement that a disk or a slave was too slow is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from mq.api.bulk import Row
from mq.api.results import MessageQueue, SendStatus
from mq.errors import MQError, RemotingError, RequestTimeout
from mq.remoting.client.refusals import is_final
from mq.spark.cluster import ClusterBroker

__all__ = ["RowSender", "batches"]

PATIENCE_SECONDS = 60.0
AGAIN_SECONDS = (0.05, 2.0)  # between two attempts: at first, and in the end
BATCH_BYTES, BATCH_ROWS = 512 << 10, 1000
ROW_BYTES = 100  # what a row takes on the way besides body and properties, about
DELAYS = (b"DELAY\x01", b"TIMER_DELIVER_MS\x01")


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """What goes out together, in the order of the rows. Delayed rows, and large ones, go alone."""
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
    """Of one task. clock is monotonic."""

    def __init__(
        self,
        broker: ClusterBroker,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._broker = broker
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    def send(self, queue: MessageQueue, rows: Iterable[Row], *, is_free: bool) -> None:
        """Have rows stored, in their order. is_free: any other queue of the topic would do. Raises
        RemotingError, RequestTimeout and what forbids to write."""
        for batch in batches(rows):
            queue = self._stored(queue, batch, is_free)

    def _stored(self, queue: MessageQueue, rows: Sequence[Row], is_free: bool) -> MessageQueue:
        """The queue in which they are."""
        deadline, wait = self._clock() + self._patience, AGAIN_SECONDS[0]
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
            wait = min(2 * wait, AGAIN_SECONDS[1])
            with suppress(MQError):
                self._broker.topic(queue.topic)  # Asks for the route.
                if is_free:
                    queue = self._other(queue, silent)

    def _other(self, queue: MessageQueue, silent: set[str]) -> MessageQueue:
        """A queue of a broker that was not silent yet; where all were, the next one."""
        queues = self._broker.publishable(queue.topic)
        others = [each for each in queues if each.broker_name not in silent]
        if not others:
            silent.clear()
            others = [each for each in queues if each != queue]
        return others[hash(queue) % len(others)] if others else queue
