"""The push consumer against the broker in memory: delivery, retries, hand-overs, all that listeners do."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import mq
from mq.api.group import Subscription
from mq.api.results import MessageQueue
from mq.client.engine import dispatcher
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.memory.broker import DELAYS_MS, MemoryBroker
from tests.support.memory.groups import MemoryMembership, MemoryWaiter
from tests.support.recording_listener import (
    PATIENCE,
    Clock,
    Heard,
    committed,
    consuming,
    dead_letters,
    eventually,
    send,
)


def make(queues: int = 1, **options: Any) -> MemoryBroker:
    broker = MemoryBroker(**options)
    broker.create_topic("orders", queues)
    return broker


def numbered(count: int, begin: int = 0) -> list[str]:
    return [str(number) for number in range(begin, begin + count)]


def test_every_message_is_delivered_once_and_committed() -> None:
    broker = make(4)
    for queue_id in range(4):
        send(broker, *numbered(100, 100 * queue_id), queue_id=queue_id)
    heard = Heard()
    with consuming(broker, heard) as consumer:
        heard.wait(400)
        send(broker, "late", queue_id=3)
        heard.wait(401)
        assert len(consumer.assignment()) == 4
    assert Counter(heard.bodies) == Counter(map(str.encode, [*numbered(400), "late"]))
    assert broker.group("g").lag("orders") == 0
    assert broker.group("g").members() == []
    assert consumer.assignment() == set()


def test_a_decorated_function_is_a_listener_and_itself() -> None:
    broker = make()
    send(broker, "one")
    heard = Heard()
    with mq.PushConsumer(broker, "g") as consumer:

        @consumer.subscribe("orders")
        def bill(message: mq.MessageExt) -> str:
            heard(message)
            return "billed"

        consumer.start()
        heard.wait(1)
    assert bill(heard.messages[0]) == "billed"


def test_a_filter_leaves_out_and_what_it_left_out_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.engine.consume_loop.FILTERED_SECONDS", 0.02)
    broker = make()
    send(broker, *numbered(5), tags="other")
    send(broker, "paid", tags="paid")
    send(broker, *numbered(5), tags="other")
    heard = Heard()
    with consuming(broker, heard, expression="paid || refunded"):
        heard.wait(1)
        eventually(lambda: committed(broker) == 11)
        send(broker, *numbered(5), tags="other")
        eventually(lambda: committed(broker) == 16)
        send(broker, "back", tags="refunded")
        heard.wait(2)
    assert heard.bodies == [b"paid", b"back"]


def test_lists_are_of_one_queue_in_order_and_never_too_long() -> None:
    broker = make(3)
    for queue_id in range(3):
        send(broker, *numbered(150, 1000 * queue_id), queue_id=queue_id)
    lists: list[list[mq.MessageExt]] = []
    heard = Heard()

    def take(messages: list[mq.MessageExt]) -> None:
        assert type(messages) is list
        lists.append(messages)
        for message in messages:
            heard(message)

    with consuming(broker, take, batch_size=64):
        heard.wait(450)
    assert max(map(len, lists)) == 64
    assert sorted(heard.bodies) == sorted(
        map(str.encode, numbered(150) + numbered(150, 1000) + numbered(150, 2000))
    )
    for messages in lists:
        assert len({message.queue_id for message in messages}) == 1
        assert [each.queue_offset for each in messages] == sorted(each.queue_offset for each in messages)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_a_listener_raises_is_a_failure_and_the_thread_goes_on(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    broker = make(clock=clock)
    send(broker, "bad", "good")

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad" and not message.reconsume_times:
            raise error

    heard = Heard(act)
    with consuming(broker, heard):
        heard.wait(2)
        eventually(lambda: committed(broker) == 2)
        clock.now_ms += 9_999
        send(broker, "later")
        heard.wait(3)
        clock.now_ms += 1
        send(broker, "last")
        heard.wait(5)
    # Two threads have the first two.
    assert sorted(heard.bodies[:2]) == [b"bad", b"good"]
    assert heard.bodies[2] == b"later"
    first = next(message for message in heard.messages if message.body == b"bad")
    again = next(message for message in heard.messages[3:] if message.body == b"bad")
    assert (again.topic, again.reconsume_times, again.tags) == ("orders", 1, "t")
    assert again.msg_id == first.msg_id
    assert "failed at Heard" in caplog.text or "failed at <" in caplog.text


def test_a_thread_that_is_told_to_end_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    broker = make(clock=clock)
    send(broker, *numbered(20))

    def act(message: mq.MessageExt) -> None:
        if message.body in (b"3", b"7") and not message.reconsume_times:
            thread = ctypes.c_ulong(threading.get_ident())
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))

    heard = Heard(act)
    with consuming(broker, heard, threads=1):
        heard.wait(20)
        eventually(lambda: committed(broker) == 20)
        clock.now_ms += 10_000
        broker.deliver_due()
        heard.wait(22)
        eventually(partial(retries_done, broker, 2))
    assert Counter(heard.bodies) == Counter(map(str.encode, [*numbered(20), "3", "7"]))


def test_with_fewer_threads_than_it_may_have_it_consumes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name.startswith("mq-consumer-g-") and not self.name.endswith(("-1", "-2")):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    broker = make(2)
    send(broker, *numbered(30))
    heard = Heard(lambda _message: time.sleep(0.001))
    with consuming(broker, heard):
        heard.wait(30)
        eventually(lambda: committed(broker) == 30)
    assert "makes do with 2 threads: thread mq-consumer-g-3 cannot be started" in caplog.text


def retries_done(broker: MemoryBroker, count: int) -> bool:
    return committed(broker, topic="%RETRY%g") == count


def test_retries_come_by_the_levels_and_the_last_failure_is_a_dead_letter() -> None:
    clock = Clock()
    broker = make(clock=clock)
    send(broker, "bad")

    def act(message: mq.MessageExt) -> None:
        raise ValueError("never")

    heard = Heard(act)
    with consuming(broker, heard, max_reconsume_times=16):
        for attempt in range(1, 17):
            heard.wait(attempt)
            eventually(lambda: committed(broker) == 1)
            if attempt > 1:
                eventually(partial(retries_done, broker, attempt - 1))
            clock.now_ms += DELAYS_MS[attempt + 1] - 1
            broker.deliver_due()
            assert len(heard.messages) == attempt
            clock.now_ms += 1
            broker.deliver_due()
        heard.wait(17)
        eventually(lambda: dead_letters(broker))
    assert [message.reconsume_times for message in heard.messages] == list(range(17))
    (dead,) = dead_letters(broker)
    assert (dead.body, dead.reconsume_times) == (b"bad", 17)
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert broker.group("g").lag("orders") == 0


def test_a_listener_chooses_the_level_or_the_dead_letters() -> None:
    clock = Clock()
    broker = make(clock=clock)
    send(broker, "soon", "never")

    def act(message: mq.MessageExt) -> None:
        if not message.reconsume_times:
            raise mq.Retry(delay_level=1 if message.body == b"soon" else -1)

    heard = Heard(act)
    with consuming(broker, heard):
        heard.wait(2)
        eventually(lambda: committed(broker) == 2)
        assert [message.body for message in dead_letters(broker)] == [b"never"]
        clock.now_ms += 1000
        broker.deliver_due()
        heard.wait(3)
    assert heard.bodies[2] == b"soon"


def test_of_a_list_only_what_is_named_comes_again() -> None:
    clock = Clock()
    broker = make(clock=clock)
    send(broker, *numbered(6))
    heard = Heard()

    def take(messages: list[mq.MessageExt]) -> None:
        for message in messages:
            heard(message)
        if len(messages) > 1:
            raise mq.Retry(from_index=4, delay_level=1)

    with consuming(broker, take, batch_size=6):
        heard.wait(6)
        eventually(lambda: committed(broker) == 6)
        clock.now_ms += 1000
        broker.deliver_due()
        heard.wait(8)
        eventually(lambda: committed(broker, topic="%RETRY%g") == 2)
    assert sorted(heard.bodies[6:]) == [b"4", b"5"]


def test_of_a_list_whose_index_is_beyond_its_end_all_come_again() -> None:
    broker = make()
    send(broker, "one", "two")
    heard = Heard()

    def take(messages: list[mq.MessageExt]) -> None:
        for message in messages:
            heard(message)
        raise mq.Retry(from_index=3, delay_level=-1)

    with consuming(broker, take, batch_size=2):
        heard.wait(2)
        eventually(lambda: committed(broker) == 2)
    assert [message.body for message in dead_letters(broker)] == [b"one", b"two"]


@pytest.mark.parametrize("ordered", [False, True])
def test_an_index_means_nothing_for_a_single_message(ordered: bool) -> None:
    broker = make()
    send(broker, "one")
    heard = Heard()

    def take(message: mq.MessageExt) -> None:
        heard(message)
        raise mq.Retry(from_index=1, delay_level=-1)

    with consuming(broker, take, ordered=ordered):
        heard.wait(1)
        eventually(lambda: committed(broker) == 1)
    assert [message.body for message in dead_letters(broker)] == [b"one"]


def test_what_a_list_has_consumed_of_its_retries_is_consumed() -> None:
    """A message that comes again is given as a list of one."""
    clock = Clock()
    broker = make(clock=clock)
    send(broker, "one")
    heard = Heard()

    def take(messages: list[mq.MessageExt]) -> None:
        heard(messages[0])
        raise mq.Retry(from_index=len(heard.messages) - 1, delay_level=1)

    with consuming(broker, take, batch_size=2):
        heard.wait(1)
        eventually(lambda: committed(broker) == 1)
        clock.now_ms += 1000
        broker.deliver_due()
        heard.wait(2)
        eventually(lambda: committed(broker, topic="%RETRY%g") == 1)
    assert dead_letters(broker) == []


def test_retries_that_make_no_sense_are_refused() -> None:
    with pytest.raises(TypeError):
        mq.Retry(3)  # type: ignore[call-arg]  # a delay level would be taken for an index
    for wrong in ({"from_index": -1}, {"delay_level": 19}, {"delay_level": -2}, {"suspend_ms": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            mq.Retry(**wrong)
    assert str(mq.Retry(from_index=2, delay_level=3)) == "from_index=2, delay_level=3"


class Refusing(MemoryBroker):
    """Takes nothing back until it is told to."""

    refuses = True
    asked = 0

    def send_back(
        self,
        message: mq.MessageExt,
        group: str,
        *,
        delay_level: int = 0,
        max_reconsume_times: int = 16,
    ) -> bool:
        self.asked += 1
        if self.refuses:
            raise mq.StoreFull("no space", path="commitlog")
        return super().send_back(
            message,
            group,
            delay_level=delay_level,
            max_reconsume_times=max_reconsume_times,
        )


def test_what_cannot_be_sent_back_stays_here_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.engine.send_back.RETRY_SECONDS", 0.02)
    broker = Refusing()
    broker.create_topic("orders", 1)
    send(broker, "good", "bad", "better")

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad" and message.reconsume_times < 2:
            raise ValueError("not yet")

    heard = Heard(act)
    with consuming(broker, heard):
        heard.wait(5)
        eventually(lambda: committed(broker) == 3)
    assert [message.reconsume_times for message in heard.messages if message.body == b"bad"] == [0, 1, 2]
    assert Counter(heard.bodies) == {b"good": 1, b"bad": 3, b"better": 1}
    assert broker.asked == 2


def test_a_message_of_a_topic_that_is_not_subscribed_to_any_more_is_sent_back() -> None:
    broker = make()
    broker.create_topic("%RETRY%g", 1)
    message = mq.Message("%RETRY%g", b"old")
    append_one(broker, "%RETRY%g", 0, message, message.body, 0)
    with consuming(broker, Heard(), max_reconsume_times=0):
        eventually(lambda: dead_letters(broker))


@pytest.mark.parametrize("count", [200, 8])
def test_a_blocked_listener_holds_up_only_the_offset(count: int) -> None:
    """Also at the last message of a run, behind which nothing comes: of 8, that is where it blocks."""
    broker = make()
    send(broker, *numbered(count))
    open_lock = threading.Event()

    def act(message: mq.MessageExt) -> None:
        if message.body == b"7":
            assert open_lock.wait(PATIENCE)

    heard = Heard(act)
    with consuming(broker, heard):
        heard.wait(count)
        eventually(lambda: committed(broker) == 7)
        open_lock.set()
        eventually(lambda: committed(broker) == count)
    assert Counter(heard.bodies) == Counter(map(str.encode, numbered(count)))


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_listeners_run_than_there_are_threads(threads: int) -> None:
    broker = make(4)
    for queue_id in range(4):
        send(broker, *numbered(10), queue_id=queue_id)
    open_lock = threading.Semaphore(0)
    heard = Heard(lambda _message: open_lock.acquire())
    with consuming(broker, heard, threads=threads):
        for done in range(40):
            heard.wait(min(40, done + threads))
            eventually(lambda: heard.running == min(threads, 40 - done))  # noqa: B023 - called at once
            open_lock.release()
        eventually(lambda: broker.group("g").lag("orders") == 0)
    assert heard.running_max == threads


def test_close_waits_for_listeners_and_commits_what_they_did() -> None:
    broker = make()
    send(broker, "slow")
    open_lock = threading.Event()
    heard = Heard(lambda _message: open_lock.wait(PATIENCE))
    with mq.PushConsumer(broker, "g") as consumer:
        consumer.subscribe("orders", listener=heard)
        consumer.start()
        heard.wait(1)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        assert len(broker.group("g").members()) == 1
        open_lock.set()
        closing.join(PATIENCE)
        assert not closing.is_alive()
    assert committed(broker) == 1
    assert broker.group("g").members() == []
    consumer.close()
    with pytest.raises(mq.BrokerClosed):
        consumer.start()


def test_close_that_is_not_to_wait_says_which_listener_still_runs(caplog: pytest.LogCaptureFixture) -> None:
    broker = make()
    send(broker, "slow", "next")
    open_lock = threading.Event()

    def hangs(message: mq.MessageExt) -> None:
        heard(message)
        open_lock.wait(PATIENCE)

    heard = Heard()
    consumer = mq.PushConsumer(broker, "g", threads=1)
    consumer.subscribe("orders", listener=hangs)
    consumer.start()
    heard.wait(1)
    consumer.close(timeout=0.05)
    assert "hangs with orders/0 from queue offset 0 on" in caplog.text
    assert committed(broker) in (None, 0)
    assert broker.group("g").members() == []
    other = Heard()
    with consuming(broker, other, threads=1):
        other.wait(2)
        open_lock.set()
    assert other.bodies == [b"slow", b"next"]


def test_a_listener_may_close_its_own_consumer() -> None:
    broker = make()
    send(broker, "last", "not this one")
    consumer = mq.PushConsumer(broker, "g", threads=1)
    heard = Heard(lambda _message: consumer.close())
    consumer.subscribe("orders", listener=heard)
    consumer.start()
    eventually(lambda: broker.group("g").members() == [])
    assert heard.bodies == [b"last"]
    assert committed(broker) == 1
    consumer.close()


def states(broker: mq.Broker) -> list[mq.QueueState]:
    return broker.group("g").states("orders")


def owners(broker: MemoryBroker, topic: str = "orders") -> list[str | None]:
    return [state.owner.client_id if state.owner else None for state in broker.group("g").states(topic)]


def test_members_that_come_and_go_in_good_order_make_nothing_come_twice() -> None:
    broker = make(8)
    heard = Heard()
    stop = threading.Event()
    sent: list[str] = []

    def keep_sending() -> None:
        while not stop.wait(0.0005):
            sent.append(str(len(sent)))
            send(broker, sent[-1], queue_id=len(sent) % 8)

    sending = threading.Thread(target=keep_sending)
    sending.start()
    with consuming(broker, heard, client_id="a"):
        heard.wait(50)
        for _ in range(5):
            with consuming(broker, heard, client_id="b") as second:
                eventually(lambda: len(second.assignment()) == 4)
                with consuming(broker, heard, client_id="c") as third:
                    eventually(lambda: len(third.assignment()) in (2, 3))
                heard.wait(len(heard.messages) + 5)
        stop.set()
        sending.join()
        eventually(lambda: broker.group("g").lag("orders") == 0)
    assert Counter(heard.bodies) == Counter(map(str.encode, sent))


def test_a_queue_is_handed_over_when_its_listener_has_ended_and_not_before() -> None:
    broker = make(2)
    send(broker, "a0", "b0", "c0", queue_id=0)
    send(broker, "a1", "b1", "c1", queue_id=1)
    open_lock = threading.Event()
    first = Heard(lambda message: open_lock.wait(PATIENCE) if message.body[:1] in (b"a", b"b") else None)
    with consuming(broker, first, client_id="a", threads=1):
        first.wait(1)
        other = Heard()
        with consuming(broker, other, client_id="b") as second:
            eventually(lambda: owners(broker).count("b") + owners(broker).count("a") >= 1)
            blocked = first.messages[0].queue_id
            if blocked == 1:  # the second member's by right
                eventually(lambda: owners(broker)[1] == "a")
                assert not [message for message in other.messages if message.queue_id == 1]
            open_lock.set()
            eventually(lambda: owners(broker) == ["a", "b"])
            eventually(lambda: broker.group("g").lag("orders") == 0)
            assert second.assignment() == {MessageQueue("orders", "mq", 1)}
    assert sorted(first.bodies + other.bodies) == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]


def test_what_is_above_a_hole_is_not_delivered_twice_by_a_hand_over() -> None:
    broker = make(2)
    send(broker, *numbered(100), queue_id=1)
    open_lock = threading.Event()
    first = Heard(lambda message: open_lock.wait(PATIENCE) if message.body == b"3" else None)
    with consuming(broker, first, client_id="a") as giver:
        first.wait(100)
        eventually(lambda: committed(broker, 1) == 3)
        other = Heard()
        with consuming(broker, other, client_id="b"):
            eventually(lambda: giver.assignment() == {MessageQueue("orders", "mq", 0)})
            send(broker, "after", queue_id=1)
            assert owners(broker)[1] == "a"
            open_lock.set()
            other.wait(1)
            eventually(lambda: broker.group("g").lag("orders") == 0)
    assert other.bodies == [b"after"]
    assert Counter(first.bodies) == Counter(map(str.encode, numbered(100)))


def test_a_reset_begins_again_where_it_says_whether_the_queue_is_busy_or_not() -> None:
    broker = make()
    send(broker, *numbered(50))
    heard = Heard()
    with consuming(broker, heard):
        heard.wait(50)
        eventually(lambda: committed(broker) == 50)
        broker.group("g").reset("orders", to="earliest")
        heard.wait(100)
        eventually(lambda: committed(broker) == 50)
    assert Counter(heard.bodies) == {str(number).encode(): 2 for number in range(50)}


def test_a_late_commit_does_not_undo_a_reset() -> None:
    broker = make()
    send(broker, *numbered(10))
    open_lock = threading.Event()
    heard = Heard(lambda message: open_lock.wait(PATIENCE) if message.body == b"9" else None)
    with consuming(broker, heard, threads=1):
        heard.wait(10)
        broker.group("g").reset("orders", to="latest")
        send(broker, "new")
        open_lock.set()
        eventually(lambda: committed(broker) == 11)
    assert heard.bodies[-1] == b"new"
    assert len(heard.bodies) == 11


def test_an_offset_beyond_the_end_is_corrected(caplog: pytest.LogCaptureFixture) -> None:
    broker = make()
    send(broker, *numbered(3))
    assigned.commit(broker, "g", MessageQueue("orders", "mq", 0), 500)
    heard = Heard()
    with consuming(broker, heard):
        eventually(lambda: committed(broker) == 3)
        send(broker, "new")
        heard.wait(1)
    assert heard.bodies == [b"new"]
    assert "orders/0: queue offset 500 is beyond the end: consumption goes on at 3" in caplog.text


class Damaged(MemoryBroker):
    """Some of its messages cannot be read."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = bad

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> mq.PullResult:
        if queue.topic == "orders" and offset in self.bad:
            raise mq.StoreCorrupted(
                "the bytes there are not what was stored", queue=queue, queue_offset=offset
            )
        return super().pull(queue, offset, 1, byte_max, tag_hashes, wait)


