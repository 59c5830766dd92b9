"""Push and pull consumers do the same with every broker, and with two brokers of one store as with one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.errors import SubscriptionConflict
from tests.contract.differences import (
    BROADCAST_RESET,
    DELAYED_RETRIES,
    EXACT_RECORDS,
    EXCLUSIVE_QUEUES,
    PROMPT_NEWS,
    SUBSCRIPTION_CHECK,
    TOLD_LACK,
    TOPIC_IDENTITY,
    needs,
)
from tests.support import assigned
from tests.support.appending import append_one, queue_named

PATIENCE = 60.0  # seconds; a machine under load takes its time, and that proves nothing


@pytest.fixture
def broker(brokers: tuple[mq.Broker, mq.Broker]) -> mq.Broker:
    return brokers[0]


@pytest.fixture
def other(brokers: tuple[mq.Broker, mq.Broker]) -> mq.Broker:
    return brokers[1]


class Heard:
    """A listener that remembers what it was called with, and then does what it is told to."""

    def __init__(self, act: Callable[[Any], object] = lambda _: None) -> None:
        self.calls: list[Any] = []
        self._act = act
        self._changed = threading.Condition()

    def __call__(self, given: Any) -> None:
        with self._changed:
            self.calls.append(given)
            self._changed.notify_all()
        self._act(given)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in list(self.calls)]

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, PATIENCE), self.calls


Push = Callable[..., mq.PushConsumer]


@pytest.fixture
def push(brokers: tuple[mq.Broker, mq.Broker]) -> Iterator[Push]:
    """Starts a consumer of orders with this listener; it is closed after the test."""
    made = []

    def start(
        listener: Any,
        expression: str = "*",
        *,
        of: mq.Broker = brokers[0],
        group: str = "billing",
        batch_size: int | None = None,
        sql: str | None = None,
        **options: Any,
    ) -> mq.PushConsumer:
        consumer = mq.PushConsumer(of, group, **options)
        consumer.subscribe("orders", expression, sql=sql, listener=listener, batch_size=batch_size)
        made.append(consumer)
        consumer.start()
        return consumer

    yield start
    for consumer in made:
        consumer.close()


def send(broker: mq.Broker, *bodies: str, queue_id: int = 0, **given: Any) -> None:
    for body in bodies:
        message = mq.Message("orders", body.encode(), **given)
        append_one(broker, "orders", queue_id, message, message.body, 0)


def eventually(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.002)


def orders_of(consumer: mq.PushConsumer | mq.PullConsumer) -> set[mq.MessageQueue]:
    """Its queues of orders; a cluster has the group's retry topic from the beginning."""
    return {queue for queue in consumer.assignment() if queue.topic == "orders"}


def numbers(count: int, begin: int = 0) -> list[str]:
    return [f"{number:03}" for number in range(begin, begin + count)]


def test_every_message_is_delivered_once(broker: mq.Broker, other: mq.Broker, push: Push) -> None:
    send(broker, *numbers(50))
    heard = Heard()
    consumer = push(heard, of=other)
    heard.wait(50)
    send(broker, *numbers(50, 50), queue_id=1)
    heard.wait(100)
    consumer.close()
    assert sorted(heard.bodies) == [number.encode() for number in numbers(100)]
    assert broker.group("billing").lag("orders") == 0
    assert broker.group("billing").members() == []
    assert {(call.topic, call.reconsume_times) for call in heard.calls} == {("orders", 0)}


def test_members_share_the_queues(broker: mq.Broker, other: mq.Broker, push: Push) -> None:
    one, two = Heard(), Heard()
    first, second = push(one), push(two, of=other)
    eventually(lambda: len(orders_of(first)) == len(orders_of(second)) == 1)
    assert not orders_of(first) & orders_of(second)
    for queue_id in range(2):
        send(broker, *numbers(50), queue_id=queue_id)
    one.wait(50)
    two.wait(50)
    assert sorted(one.bodies) == sorted(two.bodies) == [number.encode() for number in numbers(50)]
    assert len({(call.queue_id, call.queue_offset) for call in one.calls + two.calls}) == 100


@needs(EXCLUSIVE_QUEUES)
def test_a_leaver_hands_over_without_a_repeat(broker: mq.Broker, other: mq.Broker, push: Push) -> None:
    heard = Heard()
    consumers = [push(heard), push(heard, of=other)]
    for round_ in range(6):
        send(broker, *numbers(100, 100 * round_), queue_id=round_ % 2)
        heard.wait(100 * round_ + 30)
        consumers.pop(0).close()
        consumers.append(push(heard, of=(broker, other)[round_ % 2]))
    heard.wait(600)
    for consumer in consumers:
        consumer.close()
    assert max(Counter(heard.bodies).values()) == 1
    assert len(heard.calls) == 600


