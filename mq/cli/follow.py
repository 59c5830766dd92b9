"""The messages of a topic as one stream: first the stored ones, then new ones.

Stored messages come in log order; those of several brokers, each with a log of its own, in the order of their
store times. For new messages, one thread per queue waits in `Queue.read`, so the order then holds within each
queue.

A damaged record is reported and skipped.
"""

import heapq
import queue as handover
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import mq
from mq.threads import start

READ_COUNT = 256
WAIT = (
    0.5  # Seconds that a follower waits before it looks whether it should stop; a message wakes it at once.
)
BATCHES_WAITING_MAX = 64
# A group without offsets; its claim tells whether a queue was re-created.
READER_GROUP = "TOOLS_CONSUMER"

Report = Callable[[mq.StoreCorrupted], object]  # called with the error of each unreadable record


class MessageFilter(NamedTuple):
    """A tag expression, or an SQL92 expression over the properties."""

    expression: str = "*"
    sql: str | None = None


def stored(
    queue: mq.Queue, begin: int, end: int, message_filter: MessageFilter, report: Report
) -> Iterator[mq.MessageExt]:
    """The matching messages of one queue in [begin, end)."""
    queue_offset = begin
    while queue_offset < end:
        try:
            result = queue.read(
                queue_offset,
                count_max=READ_COUNT,
                expression=message_filter.expression,
                sql=message_filter.sql,
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
    topic: mq.Topic,
    begins: Mapping[mq.MessageQueue, int],
    ends: Mapping[mq.MessageQueue, int],
    message_filter: MessageFilter,
    report: Report,
) -> Iterator[mq.MessageExt]:
    """The matching messages of the queues in `ends`, in the order of age_order()."""
    queues = [queue for queue in topic.queues if queue.message_queue in ends]
    return heapq.merge(
        *(
            stored(queue, begins[queue.message_queue], ends[queue.message_queue], message_filter, report)
            for queue in queues
        ),
        key=age_order(ends),
    )


def age_order(queues: Iterable[mq.MessageQueue]) -> Callable[[mq.MessageExt], int]:
    """The key that sorts messages of these queues, oldest first: the log offset; on several brokers, the
    store time."""
    if len({queue.broker_name for queue in queues}) > 1:
        return lambda message: message.store_time_ms
    return lambda message: message.log_offset


def _behind(error: mq.StoreCorrupted, queue_offset: int) -> int:
    """The queue offset after a damaged record. Raises the error if it has another cause."""
    if error.queue_offset is None or error.queue_offset < queue_offset:
        raise error
    return error.queue_offset + 1


class TopicFollower:
    """All messages of a topic from given offsets on. Queues that are added later, and queues of a re-created
    topic, are read from their start."""

    def __init__(
        self,
        broker: mq.Broker,
        topic: str,
        begins: Mapping[mq.MessageQueue, int],
        message_filter: MessageFilter,
        report: Report,
    ) -> None:
        self._broker = broker
        self._report = report
        self._topic = topic
        self._filter = message_filter
        self._arrived: handover.Queue[list[mq.MessageExt] | Exception] = handover.Queue(BATCHES_WAITING_MAX)
        self._closed = threading.Event()
        self._threads: dict[mq.MessageQueue, threading.Thread] = {}
        self._follow_queues(begins)

    def __enter__(self) -> "TopicFollower":
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
        """Stop the threads and wait for their end."""
        self._closed.set()
        for thread in self._threads.values():
            thread.join()

    def _follow_queues(self, begins: Mapping[mq.MessageQueue, int]) -> None:
        for queue in self._broker.topic(self._topic).queues:
            if queue.message_queue not in self._threads:
                begin = begins.get(queue.message_queue, 0)
                name = f"follow {self._topic}/{queue.queue_id}"
                thread = threading.Thread(target=self._follow, args=(queue, begin), name=name, daemon=True)
                start(thread)
                self._threads[queue.message_queue] = thread

    def _follow(self, queue: mq.Queue, queue_offset: int) -> None:
        expression, sql = self._filter
        claim = self._broker.consumer_groups.assigned(READER_GROUP).claim(queue.message_queue)
        try:
            while not self._closed.is_set():
                if not claim.is_current():
                    claim.committed()  # From now on the claim refers to this queue.
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
                    continue  # The queue was re-created meanwhile, and this may be from its middle.
                queue_offset = result.next_offset
                if result.messages:
                    self._hand_over(list(result.messages))
        except Exception as error:  # noqa: BLE001 - raised again in the thread that iterates
            self._hand_over(error)

    def _hand_over(self, what: list[mq.MessageExt] | Exception) -> None:
        while not self._closed.is_set():
            try:
                self._arrived.put(what, timeout=WAIT)
            except handover.Full:
                continue
            return