def test_messages_that_cannot_be_read_are_lost_loudly_and_the_rest_is_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Damaged(2, 3, 4, 8)
    broker.create_topic("orders", 1)
    send(broker, *numbered(10))
    heard = Heard()
    with consuming(broker, heard):
        heard.wait(6)
        eventually(lambda: committed(broker) == 10)
    assert sorted(heard.bodies) == [b"0", b"1", b"5", b"6", b"7", b"9"]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == [
        "the bytes there are not what was stored",
        "orders/0: 3 messages before queue offset 5 could not be read and are lost",
        "the bytes there are not what was stored",
    ]


class Overtaken(MemoryBroker):
    """Has something done between what a pull finds and its return."""

    meanwhile: Callable[[], object] | None = None

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> mq.PullResult:
        found = super().pull(queue, offset, count_max, byte_max, tag_hashes, wait)
        if queue.topic == "orders" and found.messages and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return found


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_pulled_while_the_queue_is_given_up_is_left_to_the_next_owner(ordered: bool) -> None:
    broker = Overtaken()
    broker.create_topic("orders", 1)
    send(broker, *numbered(20))
    open_lock = threading.Event()
    heard = Heard(lambda _message: open_lock.wait(PATIENCE))
    with consuming(broker, heard, threads=1, ordered=ordered) as consumer:
        eventually(lambda: heard.running == 1)
        closing = threading.Thread(target=consumer.close)

        def close() -> None:
            closing.start()
            eventually(lambda: consumer.assignment() == set())

        broker.meanwhile = close
        send(broker, *numbered(5, 20))
        eventually(lambda: consumer.assignment() == set())
        open_lock.set()
        closing.join()
    assert committed(broker) == len(heard.messages) == 1
    with consuming(broker, heard, ordered=ordered):
        heard.wait(25)
        eventually(lambda: committed(broker) == 25)
    assert sorted(heard.bodies, key=int) == [b"%d" % number for number in range(25)]


