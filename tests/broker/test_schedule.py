"""Delayed messages of real brokers: stored as RocketMQ stores them, delivered when due, also after a
restart."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.delay.levels import SCHEDULE_TOPIC, Delivery
from mq.broker.local import LocalBroker
from mq.store.native import ffi, lib
from mq.store.shared.leader_lock import Turn
from tests.broker.fake_delay_store import bodies
from tests.support.arrivals import wait_for
from tests.support.insides import reader_of, schedule_of, store_of

HOUR = 3_600_000
STORES = Path(__file__).parents[1] / "data" / "rocketmq"
QUICK = "40ms 1s 1h"
PATIENCE = 60.0


def open_quick(path: Path, **options: Any) -> LocalBroker:
    return mq.open(path, message_delay_level=QUICK, **options)


def tags_code(broker: LocalBroker, level: int, offset: int) -> int:
    """What the unit of a delayed message says."""
    number = schedule_of(broker).copies.number(SCHEDULE_TOPIC, level - 1, add=False)
    log_offset, size, code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
    assert lib.mq_queue_unit(store_of(broker).log, number, offset, log_offset, size, code) == 0
    return int(code[0])


class TestBroker:
    @pytest.fixture(params=["async", "sync"])
    def flush(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def broker(self, directory: Path, flush: Any) -> Iterator[LocalBroker]:
        with open_quick(directory, flush=flush) as broker:
            yield broker

    def test_deliveries_that_were_not_recorded_are_looked_up(self, directory: Path, flush: Any) -> None:
        with open_quick(directory, flush=flush) as broker, mq.Producer(broker) as producer:
            (queue,) = broker.create_topic("orders", 1).queues
            for number in range(3):
                producer.send(mq.Message("orders", b"%d" % number, delay_level=1))
            wait_for(queue, 3)
        for name in ("mq/delay", "config/delayOffset.json", "config/delayOffset.json.bak"):
            (directory / name).unlink(missing_ok=True)
        with open_quick(directory, flush=flush) as broker, mq.Producer(broker) as producer:
            (queue,) = broker.topic("orders").queues
            producer.send(mq.Message("orders", b"3", delay_level=1))
            assert [message.body for message in wait_for(queue, 4)] == [b"0", b"1", b"2", b"3"]
            assert queue.max_offset == 4

    def test_a_delayed_message_comes_when_it_is_due(self, broker: LocalBroker) -> None:
        (queue,) = broker.create_topic("orders", 1).queues
        with mq.Producer(broker) as producer:
            before = time.time()
            sent = [
                producer.send(mq.Message("orders", b"%d" % level, tags="t", keys="k", delay_level=level))
                for level in (2, 1)
            ]
        assert [result.queue for result in sent] == [queue.message_queue] * 2
        end = queue.max_offset
        if time.time() - before < 0.04:
            assert end == 0
        was_quick = time.time() - before < 0.9
        found = wait_for(queue, 2)
        if not was_quick:  # Then they may be due in another order.
            found.sort(key=lambda message: message.body)
        for result, level, message in zip(reversed(sent), (1, 2), found, strict=True):
            delay_ms = 40 if level == 1 else 1000
            assert time.time() - before >= delay_ms / 1000
            assert (message.body, message.tags, message.keys) == (b"%d" % level, "t", ("k",))
            assert message.msg_id == result.msg_id
            assert message.store_time_ms - message.born_time_ms >= delay_ms
        assert broker.topics() == ["orders"]

    def test_it_is_stored_as_rocketmq_does(self, broker: LocalBroker) -> None:
        broker.create_topic("orders", 4)
        message = mq.Message("orders", b"x", tags="t", properties={"own": "value"}, flag=7, delay_level=3)
        with mq.Producer(broker) as producer:
            result = producer.send(message, queue=mq.MessageQueue("orders", "mq", 2))
        stored = broker.message(result.offset_msg_id)
        assert (stored.topic, stored.queue_id, stored.queue_offset) == (SCHEDULE_TOPIC, 2, 0)
        assert stored.properties == {
            "TAGS": "t",
            "own": "value",
            "DELAY": "3",
            "REAL_TOPIC": "orders",
            "REAL_QID": "2",
            "UNIQ_KEY": result.msg_id,
        }
        assert (stored.flag, stored.reconsume_times) == (7, 0)
        assert tags_code(broker, 3, 0) == stored.store_time_ms + HOUR

    def test_the_delivered_one_is_a_new_record_of_the_same_message(self, broker: LocalBroker) -> None:
        (queue,) = broker.create_topic("orders", 1).queues
        body = b"long enough to be compressed " * 500
        result = broker.topic("orders").send(body, tags="t", keys="k", delay_level=1)
        (message,) = wait_for(queue, 1)
        stored = broker.message(result.offset_msg_id)
        assert message.body == body
        assert message.stored_body == stored.stored_body
        assert message.log_offset > stored.log_offset
        same = ("properties", "flag", "sys_flag", "born_time_ms", "born_host", "reconsume_times", "msg_id")
        assert [getattr(message, name) for name in same] == [getattr(stored, name) for name in same]
        # By its key it is found, by its tag selected: the code of its unit is that of its tag again.
        assert queue.read(0, expression="t").messages == [message]
        assert queue.read(0, expression="u").status is mq.PullStatus.NO_MATCHED_MESSAGE
        assert broker.query("orders", "k") == [message]

    def test_levels_beyond_the_last_are_refused(self, broker: LocalBroker) -> None:
        topic = broker.create_topic("orders", 1)
        with pytest.raises(mq.MessageInvalid, match="levels 1 to 3"):
            topic.send(b"x", delay_level=4)
        with pytest.raises(mq.MessageInvalid, match="18"):
            topic.send(b"x", delay_level=19)
        with pytest.raises(mq.MessageInvalid, match="-1"):
            topic.send(b"x", delay_level=-1)

    def test_properties_that_leave_no_room_for_those_of_a_delay(self, broker: LocalBroker) -> None:
        topic = broker.create_topic("orders", 1)
        for size in range(32_600, 32_700):
            try:
                topic.send(b"x", properties={"p": "v" * size}, delay_level=1)
            except mq.MessageInvalid as error:
                assert not isinstance(error, mq.MessageTooLarge)  # noqa: PT017 - the class is not what is raised
                break
        else:
            pytest.fail("no limit")
        assert size > 32_600

    def test_sent_by_any_way_of_sending(self, broker: LocalBroker) -> None:
        (queue,) = broker.create_topic("orders", 1).queues
        message = mq.Message("orders", b"x", delay_level=1)
        with mq.Producer(broker, timeout=PATIENCE) as producer:
            producer.send(message, shard_key="k")
            producer.send_oneway(message)
            producer.send_async(message).result()
            with pytest.raises(mq.MessageInvalid, match="by itself"):
                producer.send_batch([message])
        assert len(wait_for(queue, 3)) == 3

    def test_many_are_delivered_at_once_and_in_order(self, broker: LocalBroker) -> None:
        (queue,) = broker.create_topic("orders", 1).queues
        for number in range(300):
            broker.topic("orders").send(b"%d" % number, delay_level=2)
        assert bodies(wait_for(queue, 300)) == [b"%d" % number for number in range(300)]


class TestChangedMeanwhile:
    """Topics change while messages wait, before any is delivered."""

    def test_a_deleted_topic_is_made_again_where_sending_would(
        self, directory: Path, delivered: threading.Event
    ) -> None:
        with open_quick(directory) as broker:
            broker.create_topic("orders", 1).send(b"x", delay_level=1)
            broker.delete_topic("orders")
            delivered.set()
            until = time.monotonic() + PATIENCE
            while "orders" not in broker.topics():
                assert time.monotonic() < until
                time.sleep(0.01)
            # Of several queues it went to the first, as it was sent.
            assert bodies(wait_for(broker.topic("orders").queues[0], 1)) == [b"x"]

    def test_where_sending_makes_no_topics_it_is_dropped(
        self, directory: Path, delivered: threading.Event, caplog: pytest.LogCaptureFixture
    ) -> None:
        with open_quick(directory, auto_create_topics=False) as broker:
            broker.create_topic("orders", 1).send(b"gone", delay_level=1)
            broker.create_topic("others", 1).send(b"here", delay_level=1)
            broker.delete_topic("orders")
            delivered.set()
            assert bodies(wait_for(broker.topic("others").queues[0], 1)) == [b"here"]
            assert broker.topics() == ["others"]
        assert "no topic orders" in caplog.text

    def test_a_queue_that_is_gone_gives_way_to_one_that_is_read(
        self, directory: Path, delivered: threading.Event
    ) -> None:
        with open_quick(directory) as broker:
            broker.create_topic("orders", 4)
            with mq.Producer(broker) as producer:
                queue = mq.MessageQueue("orders", "mq", 3)
                producer.send(mq.Message("orders", b"x", delay_level=1), queue=queue)
            broker.create_topic("orders", 2)
            delivered.set()
            assert bodies(wait_for(broker.topic("orders").queues[1], 1)) == [b"x"]


class TestRestart:
    def test_what_waits_in_a_level_that_is_gone_comes_when_it_was_due(self, directory: Path) -> None:
        with mq.open(directory, message_delay_level="1s 1s 1500ms") as broker:
            broker.create_topic("orders", 1)
            sent = mq.Producer(broker).send(mq.Message("orders", b"x", delay_level=3))
            due_ms = tags_code(broker, 3, sent.queue_offset)
        with mq.open(directory, message_delay_level="1ms") as broker:
            (message,) = wait_for(broker.topic("orders").queues[0], 1)
            assert message.store_time_ms > due_ms
            assert message.msg_id == sent.msg_id

    def test_goes_on_exactly_where_it_was(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with open_quick(directory) as broker, monkeypatch.context() as patch:
            (queue,) = broker.create_topic("orders", 1).queues
            broker.topic("orders").send(b"first", delay_level=1)
            wait_for(queue, 1)
            is_idle = threading.Event()
            # However long it takes to close.
            patch.setattr(Delivery, "deliver", lambda *_: is_idle.set())
            schedule_of(broker).wake()
            assert is_idle.wait(PATIENCE)  # The delivery of the first is through.
            broker.topic("orders").send(b"second", delay_level=1)
            broker.close()
        saved = json.loads((directory / "config" / "delayOffset.json").read_text())
        assert saved["offsetTable"] == {"1": 1}
        time.sleep(0.06)
        with open_quick(directory) as broker:
            (queue,) = broker.topic("orders").queues
            assert bodies(wait_for(queue, 2)) == [b"first", b"second"]
        shutil.rmtree(directory / "mq")  # As another machine would find it.
        with open_quick(directory) as broker:
            broker.topic("orders").send(b"third", delay_level=1)
            assert bodies(wait_for(broker.topic("orders").queues[0], 3)) == [b"first", b"second", b"third"]

    def test_queues_made_anew_say_the_same(self, directory: Path) -> None:
        with mq.open(directory) as broker:
            broker.create_topic("orders", 1).send(b"x", delay_level=18)
            code = tags_code(broker, 18, 0)
        shutil.rmtree(directory / "consumequeue")
        shutil.rmtree(directory / "mq")
        with mq.open(directory) as broker:
            assert tags_code(broker, 18, 0) == code

    def test_what_rocketmq_left_waiting_is_delivered(self, directory: Path) -> None:
        """Two delayed messages of RocketMQ's library, long overdue and never delivered."""
        sizes = json.loads((STORES / "kinds" / "sizes.json").read_text())
        shutil.copytree(STORES / "kinds" / "store", directory)
        with mq.open(directory, **sizes) as broker:
            queue = broker.topic("TopicA").queues[1]
            came = wait_for(queue, 7)[-2:]
            assert bodies(came) == [b"delay", b"longest delay"]
            pull = reader_of(broker).pull
            waiting = [
                pull(mq.MessageQueue(SCHEDULE_TOPIC, "mq", queue_id), 0, 1, 1 << 16, None, 0.0).messages[0]
                for queue_id in (2, 17)
            ]
            for message, stored in zip(came, waiting, strict=True):
                assert (message.born_time_ms, message.born_host) == (stored.born_time_ms, stored.born_host)
                kept = {name: value for name, value in message.properties.items() if name != "UNIQ_KEY"}
                assert kept == stored.properties
                # It had no unique id: what was its id before stays its id.
                assert message.msg_id == stored.msg_id


