"""Messages that are stored once, and keys that a group handles once: for every broker of a directory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import mq
from mq.api.local import directory
from mq.client.once import Handling
from tests.contract.conftest import Open
from tests.support import assigned
from tests.support.insides import set_dedup_clock

ID = "C0A80001000118B4AAC2000000000001"
WINDOW = 3600.0


@pytest.fixture(params=["local", "local-sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def body_count(broker: mq.Broker, topic: str = "orders") -> int:
    return sum(queue.max_offset for queue in broker.topic(topic).queues)


def place(result: mq.SendResult) -> tuple[Any, ...]:
    return result.status, result.msg_id, result.offset_msg_id, result.queue, result.queue_offset


@pytest.fixture
def producer(broker: mq.Broker) -> mq.Producer:
    broker.create_topic("orders", 4)
    # Longer than the usual 3 s, in which a slow machine may stand still.
    return mq.Producer(broker, dedup_window=WINDOW, timeout=60.0)


def order(body: bytes = b"one", **options: Any) -> mq.Message:
    return mq.Message("orders", body, **options)


def test_the_second_send_of_a_key_is_answered_with_the_first(
    broker: mq.Broker, producer: mq.Producer
) -> None:
    first = producer.send(order(b"one"), dedup_key="order-1")
    second = producer.send(order(b"other"), dedup_key="order-1")
    assert place(second) == place(first)
    assert second == first
    assert hash(second) == hash(first)
    assert producer.send(order(b"one"), dedup_key="order-2") != first
    assert body_count(broker) == 2
    assert broker.message(first.msg_id).body == b"one"


def test_the_key_may_be_the_messages_own(broker: mq.Broker, producer: mq.Producer) -> None:
    paid = order(b"paid", keys=("a", "b"), dedup_key="order-1", tags="t", properties={"p": "1"})
    assert (paid.dedup_key, paid.keys, paid.tags, paid.properties["p"]) == (
        "order-1",
        ("a", "b", "order-1"),
        "t",
        "1",
    )
    assert order(keys="order-1", dedup_key="order-1").keys == ("order-1",)
    first = producer.send(paid)
    for again in (
        producer.send(paid),
        producer.send(order(b"other", dedup_key="order-1")),
        producer.send(order(b"other"), dedup_key="order-1"),
        producer.send_async(order(b"other", dedup_key="order-1")).result(60),
    ):
        assert place(again) == place(first)
    producer.send_oneway(order(b"other", dedup_key="order-1"))
    assert body_count(broker) == 1
    assert broker.message(first.msg_id).dedup_key == "order-1"
    assert producer.send(order(dedup_key="order-1"), dedup_key="order-2").msg_id != first.msg_id
    with pytest.raises(mq.MessageInvalid, match="cannot be part of a batch"):
        producer.send_batch([order(), order(dedup_key="order-3")])
    assert body_count(broker) == 2


def test_a_producer_without_a_window_stores_what_has_a_key_as_it_is(broker: mq.Broker) -> None:
    broker.create_topic("orders", 1)
    with mq.Producer(broker) as producer:
        for _ in range(2):
            producer.send(order(dedup_key="order-1"))
        producer.send_batch([order(dedup_key="order-1"), order()])
    assert body_count(broker) == 4
    assert len(broker.query("orders", "order-1")) == 3


def test_what_others_stored_under_a_key_counts(broker: mq.Broker, producer: mq.Producer) -> None:
    """Either way, a send with a key does not store a message that is there."""
    others = mq.Producer(broker)
    with mq.TransactionProducer(broker, "payers", lambda _: mq.TransactionState.UNKNOWN) as transactions:
        ways: list[Callable[[mq.Message], Any]] = [
            others.send,
            lambda message: others.send_async(message).result(60),
            others.send_oneway,
            lambda message: others.send_batch([message, order()]),
            lambda message: transactions.begin(message).commit(),
        ]
        for number, send in enumerate(ways):
            producer.send(order(dedup_key=f"before-{number}"))
            key = f"order-{number}"
            send(order(b"theirs", dedup_key=key))
            broker.flush()
            [theirs] = broker.query("orders", key)
            for _ in range(2):
                assert producer.send(order(b"ours"), dedup_key=key).msg_id == theirs.msg_id
            send(order(b"again", dedup_key=key))
            broker.flush()
            assert len(broker.query("orders", key)) == 2
            assert producer.send(order(b"ours", dedup_key=key)).msg_id == theirs.msg_id
        first = others.send(order(b"theirs", dedup_key="late", delay_ms=600_000))
        assert producer.send(order(b"ours"), dedup_key="late").msg_id == first.msg_id
        undecided = transactions.begin(order(b"theirs", dedup_key="open"))
        second = producer.send(order(b"ours"), dedup_key="open")
        undecided.commit()
        assert {found.msg_id for found in broker.query("orders", "open")} == {
            undecided.message_id,
            second.msg_id,
        }


@pytest.mark.parametrize("key", ["", "two words", "a\x01b", "\ud800", 7, b"order"])
def test_what_is_no_key_of_a_message(key: Any) -> None:
    with pytest.raises((mq.MessageInvalid, TypeError)):
        order(dedup_key=key)


def test_another_key_is_another_message(broker: mq.Broker, producer: mq.Producer) -> None:
    first = producer.send(order(), dedup_key="order-1")
    second = producer.send(order(), dedup_key="order-2")
    assert first.msg_id != second.msg_id
    assert body_count(broker) == 2


def test_a_key_is_one_of_its_topic(broker: mq.Broker, producer: mq.Producer) -> None:
    producer.send(order(), dedup_key="order-1")
    producer.send(mq.Message("payments", b"one"), dedup_key="order-1")
    assert body_count(broker) == body_count(broker, "payments") == 1


def test_a_message_without_a_key_is_stored_each_time(broker: mq.Broker, producer: mq.Producer) -> None:
    message = order(keys="order-1")
    producer.send(message)
    producer.send(message)
    producer.send(message, dedup_key="order-1")
    producer.send(message)
    assert body_count(broker) == 4


def test_the_key_is_among_the_keys_of_the_message(broker: mq.Broker, producer: mq.Producer) -> None:
    sent = order(tags="paid", keys=("customer-7", "order-1"), properties={"price": "10"}, flag=3)
    producer.send(sent, dedup_key="order-1")
    producer.send(order(keys="customer-7"), dedup_key="order-2")
    [found] = broker.query("orders", "order-1")
    assert found.keys == ("customer-7", "order-1")
    assert found.tags == "paid"
    assert found.flag == 3
    assert found.properties["price"] == "10"
    assert found.properties["DEDUP_KEY"] == "order-1"
    [other] = broker.query("orders", "order-2")
    assert other.keys == ("customer-7", "order-2")
    assert sent.keys == ("customer-7", "order-1"), "the message that was given stays what it is"


def test_a_given_unique_id_is_a_key(broker: mq.Broker, producer: mq.Producer) -> None:
    first = producer.send(order(b"one"), unique_id=ID)
    second = producer.send(order(b"other"), unique_id=ID)
    assert place(second) == place(first)
    assert first.msg_id == ID
    assert body_count(broker) == 1
    assert broker.message(ID).body == b"one"


def test_the_id_of_a_message_that_had_no_key_counts_too(broker: mq.Broker, producer: mq.Producer) -> None:
    for number in range(3):
        first = producer.send(order(b"one", delay_ms=600_000 * number if number else None))
        for _ in range(2):
            assert place(producer.send(order(b"other"), unique_id=first.msg_id)) == place(first)
    assert body_count(broker) == 1


def test_a_key_counts_before_a_unique_id(broker: mq.Broker, producer: mq.Producer) -> None:
    first = producer.send(order(), unique_id=ID, dedup_key="order-1")
    assert producer.send(order(), dedup_key="order-1").msg_id == first.msg_id == ID
    assert body_count(broker) == 1


def test_a_dedup_window_ends(broker: mq.Broker) -> None:
    now = [1_700_000_000_000]
    set_dedup_clock(broker, lambda: now[0])
    with mq.Producer(broker, dedup_window=10.0) as producer:
        first = producer.send(order(), dedup_key="order-1")
        now[0] += 9_999
        assert producer.send(order(), dedup_key="order-1").msg_id == first.msg_id
        now[0] += 1
        second = producer.send(order(), dedup_key="order-1")
        assert second.msg_id != first.msg_id
        now[0] += 9_999
        assert producer.send(order(), dedup_key="order-1").msg_id == second.msg_id


def test_a_queue_may_be_named(broker: mq.Broker, producer: mq.Producer) -> None:
    queues = broker.publishable("orders")
    first = producer.send(order(), dedup_key="order-1", queue=queues[2])
    assert first.queue == queues[2]
    assert producer.send(order(), dedup_key="order-1", queue=queues[1]).queue == queues[2]
    assert producer.send(order(), dedup_key="order-1", shard_key="x").queue == queues[2]


def test_a_compressed_body_is_stored_once(broker: mq.Broker, producer: mq.Producer) -> None:
    body = b"long " * 4000
    first = producer.send(order(body), dedup_key="order-1")
    assert producer.send(order(body), dedup_key="order-1").msg_id == first.msg_id
    assert broker.message(first.msg_id).body == body


def test_a_delayed_message_counts_while_it_waits(broker: mq.Broker, producer: mq.Producer) -> None:
    first = producer.send(order(delay_level=18), dedup_key="order-1")
    second = producer.send(order(delay_level=18), dedup_key="order-1")
    third = producer.send(order(), dedup_key="order-1")
    assert place(first) == place(second) == place(third)
    assert body_count(broker) == 0


def test_a_message_due_at_a_time_is_recalled_by_the_second_ones_handle(
    broker: mq.Broker, producer: mq.Producer
) -> None:
    first = producer.send(order(delay_ms=600_000), dedup_key="order-1")
    second = producer.send(order(delay_ms=900_000), dedup_key="order-1")
    assert place(first) == place(second)
    assert second.recall_handle is not None
    assert second.recall_handle == first.recall_handle
    assert broker.recall(second.recall_handle) == first.msg_id
    assert producer.send(order(), dedup_key="order-1").msg_id == first.msg_id, "a recalled one was sent"


def test_async_sends_are_stored_once_too(broker: mq.Broker, producer: mq.Producer) -> None:
    futures = [
        producer.send_async(order(b"%d" % n), dedup_key=f"order-{n % 10}" if n % 2 else None)
        for n in range(100)
    ]
    results = [future.result() for future in futures]
    assert len({result.msg_id for result in results}) == 55
    assert body_count(broker) == 55
    futures = [producer.send_async(order(), unique_id=ID) for _ in range(3)]
    assert {future.result().msg_id for future in futures} == {ID}


def test_threads_that_send_a_key_at_once_get_one_result(broker: mq.Broker, producer: mq.Producer) -> None:
    at_once = threading.Barrier(6)
    results: list[set[str]] = [set() for _ in range(20)]

    def send() -> None:
        for number, seen in enumerate(results):
            at_once.wait()
            seen.add(producer.send(order(), dedup_key=f"order-{number}").msg_id)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(seen) for seen in results] == [1] * 20
    assert body_count(broker) == 20


def test_two_brokers_of_a_store_know_of_each_other(brokers: tuple[mq.Broker, mq.Broker]) -> None:
    with (
        mq.Producer(brokers[0], dedup_window=WINDOW) as one,
        mq.Producer(brokers[1], dedup_window=600) as two,
    ):
        first = one.send(order(), dedup_key="order-1")
        assert place(two.send(order(), dedup_key="order-1")) == place(first)
        assert body_count(brokers[0]) == 1


def test_a_topic_made_anew_has_no_keys(broker: mq.Broker, producer: mq.Producer) -> None:
    first = producer.send(order(), dedup_key="order-1")
    broker.delete_topic("orders")
    broker.create_topic("orders", 1)
    second = producer.send(order(), dedup_key="order-1")
    assert second.msg_id != first.msg_id
    assert body_count(broker) == 1


def test_what_was_refused_may_be_sent_again(opened: Open) -> None:
    broker = opened(message_size_max=1000)
    with mq.Producer(broker, dedup_window=WINDOW) as producer:
        with pytest.raises(mq.MessageTooLarge):
            producer.send(order(b"x" * 2000), dedup_key="order-1")
        broker.create_topic("orders", 1, perm="r")
        with pytest.raises(mq.NotPermitted):
            producer.send(order(), dedup_key="order-1")
        broker.create_topic("orders", 1, perm="rw")
        producer.send(order(), dedup_key="order-1")
        assert body_count(broker) == 1


def test_hooks_are_called_around_it(producer: mq.Producer) -> None:
    results: list[str | None] = []
    producer.after_send.append(
        lambda _message, _queue, result, _: results.append(result.msg_id if result else None)
    )
    producer.send(order(), dedup_key="order-1")
    producer.send(order(), dedup_key="order-1")
    assert len(results) == 2
    assert len(set(results)) == 1


@pytest.mark.parametrize("key", ["", " ", "two words", "a\x01", "a\x02b", "\ud800", "x" * 33_000])
def test_what_is_no_key_is_refused(broker: mq.Broker, producer: mq.Producer, key: str) -> None:
    with pytest.raises(mq.MessageInvalid):
        producer.send(order(), dedup_key=key)
    assert body_count(broker) == 0


@pytest.mark.parametrize("unique_id", ["", "x" * 32, ID.lower(), ID[:-1], ID + "0"])
def test_what_is_no_unique_id_is_refused(broker: mq.Broker, producer: mq.Producer, unique_id: str) -> None:
    with pytest.raises(ValueError, match="unique id"):
        producer.send(order(), unique_id=unique_id)
    assert body_count(broker) == 0


def test_other_things_are_refused_by_their_type(broker: mq.Broker, producer: mq.Producer) -> None:
    wrong: Any = 7
    for options in ({"dedup_key": wrong}, {"unique_id": wrong}):
        with pytest.raises(TypeError):
            producer.send(order(), **options)
    window: Any
    for window in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="dedup_window"):
            mq.Producer(broker, dedup_window=window)
    for window in ("1", True, [1]):
        with pytest.raises(TypeError, match="dedup_window"):
            mq.Producer(broker, dedup_window=window)


def test_a_producer_without_a_window_knows_no_keys(broker: mq.Broker) -> None:
    with mq.Producer(broker) as producer:
        for send in (producer.send, producer.send_async):
            with pytest.raises(ValueError, match="dedup_window"):
                send(order(), dedup_key="order-1")
            with pytest.raises(ValueError, match="dedup_window"):
                send(order(), unique_id=ID)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": None}, ValueError),
        ({"window_ms": -1}, ValueError),
        ({"window_ms": 0}, ValueError),
        ({"window_ms": 1.5}, TypeError),
        ({"window_ms": True}, TypeError),
    ],
)
def test_the_border_refuses_what_makes_no_sense(
    broker: mq.Broker, options: dict[str, Any], error: type[Exception]
) -> None:
    queue = broker.publishable("orders")[0]
    arguments: dict[str, Any] = {"key": "order-1", "window_ms": 1000, **options}
    with pytest.raises(error):
        directory(broker, "append_once").append_once(queue, order(), b"one", 0, **arguments)


# Once.


@pytest.fixture
def once(broker: mq.Broker) -> mq.Once:
    return mq.Once(broker, "billing", size=4, wait=0.05)


def received(broker: mq.Broker, topic: str = "orders") -> list[mq.MessageExt]:
    return [message for queue in broker.topic(topic).queues for message in queue.read(0).messages]


def test_a_message_is_fresh_once(broker: mq.Broker, once: mq.Once) -> None:
    broker.create_topic("orders", 1).send(b"one")
    [message] = received(broker)
    assert not once.seen(message)
    with once(message) as fresh:
        assert fresh
        assert not once.seen(message)
    assert once.seen(message)
    with once(message) as fresh:
        assert not fresh


def test_a_body_that_raises_leaves_no_mark(once: mq.Once) -> None:
    for error in (ValueError, KeyboardInterrupt, mq.Retry):
        with pytest.raises(error), once("key"):
            raise error
    assert not once.seen("key")
    with once("key") as fresh:
        assert fresh


def test_a_body_that_raises_after_it_was_handled_changes_nothing(once: mq.Once) -> None:
    with once("key"):
        pass
    with pytest.raises(ValueError, match="late"), once("key"):
        raise ValueError("late")
    assert once.seen("key")


def test_the_last_keys_are_known_and_no_more(once: mq.Once) -> None:
    for number in range(10):
        with once(f"key-{number}") as fresh:
            assert fresh
    assert [once.seen(f"key-{number}") for number in range(10)] == [False] * 6 + [True] * 4
    with once("key-0") as fresh:
        assert fresh
    assert [once.seen(f"key-{number}") for number in (0, 6, 7)] == [True, False, True]


def test_a_message_goes_by_its_dedup_key_and_its_topic(broker: mq.Broker, once: mq.Once) -> None:
    with mq.Producer(broker, dedup_window=0.001) as producer:
        for topic in ("orders", "payments"):
            producer.send(mq.Message(topic, b"one"), dedup_key="order-1")
    [order_], [payment] = received(broker), received(broker, "payments")
    assert once.key(order_) == "orders/order-1"
    with once(order_):
        pass
    assert once.seen("orders/order-1")
    assert not once.seen(payment)


def test_a_message_keeps_its_key_through_retries(broker: mq.Broker, once: mq.Once) -> None:
    topic = broker.create_topic("orders", 1)
    topic.send(b"one")
    with mq.Producer(broker, dedup_window=60) as producer:
        producer.send(order(), dedup_key="order-1")
    messages = received(broker)
    for message in messages:
        assigned.send_back(broker, message, "billing", delay_level=-1)
    dead = received(broker, "%DLQ%billing")
    assert sorted(map(once.key, dead)) == sorted(map(once.key, messages))


def test_groups_handle_for_themselves(broker: mq.Broker, once: mq.Once) -> None:
    with once("key"):
        pass
    assert not mq.Once(broker, "shipping").seen("key")
    assert mq.Once(broker, "billing").seen("key")


def test_two_brokers_handle_as_one(brokers: tuple[mq.Broker, mq.Broker]) -> None:
    ours, theirs = (mq.Once(broker, "billing", size=3) for broker in brokers)
    for number in range(12):
        one, other = (ours, theirs) if number % 3 else (theirs, ours)
        with one(f"key-{number}") as fresh:
            assert fresh
        with other(f"key-{number}") as fresh:
            assert not fresh
        for each in (ours, theirs):
            assert each.seen(f"key-{max(number - 2, 0)}")
            assert not each.seen(f"key-{number - 3}")


def in_thread(call: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_a_second_handler_of_a_key_is_told_to_retry(brokers: tuple[mq.Broker, mq.Broker]) -> None:
    """In the same broker from another thread, and in another broker."""
    ours, theirs = (mq.Once(broker, "billing", wait=0.05) for broker in brokers)
    for other in (ours, theirs):

        def handle(other: mq.Once = other) -> None:
            with other("key"):
                raise AssertionError("it was let in")

        with ours("key"):
            with pytest.raises(mq.Retry):
                in_thread(handle)
            with other("another"):  # which has nothing to do with it
                pass
        ours.clear()


def test_a_second_handler_of_a_key_may_wait(brokers: tuple[mq.Broker, mq.Broker]) -> None:
    ours, theirs = (mq.Once(broker, "billing") for broker in brokers)
    for other in (ours, theirs):
        for fails in (False, True):
            inside, waiting, found = threading.Event(), threading.Event(), list[bool]()

            def handle(
                handling: Handling = other("key"),  # noqa: B008 - of this turn of the loop
                inside: threading.Event = inside,
                waiting: threading.Event = waiting,
                found: list[bool] = found,
            ) -> None:
                inside.wait()
                waiting.set()
                with handling as fresh:
                    found.append(fresh)

            thread = threading.Thread(target=handle)
            thread.start()
            try:
                with ours("key") as fresh:
                    assert fresh
                    inside.set()
                    waiting.wait()
                    time.sleep(0.02)  # Most likely it waits by then; it has to be right in any case.
                    if fails:
                        raise ValueError
            except ValueError:
                assert fails
            thread.join()
            assert found == [fails]
            ours.clear()


def test_a_thread_that_would_wait_for_itself_is_told_so(once: mq.Once) -> None:
    with once("key"), pytest.raises(RuntimeError, match="itself"), once("key"):
        raise AssertionError("it was let in")
    assert once.seen("key")


def test_clear_forgets_all_dedup_keys(brokers: tuple[mq.Broker, mq.Broker]) -> None:
    ours, theirs = (mq.Once(broker, "billing", size=3) for broker in brokers)
    for number in range(5):
        with ours(f"key-{number}"):
            pass
    assert theirs.seen("key-4")
    ours.clear()
    for each in (ours, theirs):
        assert not any(each.seen(f"key-{number}") for number in range(5))
    with theirs("key-4") as fresh:
        assert fresh
    assert ours.seen("key-4")


def test_the_size_is_the_first_ones(broker: mq.Broker) -> None:
    assert mq.Once(broker, "billing").size == 100_000
    assert mq.Once(broker, "billing", size=100_000).size == 100_000
    with pytest.raises(mq.ConfigMismatch):
        mq.Once(broker, "billing", size=50)


def test_bad_arguments_of_once(broker: mq.Broker, once: mq.Once) -> None:
    wrong: Any
    for wrong in (0, -1, 10_000_001):
        with pytest.raises(ValueError, match="size"):
            mq.Once(broker, "a-group", size=wrong)
    for wrong in ("1", 1.5, True):
        with pytest.raises(TypeError, match="size"):
            mq.Once(broker, "a-group", size=wrong)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="wait"):
            mq.Once(broker, "a-group", wait=wrong)
    for wrong in ("1", True, None):
        with pytest.raises(TypeError, match="wait"):
            mq.Once(broker, "a-group", wait=wrong)
    with pytest.raises(mq.GroupInvalid):
        mq.Once(broker, "../group")
    for wrong in (7, b"key", None):
        with pytest.raises(TypeError):
            once(wrong)
        with pytest.raises(TypeError):
            once.seen(wrong)
    with pytest.raises(ValueError, match="empty"), once(""):
        raise AssertionError("it was let in")


def test_a_closed_broker_handles_nothing(broker: mq.Broker, once: mq.Once) -> None:
    handling = once("key")
    with pytest.raises(mq.BrokerClosed), handling:
        broker.close()
    for call in (lambda: once.seen("key"), once.clear, lambda: mq.Once(broker, "billing")):
        with pytest.raises(mq.BrokerClosed):
            call()