class Flaky(MemoryBroker):
    """Answers no pull until it is told to."""

    error: Exception | None = OSError("no answer")

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> mq.PullResult:
        if queue.topic == "orders" and self.error is not None:
            raise self.error
        return super().pull(queue, offset, count_max, byte_max, tag_hashes, wait)


def test_a_pull_that_fails_is_tried_again_later_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.client.engine.owned_queue.PULL_PAUSE", 0.01)
    broker = Flaky()
    broker.create_topic("orders", 1)
    send(broker, "one")
    heard = Heard()
    with consuming(broker, heard):
        eventually(lambda: states(broker)[0].reason == "cannot be read: no answer")
        broker.error = None
        heard.wait(1)
        eventually(lambda: states(broker)[0].reason == "")
    assert caplog.text.count("orders/0 cannot be read: no answer") == 1


def test_a_broker_that_is_closed_ends_its_consumers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mq.consumer")
    broker = make()
    heard = Heard()
    with consuming(broker, heard) as consumer:
        eventually(lambda: len(consumer.assignment()) == 1)
        broker.close()
        eventually(
            lambda: not [each for each in threading.enumerate() if each.name.startswith("mq-consumer-g")]
        )
    assert "stops" in caplog.text


def test_an_allocation_that_is_nonsense_changes_nothing_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = make(2)
    answers: list[Any] = [None]

    def mine(group: str, client_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> Any:
        if queues[0].topic != "orders":
            return queues
        return answers[0] if answers[0] is not None else queues

    heard = Heard()
    with consuming(broker, heard, allocate=mine) as consumer:
        eventually(lambda: len(consumer.assignment()) == 2)
        for nonsense in (17, [MessageQueue("else", "mq", 0)], ["orders"]):
            answers[0] = nonsense
            broker.create_topic(f"change-{len(caplog.records)}")
            eventually(lambda: "allocate failed" in states(broker)[0].reason)
            assert len(consumer.assignment()) == 2
            answers[0] = None
            broker.create_topic(f"change-back-{len(caplog.records)}")
            eventually(lambda: states(broker)[0].reason == "")
        send(broker, "still here")
        heard.wait(1)
    assert "keeps the queues it has: allocate failed for orders: ValueError" in caplog.text


def test_a_full_cache_is_not_pulled_into_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "NOTE_SECONDS", 3600.0)  # From then on its listener is what it waits for.
    broker = make()
    send(broker, *numbered(500))
    open_lock = threading.Event()
    heard = Heard(lambda _message: open_lock.wait(PATIENCE))
    with consuming(broker, heard, threads=2, pull_threshold_for_queue=100, pull_count=32):
        eventually(lambda: states(broker)[0].reason.startswith("flow control: 12"))
        open_lock.set()
        heard.wait(500)
        eventually(lambda: committed(broker) == 500)
        eventually(lambda: states(broker)[0].reason == "")
    assert len(heard.messages) == 500