def test_every_group_gets_every_message(broker: mq.Broker, other: mq.Broker, push: Push) -> None:
    send(broker, *numbers(20))
    one, two = Heard(), Heard()
    push(one)
    push(two, of=other, group="audit")
    one.wait(20)
    two.wait(20)
    assert sorted(one.bodies) == sorted(two.bodies)


@needs(TOLD_LACK)
def test_broadcast_messages_reach_every_member(
    broker: mq.Broker, other: mq.Broker, push: Push, tmp_path: Path
) -> None:
    send(broker, *numbers(20))
    one, two = Heard(), Heard()
    for heard, of in ((one, broker), (two, other)):
        push(heard, of=of, model="broadcasting", offsets_dir=tmp_path / "offsets")
    one.wait(20)
    two.wait(20)
    assert sorted(one.bodies) == sorted(two.bodies)
    assert broker.group("billing").offsets("orders") == {}


@needs(TOPIC_IDENTITY)
def test_a_broadcasting_consumer_at_work_starts_a_topic_made_again_at_its_beginning(
    broker: mq.Broker, other: mq.Broker, push: Push
) -> None:
    send(broker, *numbers(20))
    heard = Heard()
    push(heard, of=other, model="broadcasting", consume_from="first")
    heard.wait(20)
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    send(broker, *numbers(30, 100))
    eventually(lambda: set(heard.bodies[20:]) == {number.encode() for number in numbers(30, 100)})


@needs(TOPIC_IDENTITY)
def test_a_broadcasting_consumer_that_comes_back_begins_a_topic_made_again_where_it_is_told_to(
    broker: mq.Broker, other: mq.Broker, push: Push
) -> None:
    send(broker, *numbers(20))
    heard = Heard()
    consumer = push(heard, model="broadcasting")
    heard.wait(20)
    consumer.close()
    broker.delete_topic("orders")
    broker.create_topic("orders", 2)
    send(broker, *numbers(30, 100))
    again = Heard()
    push(again, of=other, model="broadcasting")
    again.wait(30)
    assert sorted(again.bodies) == [number.encode() for number in numbers(30, 100)]


@needs(BROADCAST_RESET)
def test_a_reset_of_a_broadcasting_group_is_each_consumers(
    broker: mq.Broker, other: mq.Broker, push: Push
) -> None:
    send(broker, *numbers(20))
    all_heard = Heard(), Heard()
    for heard, of in zip(all_heard, (broker, other), strict=True):
        push(heard, of=of, model="broadcasting")
        heard.wait(20)
    broker.consumer_groups.reset("billing", {queue_named(broker, "orders", 0): 15})
    send(broker, *numbers(1, 20))
    again = {b"%03d" % each for each in range(15, 21)}
    eventually(lambda: [set(heard.bodies[20:]) for heard in all_heard] == [again, again])


@pytest.mark.parametrize(
    "filtered", [{"expression": "paid || refunded"}, {"sql": "amount > 10 AND TAGS IS NOT NULL"}]
)
def test_a_filter_selects_and_leaves_no_lag(broker: mq.Broker, push: Push, filtered: dict[str, str]) -> None:
    for number in numbers(90):
        paid = int(number) % 9 == 0
        amount = {"amount": "11" if paid else "7"}
        send(broker, number, tags="paid" if paid else "open", properties=amount)
    heard = Heard()
    push(heard, **filtered)
    heard.wait(10)
    eventually(lambda: broker.group("billing").lag("orders") == 0)
    assert sorted(heard.bodies) == [b"%03d" % number for number in range(0, 90, 9)]


def test_lists_are_of_one_queue_and_in_order(broker: mq.Broker, push: Push) -> None:
    for queue_id in range(2):
        send(broker, *numbers(40), queue_id=queue_id)
    heard = Heard()
    push(heard, batch_size=8)
    eventually(lambda: sum(map(len, list(heard.calls))) == 80)
    for call in heard.calls:
        assert 1 <= len(call) <= 8
        assert len({message.queue_id for message in call}) == 1
        offsets = [message.queue_offset for message in call]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


def test_what_failed_comes_again_as_it_was_sent(broker: mq.Broker, push: Push) -> None:
    def fail_first(message: mq.MessageExt) -> None:
        if message.reconsume_times == 0 and message.body == b"001":
            raise mq.Retry(delay_level=1)

    send(broker, *numbers(3), tags="paid", keys="k", properties={"p": "q"})
    heard = Heard(fail_first)
    push(heard, "paid")
    heard.wait(4)
    first, again = (message for message in heard.calls if message.body == b"001")
    assert (again.body, again.topic, again.reconsume_times) == (b"001", "orders", 1)
    assert (again.tags, again.keys, again.properties["p"]) == ("paid", ("k",), "q")
    assert again.msg_id == first.msg_id
    assert again.born_time_ms == first.born_time_ms
    assert again.store_time_ms >= first.store_time_ms + 1000
    assert again.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
    eventually(lambda: broker.group("billing").lag("%RETRY%billing") == 0)
    eventually(lambda: broker.group("billing").lag("orders") == 0)


