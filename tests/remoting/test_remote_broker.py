"""The broker object of a cluster, against real servers: two brokers of RocketMQ 5.3, and one of 4.9."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mq
from tests.support.cluster.shared import attached, unique_name
from tests.support.eventually import eventually

pytestmark = pytest.mark.rounds

PATIENCE = 60.0  # seconds
TIMEOUT = 30.0  # A broker on a machine under load may take longer than the default limit of a request.
COMMIT, UNKNOWN = mq.TransactionState.COMMIT, mq.TransactionState.UNKNOWN


@pytest.fixture(params=["5.3", "4.9"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker(version: str) -> Iterator[mq.Broker]:
    with mq.open("rocketmq://" + attached(version).name_server, timeout=TIMEOUT) as opened:
        yield opened


@pytest.fixture
def topic(broker: mq.Broker) -> str:
    name = unique_name("orders")
    broker.create_topic(name, 2)
    return name


def wait_until(what: Callable[[], bool], seconds: float = PATIENCE) -> None:
    eventually(what, lambda: "it did not come true", seconds)


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def send(broker: mq.Broker, topic: str, count: int, **fields: str) -> list[mq.SendResult]:
    with mq.Producer(broker, timeout=TIMEOUT) as producer:
        return [producer.send(mq.Message(topic, body, **fields)) for body in bodies(count)]  # type: ignore[arg-type]  # of text values alone


def wait_for_end(broker: mq.Broker, topic: str, count: int) -> None:
    """RocketMQ puts a message into its queue some ms after it acknowledged it."""
    wait_until(lambda: sum(queue.max_offset for queue in broker.topic(topic).queues) == count)


class Consumed:
    """A consumer, and what it got."""

    def __init__(self, broker: mq.Broker, topic: str, group: str, **options: object) -> None:
        self.messages: list[mq.MessageExt] = []
        self.consumer = mq.PushConsumer(broker, group, **options)  # type: ignore[arg-type]  # passed on
        self.consumer.subscribe(topic, listener=self.messages.append)
        self.consumer.start()

    def __enter__(self) -> Consumed:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def bodies(self) -> list[bytes]:
        return sorted((message.body for message in self.messages), key=int)

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.messages) >= count)


def test_what_is_sent_is_read_by_offset_by_id_and_by_key(broker: mq.Broker, topic: str) -> None:
    results = send(broker, topic, 20, keys="k", tags="paid")
    assert {result.status for result in results} == {mq.SendStatus.SEND_OK}
    wait_for_end(broker, topic, 20)
    found = all_of(broker, topic)
    assert sorted(int(message.body) for message in found) == list(range(20))
    assert {message.msg_id for message in found} == {result.msg_id for result in results}
    assert {message.offset_msg_id for message in found} == {result.offset_msg_id for result in results}
    assert broker.message(results[3].offset_msg_id).body == b"3"
    wait_until(lambda: len(broker.query(topic, "k")) == 20)
    assert broker.message(results[4].msg_id).body == b"4"
    with pytest.raises(mq.MessageNotFound, match=r"^no message has the id '0{32}'"):
        broker.message("0" * 32)


def test_a_batch_lies_side_by_side(broker: mq.Broker, topic: str) -> None:
    with mq.Producer(broker, timeout=TIMEOUT) as producer:
        result = producer.send_batch([mq.Message(topic, body) for body in bodies(50)])
    wait_for_end(broker, topic, 50)
    (queue,) = [each for each in broker.topic(topic).queues if each.message_queue == result.queue]
    found = queue.read(result.queue_offset, count_max=32).messages
    assert found
    assert [message.body for message in found] == bodies(50)[: len(found)]
    assert [message.msg_id for message in found] == list(result.msg_ids)[: len(found)]


def test_a_large_body_travels_compressed(broker: mq.Broker, topic: str) -> None:
    with mq.Producer(broker, timeout=TIMEOUT) as producer:
        result = producer.send(mq.Message(topic, b"x" * 100_000))
    message = broker.message(result.offset_msg_id)
    assert message.body == b"x" * 100_000
    assert message.store_size < 10_000


def test_members_share_the_queues_and_lose_nothing(broker: mq.Broker, topic: str) -> None:
    group = unique_name("billing")
    with Consumed(broker, topic, group) as first, Consumed(broker, topic, group) as second:
        wait_until(lambda: bool(first.consumer.assignment()) and bool(second.consumer.assignment()))
        wait_until(lambda: not first.consumer.assignment() & second.consumer.assignment())
        send(broker, topic, 100)
        wait_until(lambda: len(first.messages) + len(second.messages) >= 100)
        assert sorted(first.bodies() + second.bodies(), key=int) == bodies(100)
        assert first.messages
        assert second.messages
        assert {each.client_id for each in broker.group(group).members()} == {
            first.consumer.client_id,
            second.consumer.client_id,
        }
    wait_until(lambda: broker.group(group).lag(topic) == 0)


def test_what_failed_comes_again_and_ends_as_a_dead_letter(broker: mq.Broker, topic: str) -> None:
    group, attempts = unique_name("billing"), list[int]()

    def fail(message: mq.MessageExt) -> None:
        attempts.append(message.reconsume_times)
        raise mq.Retry(delay_level=1)

    consumer = mq.PushConsumer(broker, group, max_reconsume_times=2)
    consumer.subscribe(topic, listener=fail)
    consumer.start()
    try:
        send(broker, topic, 1)
        wait_until(lambda: len(attempts) == 3, 120.0)
        wait_until(lambda: f"%DLQ%{group}" in all_topics(broker, group))
    finally:
        consumer.close()
    assert attempts == [0, 1, 2]
    (queue,) = [queue for queue in broker.readable(f"%DLQ%{group}") if broker.max_offset(queue)]
    assert mq.Queue(broker, queue).read(0).messages[0].body == b"0"


def all_topics(broker: mq.Broker, group: str) -> list[str]:
    try:
        return [queue.topic for queue in broker.readable(f"%DLQ%{group}")]
    except mq.TopicNotFound:
        return []


def test_a_queue_is_consumed_in_order(broker: mq.Broker, topic: str) -> None:
    with mq.Producer(broker, timeout=TIMEOUT) as producer:
        for number in range(100):
            producer.send(mq.Message(topic, b"%d" % number), shard_key=number % 3)
    with Consumed(broker, topic, unique_name("ledger"), ordered=True) as consumed:
        consumed.wait_for(100)
    for shard in range(3):
        mine = [int(each.body) for each in consumed.messages if int(each.body) % 3 == shard]
        assert mine == sorted(mine)
    assert consumed.bodies() == bodies(100)


def test_a_remote_broker_selects_by_tags(broker: mq.Broker, topic: str) -> None:
    with mq.Producer(broker, timeout=TIMEOUT) as producer:
        for number in range(20):
            tag = "even" if number % 2 == 0 else "odd"
            producer.send(mq.Message(topic, b"%d" % number, tags=tag))
    consumer = mq.PushConsumer(broker, unique_name("tags"))
    got: list[bytes] = []
    consumer.subscribe(topic, "even", listener=lambda message: got.append(message.body))
    consumer.start()
    wait_until(lambda: len(got) == 10)
    consumer.close()
    assert sorted(map(int, got)) == list(range(0, 20, 2))


def test_sql_selects_on_the_brokers(broker: mq.Broker, topic: str) -> None:
    def send_priced(first: int) -> None:
        with mq.Producer(broker, timeout=TIMEOUT) as producer:
            for number in range(first, first + 20):
                region = "EU" if number % 2 else "US"
                fields = {"price": str(number), "region": region}
                producer.send(mq.Message(topic, b"%d" % number, properties=fields))

    group, got = unique_name("sql"), list[bytes]()
    send_priced(0)
    with mq.PushConsumer(broker, group) as consumer:
        consumer.subscribe(
            topic, sql="price > 10 AND region = 'EU'", listener=lambda message: got.append(message.body)
        )
        consumer.start()
        wait_until(lambda: len(got) == 5)
        send_priced(20)
        wait_until(lambda: len(got) == 15)
        wait_until(lambda: broker.group(group).lag(topic) == 0)
    assert sorted(map(int, got)) == list(range(11, 40, 2))
    with mq.PullConsumer(broker, unique_name("sql")) as polling:
        polling.subscribe(topic, sql="price BETWEEN 3 AND 6")
        assert sorted(map(int, polled(polling, 4))) == [3, 4, 5, 6]
    wrong = mq.PushConsumer(broker, unique_name("sql"))
    with pytest.raises(mq.FilterSyntaxError):
        wrong.subscribe(topic, sql="price >", listener=print)


def test_queues_are_added_and_taken_away_while_a_group_consumes(broker: mq.Broker, topic: str) -> None:
    group = unique_name("billing")
    with Consumed(broker, topic, group) as first, Consumed(broker, topic, group) as second:

        def assigned() -> set[mq.MessageQueue]:
            both = first.consumer.assignment() | second.consumer.assignment()
            return {queue for queue in both if queue.topic == topic}

        def has_come(count: int, queue_count: int) -> None:
            # A message may come twice when queues change hands.
            wait_until(lambda: len({each.body for each in first.messages + second.messages}) == count)
            wait_until(lambda: len(assigned()) == queue_count)

        brokers = len({queue.broker_name for queue in broker.readable(topic)})
        with mq.Producer(broker, timeout=TIMEOUT) as producer:
            for number in range(120):
                if number == 40:
                    broker.create_topic(topic, 5)
                if number == 80:
                    has_come(80, 5 * brokers)
                    # Nothing more goes to the others, and they are still read.
                    broker.create_topic(topic, read_queue_count=5, write_queue_count=1)
                used = producer.send(mq.Message(topic, b"%d" % number)).queue
                assert used.queue_id < (2 if number < 40 else 5 if number < 80 else 1)
        has_come(120, 5 * brokers)
        used_ids = {message.queue_id for message in first.messages + second.messages}
    assert used_ids == set(range(5))


def test_broadcast_reaches_every_consumer_and_its_offsets_stay(
    broker: mq.Broker, topic: str, tmp_path: Path
) -> None:
    group, options = unique_name("news"), {"model": "broadcasting", "offsets_dir": tmp_path}
    send(broker, topic, 10)
    with Consumed(broker, topic, group, client_id="one", **options) as one:
        one.wait_for(10)
    with (
        Consumed(broker, topic, group, client_id="one", **options) as again,
        Consumed(broker, topic, group, client_id="two", **options) as two,
    ):
        two.wait_for(10)
        send(broker, topic, 5)
        again.wait_for(5)
        two.wait_for(15)
    assert len(again.messages) == 5


def test_a_transaction_is_committed_rolled_back_and_checked(broker: mq.Broker, topic: str) -> None:
    asked: list[str] = []

    def check(message: mq.MessageExt) -> mq.TransactionState:
        asked.append(message.msg_id)
        return COMMIT

    with mq.TransactionProducer(broker, unique_name("tx"), check) as producer:
        producer.send(mq.Message(topic, b"1"), lambda *_: COMMIT)
        producer.send(mq.Message(topic, b"2"), lambda *_: mq.TransactionState.ROLLBACK)
        undecided = producer.send(mq.Message(topic, b"3"), lambda *_: UNKNOWN)
        wait_until(lambda: stored(broker, topic) == [b"1", b"3"], 180.0)
    assert undecided.msg_id in asked


def stored(broker: mq.Broker, topic: str) -> list[bytes]:
    return sorted(message.body for message in all_of(broker, topic))


def all_of(broker: mq.Broker, topic: str) -> list[mq.MessageExt]:
    """Every message; a broker gives fewer at a time than it is asked for where it takes them from disk."""
    found: list[mq.MessageExt] = []
    for queue in broker.topic(topic).queues:
        offset, end = queue.min_offset, queue.max_offset
        while offset < end:
            read = queue.read(offset)
            found += read.messages
            offset = read.next_offset
    return found


def test_a_delayed_message_comes_late(broker: mq.Broker, topic: str) -> None:
    with Consumed(broker, topic, unique_name("late")) as consumed:
        started = time.monotonic()
        with mq.Producer(broker, timeout=TIMEOUT) as producer:
            producer.send(mq.Message(topic, b"1", delay_level=2))
        consumed.wait_for(1)
    assert time.monotonic() - started > 1.5  # level 2 of this cluster is 2 s


@pytest.mark.parametrize("version", ["5.3"])
def test_a_timed_message_is_recalled(broker: mq.Broker, topic: str) -> None:
    with mq.Producer(broker, timeout=TIMEOUT) as producer:
        result = producer.send(mq.Message(topic, b"1", delay_ms=60_000))
    assert result.recall_handle is not None
    assert broker.recall(result.recall_handle) == result.msg_id


def test_a_pull_consumer_polls_seeks_and_commits(broker: mq.Broker, topic: str) -> None:
    group = unique_name("pulled")
    send(broker, topic, 30)
    with mq.PullConsumer(broker, group) as consumer:
        consumer.subscribe(topic)
        got = polled(consumer, 30)
        assert sorted(map(int, got)) == list(range(30))
        for queue in consumer.assignment():
            consumer.seek(queue, 0)
        assert sorted(map(int, polled(consumer, 30))) == list(range(30))
        consumer.commit()
    assert sum(broker.group(group).offsets(topic).values()) == 30


def polled(consumer: mq.PullConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []

    def has_all() -> bool:
        got.extend(message.body for message in consumer.poll(1.0))
        return len(got) >= count

    wait_until(has_all)
    return got


def test_a_group_is_reset_while_it_consumes(broker: mq.Broker, topic: str) -> None:
    group = unique_name("again")
    send(broker, topic, 10)
    with Consumed(broker, topic, group) as consumed:
        consumed.wait_for(10)
        wait_until(lambda: broker.group(group).lag(topic) == 0)
        broker.group(group).reset(topic, to="earliest")
        consumed.wait_for(20)


def test_a_group_that_was_never_used_is_reset(broker: mq.Broker, topic: str) -> None:
    group = broker.group(unique_name("new"))
    send(broker, topic, 10)
    wait_for_end(broker, topic, 10)
    group.reset(topic, to="latest")
    assert sum(group.offsets(topic).values()) == 10


def test_a_group_begins_at_the_end_where_it_is_told_to(broker: mq.Broker, topic: str) -> None:
    send(broker, topic, 10)
    wait_for_end(broker, topic, 10)
    ends = {
        (queue.message_queue.broker_name, queue.queue_id): queue.max_offset
        for queue in broker.topic(topic).queues
    }
    with Consumed(broker, topic, unique_name("new"), consume_from="last") as consumed:

        def comes() -> bool:
            send(broker, topic, 1)
            return bool(consumed.messages)

        # What is sent before the consumer has asked for the end of its queue is not for it.
        wait_until(comes)
    assert all(
        message.queue_offset >= ends[message.broker_name, message.queue_id] for message in consumed.messages
    )


def test_names_are_in_a_namespace(version: str) -> None:
    address = "rocketmq://" + attached(version).name_server
    namespace = unique_name("shop")
    with (
        mq.open(address, namespace=namespace, timeout=TIMEOUT) as inside,
        mq.open(address, timeout=TIMEOUT) as outside,
    ):
        inside.create_topic("orders", 1)
        assert inside.topics() == ["orders"]
        assert f"{namespace}%orders" in outside.topics()
        send(inside, "orders", 3)
        with Consumed(inside, "orders", "billing") as consumed:
            consumed.wait_for(3)
        assert {message.topic for message in consumed.messages} == {"orders"}
        assert {message.topic for message in all_of(inside, "orders")} == {"orders"}
        assert "billing" in inside.groups()


def test_a_deleted_topic_is_gone(broker: mq.Broker, topic: str) -> None:
    send(broker, topic, 1)
    broker.delete_topic(topic)
    assert topic not in broker.topics()
    with pytest.raises(mq.TopicNotFound):
        broker.topic(topic)


def test_threads_send_side_by_side(broker: mq.Broker, topic: str) -> None:
    results: list[mq.SendResult] = []
    with mq.Producer(broker, timeout=TIMEOUT) as producer:

        def work() -> None:
            results.extend(producer.send(mq.Message(topic, b"x")) for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(8)]
        each: Callable[[threading.Thread], None]
        for each in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                each(thread)
    assert len({result.msg_id for result in results}) == 400
    assert len({(result.queue, result.queue_offset) for result in results}) == 400


def test_what_a_directory_alone_can_do_is_one_clear_error(broker: mq.Broker, topic: str) -> None:
    with pytest.raises(mq.NotPermitted, match="needs the broker of a directory"):
        mq.Producer(broker, dedup_window=60.0)
    with pytest.raises(mq.NotPermitted, match="needs the broker of a directory"):
        broker.topic(topic).queues[0].read_arrow(0)


def test_a_cluster_that_is_not_there_is_one_error_in_time() -> None:
    started = time.monotonic()
    with mq.open("rocketmq://127.0.0.1:1", timeout=1.0) as broker, pytest.raises(mq.RemotingError) as raised:
        broker.topics()
    assert "127.0.0.1:1" in str(raised.value)
    assert time.monotonic() - started < 10.0


@pytest.mark.parametrize("version", ["5.3"])  # A broker of 4.9 never marks a topic as ordered.
def test_what_is_not_given_of_a_topic_stays_as_it_is(broker: mq.Broker) -> None:
    name, plain = unique_name("ledger"), unique_name("ledger")
    broker.create_topic(name, 1, ordered=True)
    broker.create_topic(plain, 1)
    broker.create_topic(name, 2)
    assert isinstance(broker, mq.RemoteBroker)
    settings = broker._topics._settings(broker.readable(name)[0].broker_name, name)
    assert settings is not None
    assert (settings.order, settings.read_queue_nums) == (True, 2)