def test_what_is_far_from_the_first_is_not_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "NOTE_SECONDS", 3600.0)
    broker = make()
    send(broker, *numbered(500))
    open_lock = threading.Event()
    heard = Heard(lambda message: open_lock.wait(PATIENCE) if message.body == b"0" else None)
    with consuming(broker, heard, consume_message_span=50):
        eventually(lambda: states(broker)[0].reason.startswith("flow control: "))
        eventually(lambda: len(heard.messages) >= 50)
        assert len(heard.messages) <= 96
        open_lock.set()
        heard.wait(500)


def test_suspended_it_calls_no_listener_and_keeps_its_queues() -> None:
    broker = make()
    heard = Heard()
    with consuming(broker, heard) as consumer:
        send(broker, "one")
        heard.wait(1)
        consumer.suspend()
        send(broker, "two")
        eventually(lambda: states(broker)[0].reason == "paused")
        assert heard.bodies == [b"one"]
        assert len(consumer.assignment()) == 1
        consumer.resume()
        heard.wait(2)
        eventually(lambda: states(broker)[0].reason == "")


def test_a_listener_that_takes_too_long_loses_its_message_to_the_retry_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    broker = make(clock=clock)
    send(broker, "stuck", "next")
    open_lock = threading.Event()
    heard = Heard(lambda message: open_lock.wait(PATIENCE) if not message.reconsume_times else None)
    with consuming(broker, heard, threads=2, consume_timeout=0.05):
        heard.wait(2)
        eventually(lambda: committed(broker) == 2)
        open_lock.set()
        clock.now_ms += 10_000
        broker.deliver_due()
        heard.wait(4)
        eventually(lambda: committed(broker, topic="%RETRY%g") == 2)
    assert sorted(heard.bodies) == [b"next", b"next", b"stuck", b"stuck"]
    assert "they are sent back" in caplog.text