def test_a_clock_set_forward_is_noticed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader is not notified then, but it checks the clock regularly while it sleeps."""
    monkeypatch.setattr("mq.broker.delay.schedule.IDLE", 0.02)
    monkeypatch.setattr(Turn, "take", lambda _turn: False)
    ahead_ms, stopping = 0, threading.Event()
    with open_quick(directory) as broker:
        (queue,) = broker.create_topic("orders", 1).queues
        broker.topic("orders").send(b"x", delay_level=3)
        schedule = schedule_of(broker)

        def clock() -> int:
            return time.time_ns() // 1_000_000 + ahead_ms

        thread = threading.Thread(target=schedule.run, args=(stopping.is_set, clock))
        thread.start()
        assert not queue.read(0, wait=0.1).messages
        ahead_ms = HOUR + 1000
        assert bodies(wait_for(queue, 1)) == [b"x"]
        stopping.set()
        schedule.wake()
        thread.join()


def test_a_read_only_process_delivers_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "deliver", lambda *_: None)
        with open_quick(directory) as broker:
            broker.create_topic("orders", 1).send(b"x", delay_level=1)
    time.sleep(0.05)
    with mq.open(directory, read_only=True) as broker:
        (queue,) = broker.topic("orders").queues
        assert queue.read(0, wait=0.2).status is mq.PullStatus.NO_NEW_MESSAGE


def test_the_option_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="message_delay_level"):
        mq.open(tmp_path / "store", message_delay_level="soon")
    with pytest.raises(TypeError, match="message_delay_level"):
        mq.open(tmp_path / "store", message_delay_level=5)  # type: ignore[call-overload]  # it is wrong
