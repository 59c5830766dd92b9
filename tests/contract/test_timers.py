"""Messages due at any time, as every broker has them: there when they are due, never before, or recalled."""

from __future__ import annotations

import base64
import random
import threading
import time
from typing import Any

import pytest

import mq
from tests.contract.conftest import Open
from tests.contract.differences import EXACT_DELAYS, EXACT_RECORDS, KNOWN_RECALLS, TIMERS, needs
from tests.support.appending import home_of
from tests.support.arrivals import wait_for

pytestmark = needs(TIMERS)

HOUR = 3_600_000
PATIENCE = 60.0
# Time to send, and to recall: more is given where the first was too little for the machine.
AHEAD_MS = (1000, 6000, 24_000)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recall waits for as long as a busy machine takes."""
    monkeypatch.setattr("mq.broker.delay.recall.TIMEOUT", PATIENCE)


@pytest.fixture
def broker(opened: Open) -> mq.Broker:
    broker = opened(timer_max_delay_ms=2 * HOUR)
    broker.create_topic("orders", 1)
    return broker


@pytest.fixture
def queue(broker: mq.Broker) -> mq.Queue:
    return broker.topic("orders").queues[0]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_message_comes_when_its_delay_has_passed(broker: mq.Broker, queue: mq.Queue) -> None:
    message = mq.Message(
        "orders", b"x", tags="t", keys=["k", "l"], properties={"p": "v"}, flag=3, delay_ms=120
    )
    with mq.Producer(broker) as producer:
        before = time.time()
        result = producer.send(message)
    assert (result.status, result.queue) == (mq.SendStatus.SEND_OK, queue.message_queue)
    (found,) = wait_for(queue, 1)
    assert time.time() - before >= 0.12
    assert (found.topic, found.queue_id, found.queue_offset) == ("orders", 0, 0)
    assert (found.body, found.tags, found.keys, found.flag) == (b"x", "t", ("k", "l"), 3)
    assert found.properties["p"] == "v"
    assert (found.msg_id, found.reconsume_times) == (result.msg_id, 0)
    assert queue.read(0, expression="t").messages
    assert [each.queue_offset for each in broker.query("orders", "k")] == [0]


@needs(EXACT_RECORDS)
def test_a_message_says_when_it_was_due(broker: mq.Broker, queue: mq.Queue) -> None:
    with mq.Producer(broker) as producer:
        before = now_ms()
        producer.send(mq.Message("orders", b"x", delay_ms=120))
        sent = now_ms()
    (found,) = wait_for(queue, 1)
    assert found.delay_ms == 120
    assert found.deliver_at_ms is not None
    assert before <= found.deliver_at_ms - 120 <= sent + 1
    assert found.store_time_ms >= found.deliver_at_ms


def test_a_message_comes_at_its_time(broker: mq.Broker, queue: mq.Queue) -> None:
    at = now_ms() + 150
    broker.topic("orders").send(b"x", deliver_at_ms=at)
    (found,) = wait_for(queue, 1)
    assert now_ms() >= at
    assert (found.deliver_at_ms, found.delay_ms) == (at, None)
    assert found.store_time_ms >= at


@needs(EXACT_DELAYS)
def test_each_comes_when_it_is_due_whatever_the_order_of_the_sends(broker: mq.Broker) -> None:
    delays = list(range(20, 420, 10))
    random.Random(4).shuffle(delays)
    for ahead_ms in AHEAD_MS:
        topic, base = broker.create_topic(f"orders-{ahead_ms}", 1), now_ms() + ahead_ms
        for delay in delays:
            topic.send(b"%d" % delay, deliver_at_ms=base + delay)
        topic.send(b"0")
        if now_ms() < base:
            break
    found = wait_for(topic.queues[0], len(delays) + 1)
    assert [int(message.body) for message in found] == [0, *sorted(delays)]
    for message in found[1:]:
        assert message.deliver_at_ms == base + int(message.body)
        assert message.store_time_ms >= message.deliver_at_ms


@needs(EXACT_DELAYS)
@pytest.mark.parametrize(
    "delay", [{"delay_ms": 0}, {"deliver_at_ms": 0}, {"deliver_at_ms": 1_700_000_000_000}]
)
def test_what_is_due_is_there_at_once(broker: mq.Broker, queue: mq.Queue, delay: dict[str, Any]) -> None:
    result = broker.topic("orders").send(b"x", **delay)
    assert result.recall_handle is None
    assert [message.msg_id for message in queue.read(0).messages] == [result.msg_id]


def test_beyond_the_limit_it_is_refused(broker: mq.Broker, queue: mq.Queue) -> None:
    topic = broker.topic("orders")
    delays: list[dict[str, Any]] = [
        {"delay_ms": 2 * HOUR + 1},
        {"delay_ms": (1 << 63) - 1},
        {"deliver_at_ms": now_ms() + 2 * HOUR + 5000},
        {"deliver_at_ms": (1 << 63) - 1},
    ]
    for delay in delays:
        with pytest.raises(mq.MessageInvalid, match=r"7,?200,?000|so long"):
            topic.send(b"x", **delay)
    assert queue.max_offset == 0


def test_a_subscriber_gets_it_as_any_other(broker: mq.Broker) -> None:
    came = threading.Event()
    times: list[int] = []
    with mq.PushConsumer(broker, "group") as consumer:

        @consumer.subscribe("orders")
        def take(message: mq.MessageExt) -> None:
            times.append(now_ms())
            assert message.body == b"x"
            came.set()

        consumer.start()
        at = now_ms() + 100
        broker.topic("orders").send(b"x", deliver_at_ms=at)
        assert came.wait(PATIENCE)
    assert times[0] >= at


def test_every_way_to_send_puts_it_aside(broker: mq.Broker, queue: mq.Queue) -> None:
    message = mq.Message("orders", b"x" * 5000, delay_ms=HOUR)  # so large that it is compressed
    with (
        mq.Producer(broker, timeout=PATIENCE) as producer,
        mq.Producer(broker, selector=lambda queues, *_: queues[0]) as other,
    ):
        producer.before_send.append(lambda *_: None)
        results = [
            producer.send(message),
            producer.send(message, shard_key="k"),
            producer.send_async(message).result(),
            other.send(message),
            mq.Producer(broker, compress_over=1 << 20).send(message),
        ]
        producer.send_oneway(message)
    for result in results:
        assert result.recall_handle is not None
        assert broker.recall(result.recall_handle) == result.msg_id
    assert len({result.msg_id for result in results}) == 5
    assert queue.max_offset == 0


def test_a_recalled_message_never_comes(broker: mq.Broker) -> None:
    for ahead_ms in AHEAD_MS:
        topic, base = broker.create_topic(f"orders-{ahead_ms}", 1), now_ms() + ahead_ms
        results = [topic.send(b"%d" % number, deliver_at_ms=base + number % 3) for number in range(12)]
        try:
            for result in results[::2]:
                assert result.recall_handle is not None
                assert broker.recall(result.recall_handle) == result.msg_id
        except (AssertionError, mq.NotPermitted):
            if now_ms() < base:
                raise
        else:
            break
    queue = topic.queues[0]
    topic.send(b"last", deliver_at_ms=base + 50)
    found = wait_for(queue, 7)
    assert sorted(message.body for message in found) == sorted([b"1", b"3", b"5", b"7", b"9", b"11", b"last"])
    assert queue.read(7, wait=0.1).messages in ([], ())


def test_a_message_far_ahead_is_recalled_and_again(broker: mq.Broker, queue: mq.Queue) -> None:
    result = broker.topic("orders").send(b"x", delay_ms=HOUR)
    assert result.recall_handle is not None
    for _ in range(3):
        assert broker.recall(result.recall_handle) == result.msg_id
    assert queue.max_offset == 0
    assert broker.query("orders", result.msg_id) == []


@needs(KNOWN_RECALLS)
def test_a_recalled_message_is_found_where_it_waited(broker: mq.Broker) -> None:
    result = broker.topic("orders").send(b"x", delay_ms=HOUR)
    assert result.recall_handle is not None
    broker.recall(result.recall_handle)
    assert broker.message(result.msg_id).body == b"x"


def test_what_is_delivered_cannot_be_recalled(broker: mq.Broker, queue: mq.Queue) -> None:
    result = broker.topic("orders").send(b"x", delay_ms=30)
    assert result.recall_handle is not None
    wait_for(queue, 1)
    for _ in range(2):
        with pytest.raises(mq.NotPermitted, match=r"delivered|recalled"):
            broker.recall(result.recall_handle)


@needs(KNOWN_RECALLS)
def test_a_recall_either_comes_in_time_or_says_that_it_did_not(broker: mq.Broker, queue: mq.Queue) -> None:
    """Recalls race with deliveries: what one says is what the queue has."""
    topic, chance = broker.topic("orders"), random.Random(7)
    recalled, late = set(), set()
    for number in range(60):
        is_early = number % 8 == 0  # Which a slow machine, or disk, does in time too.
        at = now_ms() + (5_000 if is_early else 40)
        result = topic.send(b"x", deliver_at_ms=at)
        if result.recall_handle is None:  # on a busy machine
            late.add(result.msg_id)
            continue
        if not is_early:
            time.sleep(max(0.0, (at - now_ms() + chance.uniform(-6, 3)) / 1000))
        try:
            broker.recall(result.recall_handle)
            recalled.add(result.msg_id)
        except mq.NotPermitted:
            late.add(result.msg_id)
    last = topic.send(b"last", delay_ms=50).msg_id
    found = [message.msg_id for message in wait_for(queue, len(late) + 1)]
    assert recalled
    assert sorted(found) == sorted([*late, last])
    assert queue.max_offset == len(found)


@needs(KNOWN_RECALLS)
def test_a_recall_of_what_never_was(broker: mq.Broker, queue: mq.Queue) -> None:
    topic = broker.topic("orders")
    result = topic.send(b"x", delay_ms=HOUR)
    handle = result.recall_handle
    assert handle is not None
    version, name, broker_name, time_ms, msg_id = base64.urlsafe_b64decode(handle).decode().split(" ")
    assert (version, name, broker_name, msg_id) == ("v1", "orders", home_of(broker), result.msg_id)

    def handle_of(*parts: str) -> str:
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()

    assert handle_of(version, name, broker_name, time_ms, msg_id) == handle
    for unknown in (
        handle_of(version, name, broker_name, time_ms, "0" * 32),
        handle_of(version, "others", broker_name, time_ms, msg_id),
        handle_of(version, name, broker_name, str(int(time_ms) + 1000), msg_id),
    ):
        with pytest.raises(mq.MessageNotFound):
            broker.recall(unknown)
    for wrong in (
        handle_of("v2", name, broker_name, time_ms, msg_id),
        handle_of(version, name, "another", time_ms, msg_id),
        handle_of(version, "SCHEDULE_TOPIC_XXXX", broker_name, time_ms, msg_id),
        handle_of(version, "no topic", broker_name, time_ms, msg_id),
        handle_of(version, name, broker_name, "-5", msg_id),
        handle_of(version, name, broker_name, time_ms),
        "",
        "no handle",
        "\N{SNOWMAN}",
        handle[4:],
        "A" * 100_000,
    ):
        with pytest.raises(ValueError, match="handle"):
            broker.recall(wrong)
    wrong_types: list[Any] = [None, 5, handle.encode()]
    for wrong_type in wrong_types:
        with pytest.raises(TypeError):
            broker.recall(wrong_type)
    plain, level = topic.send(b"x"), topic.send(b"x", delay_level=18)
    assert plain.recall_handle is level.recall_handle is None
    assert broker.recall(handle) == result.msg_id
