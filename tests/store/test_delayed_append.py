"""Delayed messages as they are appended: what is written on them, what is refused, when the leader wakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mq
from mq.api.queues import Appenders
from mq.api.recall import RecallHandle
from mq.broker.delay.timer import TIMER_TOPIC
from mq.broker.local import LocalBroker
from mq.due_time import slot_ms
from mq.fastpath import DelayedRecords
from mq.properties import PROPERTIES_SIZE_MAX
from mq.store.log import delayed_append
from mq.store.log.writer import Writer
from mq.store.shared.due_event import AT_WAKE, DueEvent
from tests.support.appending import append_one
from tests.support.insides import catalog_of, schedule_of, store_of, timer_of, writer_of

HOUR = 3_600_000
MAX_MS = 48 * HOUR


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, timer_precision_ms=100, timer_max_delay_ms=MAX_MS) as broker:
        broker.create_topic("orders", 1)
        yield broker


class Odd(mq.Message):
    """A subclass, which the send in Python takes."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@given(st.integers(1, 1 << 50), st.integers(1, 60_000))
def test_a_slot_lies_at_most_one_precision_before_what_is_due(due_ms: int, precision_ms: int) -> None:
    out_ms = slot_ms(due_ms, precision_ms)
    assert out_ms % precision_ms == 0
    assert out_ms < due_ms <= out_ms + precision_ms


def test_slots_are_those_of_rocketmq() -> None:
    assert slot_ms(1_700_000_005_123, 1000) == 1_700_000_005_000
    assert slot_ms(1_700_000_005_000, 1000) == 1_700_000_004_000


DELAYS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"delay_level": st.integers(1, 18)}),
    st.fixed_dictionaries({"delay_ms": st.integers(0, MAX_MS)}),
    st.fixed_dictionaries({"deliver_at_ms": st.integers(0, 1 << 62)}),
    # Not so near that it becomes due between two sends.
    (st.integers(-HOUR, 0) | st.integers(HOUR, MAX_MS - HOUR)).map(
        lambda ms: {"deliver_at_ms": now_ms() + ms}
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    DELAYS,
    st.none() | st.sampled_from(["paid", "ß"]),
    st.sampled_from([(), "k", "order-1", "ß"]),
    st.sampled_from([{}, {"a": "b"}, {"long": "v" * 600}]),
    st.sampled_from([0, -7]),
)
def test_both_ways_store_the_same(
    broker: LocalBroker, delay: dict[str, Any], tags: str | None, keys: Any, own: dict[str, str], flag: int
) -> None:
    arguments: dict[str, Any] = {"tags": tags, "keys": keys, **delay}
    if own:
        arguments["properties"] = own
    if flag:
        arguments["flag"] = flag
    stored: list[tuple[Any, ...]] = []
    for kind in (Odd, mq.Message, Odd):
        message = kind("orders", b"body", **arguments)
        try:
            result = append_one(broker, "orders", 0, message, message.body, 0)
        except mq.MessageInvalid as error:
            stored.append((type(error), str(error).split(" is ")[0]))
            continue
        found = broker.message(result.offset_msg_id)
        properties = found.properties
        assert properties.pop("UNIQ_KEY") == result.msg_id
        due, out = properties.pop("TIMER_DELIVER_MS", None), properties.pop("TIMER_OUT_MS", None)
        handle = result.recall_handle
        assert (RecallHandle.of(handle).out_ms if handle else 0) == int(out or 0)
        if out is not None:
            assert due is not None
            assert int(out) == slot_ms(int(due), 100)
            if "delay_ms" in delay:
                # Both clocks are read before it is stored.
                assert int(due) - delay["delay_ms"] in range(
                    found.store_time_ms - HOUR, found.store_time_ms + 2
                )
            else:
                assert int(due) == delay["deliver_at_ms"]
        stored.append(
            (found.topic, found.queue_id, found.flag, found.body, sorted(properties.items()), out is not None)
        )
    assert stored[0] == stored[1] == stored[2]


