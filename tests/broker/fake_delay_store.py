"""A store in memory for the delivery of delayed messages, with a clock that is set, and death at any step.

FakeDelayStore is what Delivery needs of a store. A test may order its user to die: `steps` are counted, one
before each change that another process would see, and at the step `dies_at` Died is raised, as if there were
no next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mq
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.broker.delay.level_progress import DelayOffsets, LevelProgress
from mq.broker.delay.levels import SCHEDULE_TOPIC, Delivery
from mq.message import MessageExt
from mq.store.index.find_records import is_delivery
from mq.store.log.reappend import Copy
from tests.support.store.encoder import Record

BEGIN_MS = 1_700_000_000_000


class Died(BaseException):
    """The process is no more: nothing catches it, nothing is tidied up."""


class Death:
    """Counts steps, and ends one life at one of them."""

    def __init__(self) -> None:
        self.steps = 0
        self.dies_at: int | None = None

    def step(self) -> None:
        if self.steps == self.dies_at:
            self.dies_at = None
            raise Died
        self.steps += 1


class FakeDelayStore:
    """Queues of messages, stored at the time that the clock shows."""

    def __init__(self) -> None:
        self.now = BEGIN_MS
        self.death = Death()
        self.queues: dict[tuple[str, int], list[MessageExt]] = {}
        self.numbers: list[tuple[str, int]] = []
        self.failing: list[Exception] = []
        self.log_end = 0
        self.epoch = 1  # which life of the store this is
        self.last_stored = 0

    def clock(self) -> int:
        return self.now

    def number(self, topic: str, queue_id: int, *, add: bool) -> int | None:
        if (topic, queue_id) not in self.numbers:
            if not add:
                return None
            self.numbers.append((topic, queue_id))
            self.queues[topic, queue_id] = []
        return self.numbers.index((topic, queue_id))

    def queue_of(self, number: int) -> tuple[str, int] | None:
        return self.numbers[number]

    def last_store_ms(self) -> int:
        return self.last_stored

    def next_offset(self, number: int) -> int:
        return len(self.queues[self.numbers[number]])

    def append(
        self,
        topic: str,
        queue_id: int,
        message: MessageExt,
        properties: bytes,
        *,
        reconsume_times: int,
    ) -> Copy:
        self.death.step()
        if self.failing:
            raise self.failing.pop()
        return self.put(
            topic,
            queue_id,
            message.stored_body,
            properties,
            reconsume_times=reconsume_times,
            born_time=message.born_time_ms,
        )

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        reconsume_times: int = 0,
        born_time: int | None = None,
    ) -> Copy:
        """Store a message."""
        self.number(topic, queue_id, add=True)
        queue = self.queues[topic, queue_id]
        record = Record(
            topic,
            body,
            properties,
            queue_id,
            queue_offset=len(queue),
            log_offset=self.log_end,
            born_time=self.now if born_time is None else born_time,
            store_time=self.now,
            reconsume_times=reconsume_times,
        ).encode(property_crc=True)
        queue.append(MessageExt(record, "mq"))
        self.last_stored = self.now
        self.log_end += len(record)
        return Copy(self.log_end - len(record), len(queue) - 1, self.now, self.log_end)

    def put_aside(self, level: int, body: bytes, topic: str = "orders", queue_id: int = 0) -> str:
        """Store a delayed message; its unique id."""
        unique_id = f"{len(self.queues.get((SCHEDULE_TOPIC, level - 1), ())):016}{level:016}"
        properties = {"UNIQ_KEY": unique_id, "DELAY": level, "REAL_TOPIC": topic, "REAL_QID": queue_id}
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        self.put(SCHEDULE_TOPIC, level - 1, body, text.encode())
        return unique_id

    def pull(
        self, queue: MessageQueue, offset: int, count: int, size: int, hashes: None, wait: float
    ) -> PullResult:
        messages = self.queues[queue.topic, queue.queue_id]
        end = len(messages)
        found = messages[offset : offset + count]
        if found:
            return PullResult(PullStatus.FOUND, found, offset + len(found), 0, end)
        status = PullStatus.NO_NEW_MESSAGE if offset == end else PullStatus.OFFSET_ILLEGAL
        return PullResult(status, (), offset, 0, end)

    def flush(self, end: int | None = None) -> None:
        pass

    def repair_tail(self) -> None:
        pass

    def was_stored(self, topic: str, message: MessageExt) -> bool:
        return any(
            is_delivery(found, message)
            for (name, _), queue in self.queues.items()
            if name == topic
            for found in queue
        )

    def delivered(self, topic: str = "orders", queue_id: int = 0) -> list[MessageExt]:
        return self.queues.get((topic, queue_id), [])


class Deliverer:
    """One life of a process that has the duties, over a store that outlives it. Each store into the words of
    mq/delay is a step. others: of Delivery."""

    def __init__(
        self,
        store: FakeDelayStore,
        root: Path,
        levels: tuple[int, ...],
        *,
        pull: Callable[..., PullResult] | None = None,
        was_stored: Callable[[str, MessageExt], bool] | None = None,
        **others: Any,
    ) -> None:
        (root / "mq").mkdir(parents=True, exist_ok=True)
        self.store = store
        progress, is_up = LevelProgress(root, store.epoch), False

        def put(values: Mapping[int, int]) -> None:
            for place, value in values.items():
                if is_up:
                    store.death.step()
                progress.words[place] = value

        self.offsets = DelayOffsets(root, progress, len(levels), store.last_stored, put=put)
        is_up = True
        self.delivery = Delivery(
            levels,
            self.offsets,
            store,
            pull or store.pull,
            lambda topic, queue_id: (topic, queue_id),
            was_stored or store.was_stored,
            broker_name="mq",
            sync=False,
            **others,
        )

    def deliver(self) -> int | None:
        return self.delivery.deliver(self.store.clock)


def until_done(store: FakeDelayStore, deliver: Callable[[], int | None]) -> Iterator[int]:
    """Set the clock on to when something is due, and deliver, until nothing waits; each of these times."""
    while (due := deliver()) is not None:
        store.now = max(store.now, due)
        yield store.now


def bodies(messages: list[mq.MessageExt]) -> list[bytes]:
    return [message.body for message in messages]