def test_members_that_subscribe_otherwise_are_refused_when_they_subscribe() -> None:
    broker = make()
    with consuming(broker, Heard(), expression="paid"):
        other = mq.PushConsumer(broker, "g")
        with pytest.raises(mq.SubscriptionConflict, match=r"TAG 'refunded'.*TAG 'paid'") as caught:
            other.subscribe("orders", "refunded", listener=print)
        assert caught.value.group == "g"
        assert caught.value.ours == (Subscription("orders", "refunded"),)
        other.subscribe("orders", "paid", listener=print)
        other.subscribe("payments", listener=print)
        with pytest.raises(mq.SubscriptionConflict):
            other.start()


def test_topics_come_and_go_while_it_runs() -> None:
    broker = make()
    orders, payments = Heard(), Heard()
    with consuming(broker, orders) as consumer:
        consumer.subscribe("payments", listener=payments)  # which does not exist yet
        send(broker, "order")
        orders.wait(1)
        broker.create_topic("payments", 2)
        send(broker, "payment", topic="payments", queue_id=1)
        payments.wait(1)
        consumer.unsubscribe("orders")
        eventually(lambda: {queue.topic for queue in consumer.assignment()} == {"payments"})
        send(broker, "unheard")
        send(broker, "payment", topic="payments", queue_id=0)
        payments.wait(2)
    assert orders.bodies == [b"order"]