@pytest.mark.parametrize("kind", [mq.Message, Odd])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_timer_message_is_stored_as_rocketmq_does(directory: Path, kind: Any, flush: Any) -> None:
    with mq.open(directory, flush=flush) as broker, mq.Producer(broker) as producer:
        broker.create_topic("orders", 4)
        queue = mq.MessageQueue("orders", "mq", 3)
        for number in range(3):
            before = now_ms()
            message = kind("orders", b"x", tags="t", properties={"own": "value"}, delay_ms=2 * HOUR)
            result = producer.send(message, queue=queue)
            assert (result.status, result.queue) == (mq.SendStatus.SEND_OK, queue)
            stored = broker.message(result.offset_msg_id)
            assert (stored.topic, stored.queue_id, stored.queue_offset) == (TIMER_TOPIC, 0, number)
            due = stored.deliver_at_ms
            assert due is not None
            assert before + 2 * HOUR <= due <= now_ms() + 2 * HOUR + 1
            assert stored.properties == {
                "TAGS": "t",
                "own": "value",
                "TIMER_DELAY_MS": str(2 * HOUR),
                "TIMER_DELIVER_MS": str(due),
                "TIMER_OUT_MS": str(slot_ms(due, 1000)),
                "REAL_TOPIC": "orders",
                "REAL_QID": "3",
                "UNIQ_KEY": result.msg_id,
            }
        assert broker.max_offset(queue) == 0


def test_with_extensions_of_queues_messages_wait_and_come_alike(directory: Path) -> None:
    with mq.open(directory, enable_consume_queue_ext=True, message_delay_level="40ms 1h") as broker:
        topic = broker.create_topic("orders", 1)
        (queue,) = topic.queues
        base = now_ms()
        delays: list[dict[str, Any]] = [{"delay_level": 1}, {"delay_ms": 60}, {"deliver_at_ms": base + 50}]
        for number, delay in enumerate(delays):
            topic.send(b"%d" % number, tags="t", **delay)
        assert topic.send(b"x", delay_ms=HOUR).recall_handle is not None
        topic.send(b"x", delay_level=2)
        found: list[mq.MessageExt] = []
        while len(found) < 3:
            found += queue.read(len(found), expression="t", wait=20.0).messages
        assert sorted(message.body for message in found) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("delay", [{"delay_ms": 0}, {"deliver_at_ms": 0}, {"deliver_at_ms": 1}])
@pytest.mark.parametrize("kind", [mq.Message, Odd])
def test_what_is_due_is_stored_where_it_belongs(
    broker: LocalBroker, kind: Any, delay: dict[str, Any]
) -> None:
    (queue,) = broker.topic("orders").queues
    with mq.Producer(broker) as producer:
        for _ in range(2):
            result = producer.send(kind("orders", b"x", **delay))
            assert broker.message(result.offset_msg_id).topic == "orders"
    assert queue.max_offset == 2


@pytest.mark.parametrize("kind", [mq.Message, Odd])
def test_what_is_due_too_late_is_refused(broker: LocalBroker, kind: Any) -> None:
    with mq.Producer(broker) as producer:
        producer.send(kind("orders", b"x", delay_ms=MAX_MS))
        for delay in (
            {"delay_ms": MAX_MS + 1},
            {"delay_ms": (1 << 63) - 1},
            {"deliver_at_ms": now_ms() + MAX_MS + HOUR},
            {"deliver_at_ms": (1 << 63) - 1},
        ):
            for _ in range(2):
                with pytest.raises(mq.MessageInvalid, match=r"172,800,000.*timer_max_delay_ms"):
                    producer.send(kind("orders", b"x", **delay))
    assert timer_of(broker).queue_number() >= 0
    assert broker.max_offset(mq.MessageQueue("orders", "mq", 0)) == 0


@pytest.mark.parametrize("delay", [{"delay_level": 18}, {"delay_ms": HOUR}])
def test_what_would_be_too_large_once_it_is_due_is_refused_at_once(
    directory: Path, delay: dict[str, Any]
) -> None:
    with mq.open(directory, commitlog_file_size=1 << 16) as broker:
        producer = mq.Producer(broker, compress_over=1 << 20)
        producer.send(mq.Message("orders", b"x", **delay))
        with pytest.raises(mq.MessageTooLarge):
            producer.send(mq.Message("orders", b"x" * ((1 << 16) - 200), **delay))
        with pytest.raises(mq.MessageTooLarge, match=r"64,000 of its body and 2,\d+ of its tags, keys and"):
            producer.send(mq.Message("orders", b"x" * 64_000, properties={"name": "v" * 2000}, **delay))
        long = {"long": "v" * (PROPERTIES_SIZE_MAX - 10)}
        with pytest.raises(mq.MessageInvalid, match="properties come to"):
            producer.send(mq.Message("orders", b"x", properties=long, **delay))


class Heard(DueEvent):
    """The leader, of levels or of timers: when it looks next is set here, and its wake-ups are counted."""

    precision_ms = 1000

    def __init__(self, broker: LocalBroker) -> None:
        self.words = memoryview(bytearray(4096)).cast("q")
        self.notified = 0
        self._broker = broker

    def notify(self) -> None:
        self.notified += 1