def test_what_fails_for_the_last_time_is_a_dead_letter(broker: mq.Broker, push: Push) -> None:
    def fail(message: mq.MessageExt) -> None:
        if message.body == b"001":
            raise ValueError("no such order")

    send(broker, *numbers(3), tags="paid")
    heard = Heard(fail)
    push(heard, max_reconsume_times=0)
    eventually(lambda: broker.group("billing").lag("orders") == 0)
    (dead,) = broker.topic("%DLQ%billing").queues[0].read(0).messages
    (original,) = (message for message in heard.calls if message.body == b"001")
    assert (dead.body, dead.tags, dead.msg_id) == (b"001", "paid", original.msg_id)
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == original.offset_msg_id
    assert len(heard.calls) == 3


@needs(EXACT_RECORDS)
def test_a_dead_letter_says_where_it_comes_from(broker: mq.Broker, push: Push) -> None:
    def fail(_: mq.MessageExt) -> None:
        raise ValueError("no such order")

    send(broker, "x")
    push(Heard(fail), max_reconsume_times=0)
    eventually(lambda: broker.group("billing").lag("orders") == 0)
    (original,) = broker.topic("orders").queues[0].read(0).messages
    (dead,) = broker.topic("%DLQ%billing").queues[0].read(0).messages
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == original.offset_msg_id


def test_in_order_a_failure_blocks_its_queue_and_no_other(broker: mq.Broker, push: Push) -> None:
    failures = iter([True, True, False])

    def fail_twice(message: mq.MessageExt) -> None:
        if (message.queue_id, message.queue_offset) == (0, 1) and next(failures):
            raise mq.Retry(suspend_ms=20)

    for queue_id in range(2):
        send(broker, *numbers(4), queue_id=queue_id)
    heard = Heard(fail_twice)
    push(heard, ordered=True)
    heard.wait(10)
    offsets = [
        [message.queue_offset for message in heard.calls if message.queue_id == queue_id]
        for queue_id in range(2)
    ]
    assert offsets == [[0, 1, 1, 1, 2, 3], [0, 1, 2, 3]]
    eventually(lambda: broker.group("billing").lag("orders") == 0)


@needs(PROMPT_NEWS)
def test_a_group_at_work_can_be_reset(broker: mq.Broker, other: mq.Broker, push: Push) -> None:
    send(broker, *numbers(5))
    heard = Heard()
    push(heard)
    heard.wait(5)
    eventually(lambda: other.group("billing").lag("orders") == 0)
    other.group("billing").reset("orders", to="earliest")
    heard.wait(10)
    assert Counter(heard.bodies) == dict.fromkeys((number.encode() for number in numbers(5)), 2)


@needs(SUBSCRIPTION_CHECK)
def test_a_member_that_subscribes_otherwise_is_refused(
    broker: mq.Broker, other: mq.Broker, push: Push
) -> None:
    push(Heard())
    consumer = mq.PushConsumer(other, "billing")
    with pytest.raises(SubscriptionConflict, match="paid"):
        consumer.subscribe("orders", "paid", listener=Heard())
    with pytest.raises(SubscriptionConflict):
        push(Heard(), of=other, ordered=True)


@needs(PROMPT_NEWS)
def test_a_topic_made_later_is_consumed(broker: mq.Broker, other: mq.Broker) -> None:
    heard = Heard()
    with mq.PushConsumer(broker, "billing") as consumer:
        consumer.subscribe("later", listener=heard)
        consumer.start()
        other.create_topic("later", 3)
        message = mq.Message("later", b"x")
        append_one(other, "later", 2, message, message.body, 0)
        heard.wait(1)
    assert heard.bodies == [b"x"]


def test_polls_hand_out_every_message_once(broker: mq.Broker, other: mq.Broker) -> None:
    for queue_id in range(2):
        send(broker, *numbers(40), queue_id=queue_id)
    polled: list[mq.MessageExt] = []
    with mq.PullConsumer(other, "billing") as consumer:
        consumer.subscribe("orders")
        while len(polled) < 80:
            polled += consumer.poll(PATIENCE, count_max=7)
    assert len({(message.queue_id, message.queue_offset) for message in polled}) == 80
    assert broker.group("billing").lag("orders") == 0


def test_a_poll_waits_for_what_comes(broker: mq.Broker, other: mq.Broker) -> None:
    with mq.PullConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders", "paid")
        assert consumer.poll(0) == []
        later = threading.Timer(0.05, send, (other, "x"), {"tags": "paid", "queue_id": 1})
        later.start()
        (message,) = consumer.poll(PATIENCE)
        later.join()
    assert message.body == b"x"