def test_a_topic_given_up_while_its_queues_are_claimed_keeps_none_of_them() -> None:
    broker = make(2)
    broker.create_topic("payments", 2)
    consumer: mq.PushConsumer

    def all_of_them(
        _group: str, _client_id: str, queues: Sequence[MessageQueue], _client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if queues[0].topic == "payments":  # after the other topic was shared out, and before it is claimed
            consumer.unsubscribe("orders")
        return queues

    with mq.PushConsumer(broker, "g", allocate=all_of_them) as consumer:
        consumer.subscribe("orders", listener=Heard())
        consumer.subscribe("payments", listener=Heard())
        consumer.start()
        eventually(lambda: {queue.topic for queue in consumer.assignment()} == {"payments"})
        assert owners(broker) == [None, None]


def test_queues_that_a_topic_gains_and_loses_are_taken_and_given_up() -> None:
    broker = make(2)
    changes: list[tuple[str, int, list[int]]] = []
    heard = Heard()

    def listener(topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]) -> None:
        changes.append((topic, len(queues), [queue.queue_id for queue in mine]))

    with consuming(broker, heard, assignment_listener=listener):
        eventually(lambda: ("orders", 2, [0, 1]) in changes)
        broker.create_topic("orders", 4)
        eventually(lambda: ("orders", 4, [0, 1, 2, 3]) in changes)
        broker.create_topic("orders", read_queue_count=1, write_queue_count=4)
        eventually(lambda: ("orders", 1, [0]) in changes)