class Levels(Heard):
    def progress(self) -> Heard:
        return self

    def queue_of(self, level: int) -> tuple[int, int]:
        return schedule_of(self._broker).queue_of(level)


class Timers(Heard):
    @property
    def progress(self) -> Heard:
        return self

    def queue_number(self) -> int:
        return timer_of(self._broker).queue_number()


@pytest.mark.parametrize("delay", [{"delay_level": 1}, {"delay_ms": 1000}])
@pytest.mark.parametrize("kind", [mq.Message, Odd])
def test_the_leader_is_woken_by_what_is_due_before_it_looks(
    broker: LocalBroker, kind: Any, delay: dict[str, Any]
) -> None:
    levels, timers = Levels(broker), Timers(broker)
    heard = levels if "delay_level" in delay else timers
    topics = catalog_of(broker)
    store = store_of(broker)
    delays = delayed_append.DelayedAppend(levels, timers, MAX_MS, store.file_sizes.commitlog_file_size)
    writer = Writer(store, topics.version, topics, delays, writer_of(broker).keyed)
    for wake_in_ms, is_notified in ((-1, False), (500, False), (60_000, True)):
        heard.words[AT_WAKE] = now_ms() + wake_in_ms
        for _ in range(2):
            before = heard.notified
            Appenders(writer.appender)(
                mq.MessageQueue("orders", "mq", 0), kind("orders", b"x", **delay), b"x", 0
            )
            assert heard.notified - before == is_notified
    assert (timers if heard is levels else levels).notified == 0
    writer.close()


def test_a_message_made_again_of_its_fields_is_still_delayed(broker: LocalBroker) -> None:
    for encoded, topic in (
        (b"TAGS\x01t\x02DELAY\x013\x02", "SCHEDULE_TOPIC_XXXX"),
        (b"TIMER_DELAY_MS\x0160000", TIMER_TOPIC),
        (b"TIMER_DELAY_MS\x011\x02TIMER_DELAY_MS\x0190000\x02", TIMER_TOPIC),
        (b"TIMER_DELAY_MS\x0190000\x02DELAY\x014\x02", "SCHEDULE_TOPIC_XXXX"),
        (b"TIMER_DELAY_MS\x01x\x02", "orders"),
        (b"NO_DELAY\x013\x02", "orders"),
        (b"DELAY\x010\x02", "orders"),
        (b"WAIT\x01false\x02DELAY\x014\x02", "SCHEDULE_TOPIC_XXXX"),
        (b"DELAY\x01\x02\x02\x01\x02", "orders"),
    ):
        message = mq.Message.restored("orders", b"x", 0, False, encoded)
        for _ in range(2):
            result = append_one(broker, "orders", 0, message, b"x", 0)
            assert broker.message(result.offset_msg_id).topic == topic
    for encoded in (b"DELAY\x0119", b"DELAY\x01999999999999999999999999", b"TIMER_DELAY_MS\x01" + b"9" * 40):
        with pytest.raises(mq.MessageInvalid):
            append_one(broker, "orders", 0, mq.Message.restored("orders", b"x", 0, False, encoded), b"x", 0)


def test_what_cannot_be_told_is_refused() -> None:
    records = DelayedRecords(1 << 20)
    word = memoryview(bytearray(16)).cast("q")
    event = (word, 0, print)
    calls: list[Callable[[], None]] = [
        lambda: records.set_level(0, 1, 1000, event),
        lambda: records.set_level(65, 1, 1000, event),
        lambda: records.set_level(1, -1, 1000, event),
        lambda: records.set_level(1, 1, 1000, (word, 4, print)),
        lambda: records.set_timers(-1, 1000, 1, event),
        lambda: records.set_timers(0, 0, 1, event),
        lambda: records.set_timers(0, 1000, -1, event),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"told|aligned"):
            call()


def test_no_batch_has_a_timer_message(broker: LocalBroker) -> None:
    with mq.Producer(broker) as producer:
        delays: list[dict[str, Any]] = [{"delay_ms": 5}, {"deliver_at_ms": 1}]
        for delay in delays:
            batch = [mq.Message("orders", b"x"), mq.Message("orders", b"x", **delay)]
            with pytest.raises(mq.MessageInvalid, match="batch"):
                producer.send_batch(batch)
    assert broker.max_offset(mq.MessageQueue("orders", "mq", 0)) == 0