def test_pull_consumers_share_hand_over_and_lose_nothing(broker: mq.Broker, other: mq.Broker) -> None:
    polled: list[mq.MessageExt] = []
    consumers = [mq.PullConsumer(one, "billing") for one in (broker, other)]
    for consumer in consumers:
        consumer.subscribe("orders")
        consumer.poll(0)

    def shared() -> bool:
        for consumer in consumers:
            polled.extend(consumer.poll(0))
        return all(len(orders_of(consumer)) == 1 for consumer in consumers)

    eventually(shared)
    for queue_id in range(2):
        send(broker, *numbers(10), queue_id=queue_id)
    while len(polled) < 10:
        for consumer in consumers:
            polled += consumer.poll(0.01, count_max=3)
    consumers[0].close()
    while len(polled) < 20:
        polled += consumers[1].poll(PATIENCE)
    consumers[1].close()
    assert len({(message.queue_id, message.queue_offset) for message in polled}) == len(polled) == 20


def test_a_seek_reads_again_and_commits_there(broker: mq.Broker, other: mq.Broker) -> None:
    send(broker, *numbers(6))
    queue = broker.topic("orders").queues[0]
    with mq.PullConsumer(broker, "billing", auto_commit=False) as consumer:
        consumer.subscribe("orders")
        assert len(consumer.poll(PATIENCE)) == 6
        consumer.commit()
        eventually(lambda: assigned.committed(other, "billing", queue.message_queue) == 6)
        consumer.seek(queue, 2)
        assert [message.queue_offset for message in consumer.poll(PATIENCE)] == [2, 3, 4, 5]


def test_the_first_commit_of_one_assigned_queue_is_none_of_another(broker: mq.Broker) -> None:
    """Of a group that is new, and that this commit makes."""
    queues = broker.topic("orders").queues
    for queue_id in range(2):
        send(broker, *numbers(3), queue_id=queue_id)
    eventually(lambda: [queue.max_offset for queue in queues] == [3, 3])
    began = [0, 0]
    with mq.PullConsumer(broker, "billing", auto_commit=False) as consumer:
        consumer.assign(queues)
        for end in (4, 5):
            for queue_id in range(2):
                send(broker, "new", queue_id=queue_id)
                while began[queue_id] < end:
                    polled = consumer.poll(PATIENCE)
                    for message in polled:
                        assert message.queue_offset == began[message.queue_id]
                        began[message.queue_id] += 1
                    consumer.commit()
        eventually(lambda: [consumer.committed(queue) for queue in queues] == [5, 5])


@needs(TOLD_LACK)
def test_assigned_queues_need_no_members(broker: mq.Broker, other: mq.Broker) -> None:
    for queue_id in range(2):
        send(broker, *numbers(5), queue_id=queue_id)
    queue = broker.topic("orders").queues[1].message_queue
    with mq.PullConsumer(other, "billing") as consumer:
        consumer.assign([queue])
        assert [message.queue_id for message in consumer.poll(PATIENCE)] == [1] * 5
        assert broker.group("billing").members() == []
    assert broker.group("billing").offsets("orders") == {queue: 5}


def test_a_paused_queue_is_left_alone(broker: mq.Broker) -> None:
    for queue_id in range(2):
        send(broker, *numbers(3), queue_id=queue_id)
    queue = broker.topic("orders").queues[0]
    with mq.PullConsumer(broker, "billing") as consumer:
        consumer.subscribe("orders")
        consumer.pause([queue])
        polled = [*consumer.poll(PATIENCE), *consumer.poll(0.01)]
        assert [message.queue_id for message in polled] == [1] * 3
        consumer.resume([queue])
        assert [message.queue_id for message in consumer.poll(PATIENCE)] == [0] * 3


@needs(DELAYED_RETRIES)
def test_what_failed_is_not_done_until_it_was_consumed(broker: mq.Broker, push: Push) -> None:
    again = threading.Event()

    def fail_first(message: mq.MessageExt) -> None:
        if message.reconsume_times:
            again.wait(PATIENCE)
        elif message.body != b"000":
            raise mq.Retry(delay_level=1 if message.body == b"001" else 18)

    group = broker.group("billing")
    send(broker, *numbers(4))
    heard = Heard(fail_first)
    push(heard, max_reconsume_times=1)
    eventually(lambda: [state.lag for state in group.states("orders") if state.lag] == [])
    # One of them has come again by now, or not, or counts twice while it does: it is not done in any case.
    assert group.lag("orders") >= 3
    heard.wait(5)
    eventually(lambda: (group.retrying(), group.lag("orders")) == ({"orders": 3}, 3))
    again.set()
    eventually(lambda: group.lag("orders") == 2)
    assert group.retrying() == {"orders": 2}