@pytest.mark.parametrize(("consume_from", "expected"), [("first", [b"old", b"new"]), ("last", [b"new"])])
def test_a_new_group_begins_where_it_is_told_to(consume_from: str, expected: list[bytes]) -> None:
    broker = make()
    send(broker, "old")
    heard = Heard()
    with consuming(broker, heard, consume_from=consume_from, threads=1):
        send(broker, "new")
        heard.wait(len(expected))
        eventually(lambda: committed(broker) == 2)
    assert heard.bodies == expected


def test_with_nothing_to_do_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    wait = MemoryWaiter.wait

    def counted(self: MemoryWaiter, positions: Any, members: Any, timeout: float) -> None:
        waits.append(timeout)
        wait(self, positions, members, timeout)

    monkeypatch.setattr(MemoryWaiter, "wait", counted)
    broker = make(4)
    heard = Heard()
    with consuming(broker, heard):
        send(broker, "one")
        heard.wait(1)
        eventually(lambda: committed(broker) == 1)

        def rests() -> bool:
            """Nothing happens, in a time in which a periodic wake-up would show."""
            before = len(waits)
            time.sleep(0.5)
            return len(waits) == before

        eventually(rests)
        assert waits[-1] > 1


def test_arguments_that_make_no_sense_are_refused() -> None:
    broker = make()
    for wrong, error in (
        ({"model": "both"}, ValueError),
        ({"consume_from": "middle"}, ValueError),
        ({"consume_from": 1.5}, TypeError),
        ({"threads": 0}, ValueError),
        ({"threads": "many"}, TypeError),
        ({"pull_count": 5000}, ValueError),
        ({"max_reconsume_times": -2}, ValueError),
        ({"consume_timeout": 0}, ValueError),
        ({"allocate": "somehow"}, ValueError),
        ({"client_id": "../up"}, ValueError),
        ({"suspend_ms": 5}, ValueError),
        ({"pull_threshold_for_topic": 0}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(wrong)) if "allocate" not in wrong else "somehow"):
            mq.PushConsumer(broker, "g", **wrong)
    with pytest.raises(mq.GroupInvalid):
        mq.PushConsumer(broker, "DEFAULT_CONSUMER")
    with pytest.raises(mq.GroupInvalid):
        mq.PushConsumer(broker, "a b")
    consumer = mq.PushConsumer(broker, "g")
    with pytest.raises(ValueError, match="subscribe"):
        consumer.start()
    with pytest.raises(TypeError):
        consumer.subscribe("orders", listener=17)  # type: ignore[call-overload]  # that is the mistake
    with pytest.raises(ValueError, match="batch_size"):
        consumer.subscribe("orders", listener=print, batch_size=0)
    consumer.subscribe("orders", listener=print)
    consumer.start()
    with pytest.raises(RuntimeError, match="started"):
        consumer.start()
    consumer.close()


