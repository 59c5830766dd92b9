"""The messages of a whole topic as one stream: first what is stored, then what arrives.

Stored messages come in the order in which they were stored. While following, one thread for each queue
waits in `Queue.read` and hands over what it finds, so order then holds within a queue.

A record that is damaged is reported, and reading goes on behind it.
"""

import heapq
import queue as handover
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import mq
from mq.threads import start

READ_COUNT = 256
WAIT = (
    0.5  # Seconds that a follower waits before it looks whether it should stop; a message wakes it at once.
)
BATCHES_WAITING_MAX = 64
# Of nobody's offsets: by it a broker says whether a queue still is the one that is read.
READER_GROUP = "TOOLS_CONSUMER"

Report = Callable[[mq.StoreCorrupted], object]  # told of each record that cannot be read


class Wanted(NamedTuple):
    """Which messages: by their tags, or by an SQL92 expression over their properties."""

    expression: str = "*"
    sql: str | None = None


def stored(queue: mq.Queue, begin: int, end: int, wanted: Wanted, report: Report) -> Iterator[mq.MessageExt]:
    """The messages of one queue that match, from `begin` up to `end`."""
    queue_offset = begin
    while queue_offset < end:
        try:
            result = queue.read(
                queue_offset, count_max=READ_COUNT, expression=wanted.expression, sql=wanted.sql
            )
        except mq.StoreCorrupted as error:
            queue_offset = _behind(error, queue_offset)
            if queue_offset <= end:
                report(error)
            continue
        for message in result.messages:
            if message.queue_offset >= end:
                return
            yield message
        if result.next_offset <= queue_offset:
            return
        queue_offset = result.next_offset


def merged(
    topic: mq.Topic, begins: Mapping[int, int], ends: Mapping[int, int], wanted: Wanted, report: Report
) -> Iterator[mq.MessageExt]:
    """The messages of all queues between two ends, in the order of the log."""
    return heapq.merge(
        *(
            stored(queue, begins[queue.queue_id], ends[queue.queue_id], wanted, report)
            for queue in topic.queues
        ),
        key=lambda message: message.log_offset,
    )


def _behind(error: mq.StoreCorrupted, queue_offset: int) -> int:
    """The queue offset behind a damaged record. Raises the error if it is not about one."""
    if error.queue_offset is None or error.queue_offset < queue_offset:
        raise error
    return error.queue_offset + 1


class Follower:
    """Everything that arrives in a topic from given offsets on; queues added later, and those of a topic that
    was made anew, from their start."""

    def __init__(
        self, broker: mq.Broker, topic: str, begins: Mapping[int, int], wanted: Wanted, report: Report
    ) -> None:
        self._broker = broker
        self._report = report
        self._topic = topic
        self._wanted = wanted
        self._arrived: handover.Queue[list[mq.MessageExt] | Exception] = handover.Queue(BATCHES_WAITING_MAX)
        self._closed = threading.Event()
        self._threads: dict[int, threading.Thread] = {}
        self._follow_queues(begins)

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[mq.MessageExt]:
        looked = time.monotonic()
        while True:
            with suppress(handover.Empty):
                arrived = self._arrived.get(timeout=WAIT)
                if isinstance(arrived, mq.StoreCorrupted) and arrived.queue_offset is not None:
                    self._report(arrived)
                elif isinstance(arrived, Exception):
                    raise arrived
                else:
                    yield from arrived
            if time.monotonic() - looked > WAIT:
                self._follow_queues({})
                looked = time.monotonic()

    def close(self) -> None:
        """Stop the threads; returns once they have."""
        self._closed.set()
        for thread in self._threads.values():
            thread.join()

    def _follow_queues(self, begins: Mapping[int, int]) -> None:
        for queue in self._broker.topic(self._topic).queues:
            if queue.queue_id not in self._threads:
                begin = begins.get(queue.queue_id, 0)
                name = f"follow {self._topic}/{queue.queue_id}"
                thread = threading.Thread(target=self._follow, args=(queue, begin), name=name, daemon=True)
                start(thread)
                self._threads[queue.queue_id] = thread

    def _follow(self, queue: mq.Queue, queue_offset: int) -> None:
        expression, sql = self._wanted
        claim = self._broker.consumer_groups.assigned(READER_GROUP).claim(queue.message_queue)
        try:
            while not self._closed.is_set():
                if not claim.is_current():
                    claim.committed()  # From now on it is about this one.
                    queue_offset = 0
                try:
                    result = queue.read(
                        queue_offset, count_max=READ_COUNT, expression=expression, sql=sql, wait=WAIT
                    )
                except mq.StoreCorrupted as error:
                    queue_offset = _behind(error, queue_offset)
                    self._hand_over(error)
                    continue
                if not claim.is_current():
                    continue  # It was made anew meanwhile, and this may be from its middle.
                queue_offset = result.next_offset
                if result.messages:
                    self._hand_over(list(result.messages))
        except Exception as error:  # noqa: BLE001  Raised again in the thread that iterates.
            self._hand_over(error)

    def _hand_over(self, what: list[mq.MessageExt] | Exception) -> None:
        while not self._closed.is_set():
            try:
                self._arrived.put(what, timeout=WAIT)
            except handover.Full:
                continue
            return