def test_a_queue_that_cannot_be_claimed_is_told_of_once_and_the_others_are_consumed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mq.client.engine.consume_loop.ERROR_PAUSE", 0.01)
    claim, fails = MemoryMembership.claim, 10

    heard = Heard()

    def refused(self: MemoryMembership, queue: MessageQueue) -> Any:
        nonlocal fails
        if queue.queue_id < 2 and (fails > 0 or not heard.messages):
            fails -= 1
            raise mq.StoreFull("no space", path="groups/g")
        return claim(self, queue)

    monkeypatch.setattr(MemoryMembership, "claim", refused)
    broker = make(3)
    for queue_id in range(3):
        send(broker, str(queue_id), queue_id=queue_id)
    with consuming(broker, heard):
        heard.wait(3)
    assert heard.bodies[0] == b"2"
    said = [record.getMessage() for record in caplog.records if "could not be claimed" in record.getMessage()]
    assert [text.rpartition(": ")[0].split(" ")[-5] for text in said] == ["orders/0", "orders/1"]


class Counted(MemoryBroker):
    """Counts the pulls of each queue. Its waiters say which queue has something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.pulls: Counter[int] = Counter()
        wait = MemoryWaiter.wait

        def telling(waiter: MemoryWaiter, positions: Any, members: Any, timeout: float) -> Any:
            wait(waiter, positions, members, timeout)
            return next((queue for queue, offset, _ in positions if self.max_offset(queue) > offset), None)

        monkeypatch.setattr(MemoryWaiter, "wait", telling)

    def pull(self, queue: MessageQueue, *rest: Any) -> mq.PullResult:
        self.pulls[queue.queue_id] += 1
        return super().pull(queue, *rest)


@pytest.mark.parametrize("queues", [3, 40])
def test_a_broker_may_say_which_queue_has_something(queues: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Counted(monkeypatch)
    broker.create_topic("orders", queues)
    heard = Heard()
    with consuming(broker, heard) as consumer:
        eventually(lambda: len(consumer.assignment()) == queues)
        for count in range(1, 101):
            send(broker, str(count), queue_id=count * 7 % queues)
            heard.wait(count)
        send(broker, *numbered(200, 1000), queue_id=1)
        send(broker, *numbered(200, 2000), queue_id=2)
        heard.wait(500)
        eventually(lambda: broker.group("g").lag("orders") == 0)
    assert len(set(heard.bodies)) == 500
    if queues > 16:  # Of so many, those that have nothing are left alone.
        assert broker.pulls.total() < 100 * queues


def test_who_leads_next_asks_no_queue_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who found a message runs its slow listener, and another thread leads."""
    broker = Counted(monkeypatch)
    broker.create_topic("orders", 40)
    heard = Heard(act=lambda _message: time.sleep(0.01))
    with consuming(broker, heard) as consumer:
        eventually(lambda: len(consumer.assignment()) == 40)
        for count in range(1, 11):
            send(broker, str(count), queue_id=0)
            heard.wait(count)
        broker.pulls.clear()
        for count in range(11, 61):
            send(broker, str(count), queue_id=0)
            heard.wait(count)
        assert broker.pulls.total() < 10 * 50
