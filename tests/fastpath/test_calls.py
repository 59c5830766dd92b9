"""The bound functions that append and pull: odd arguments, closed under way, forked, in many threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.fastpath import pack, survey
from tests.fastpath.calling import Number, Subclass, raised, run_all
from tests.fastpath.ending import ends_well
from tests.fastpath.refcounts import keeps_nothing
from tests.support.appending import append_one

ALL = 1 << 20  # bytes


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as opened:
        yield opened


@pytest.fixture
def queue(broker: mq.LocalBroker) -> mq.MessageQueue:
    return broker.create_topic("orders", 1).queues[0].message_queue


def test_every_kind_of_message_is_stored_alike(broker: mq.LocalBroker, queue: mq.MessageQueue) -> None:
    append = broker.appender(queue)
    kinds = [
        mq.Message("orders", b"0", tags="paid"),
        mq.Message("orders", b"1", tags="paid", flag=-5),
        Subclass("orders", b"2", tags="paid"),
        mq.Message("orders", b"3", tags="paid", wait=False),
        mq.Message("orders", b"4", tags="paid", properties={"a": "b"}),
    ]
    for number, message in enumerate(kinds):
        result = append(message, message.body, 0)
        assert result is not None
        assert (result.queue, result.queue_offset, result.transaction_id) == (queue, number, None)
    assert append(kinds[0], b"5", 0, "A" * 32) is not None
    found = broker.puller(queue)(0, 32, ALL, None, 0.0).messages
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [message.flag for message in found] == [0, -5, 0, 0, 0, 0]
    assert found[-1].msg_id == "A" * 32


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (mq.Message("orders", b"x"),),
        (mq.Message("orders", b"x"), b"x"),
        (mq.Message("orders", b"x"), b"x", 0, None, None),
        (mq.Message("orders", b"x"), "x", 0),
        (mq.Message("orders", b"x"), None, 0),
        (mq.Message("orders", b"x"), b"x", "0"),
        (mq.Message("orders", b"x"), b"x", 1.5),
        (mq.Message("orders", b"x"), b"x", 1 << 31),
        (mq.Message("orders", b"x"), b"x", 1 << 64),
        (mq.Message("orders", b"x"), b"x", 0, 5),
        (mq.Message.__new__(mq.Message), b"x", 0),
        (mq.Message.restored("orders", b"x", 1 << 40, True, b""), b"x", 0),
        (object(), b"x", 0),
        (None, b"x", 0),
    ],
)
def test_odd_arguments_of_an_append_raise_and_store_nothing(
    broker: mq.LocalBroker, queue: mq.MessageQueue, arguments: tuple[Any, ...]
) -> None:
    append: Any = broker.appender(queue)
    for _ in range(2):
        assert raised(lambda: append(*arguments)) in {TypeError, AttributeError, OverflowError}
    with pytest.raises(TypeError):
        append(mq.Message("orders", b"x"), b"x", sys_flag=0)
    assert broker.max_offset(queue) == 0


ODD_PULLS: list[tuple[Any, ...]] = [
    (),
    (0, 1, ALL, None),
    ("0", 1, ALL, None, 0.0),
    (0.5, 1, ALL, None, 0.0),
    (None, 1, ALL, None, 0.0),
    (1 << 63, 1, ALL, None, 0.0),
    (0, "1", ALL, None, 0.0),
    (0, 1.5, ALL, None, 0.0),
    (0, 0, ALL, None, 0.0),
    (0, -1, ALL, None, 0.0),
    (0, Number(5), ALL, None, 0.0),
    (0, 1, "1", None, 0.0),
    (0, 1, ALL, 5, 0.0),
    (0, 1, ALL, None, "0"),
    (0, 1, ALL, None, None),
    (0, 1, ALL, None, 10**400),
]


@pytest.mark.parametrize("arguments", ODD_PULLS)
def test_odd_arguments_of_a_pull_raise_whether_there_is_a_message_or_not(
    broker: mq.LocalBroker, queue: mq.MessageQueue, arguments: tuple[Any, ...]
) -> None:
    pull: Any = broker.puller(queue)
    empty = raised(lambda: pull(*arguments))
    append_one(broker, "orders", 0, mq.Message("orders", b"x"), b"x", 0)
    assert raised(lambda: pull(*arguments)) is empty
    assert empty in {TypeError, ValueError, OverflowError}
    assert pull(0, 1, ALL, None, 0).messages[0].body == b"x"


def test_whole_numbers_of_any_kind_and_size_are_taken(broker: mq.LocalBroker, queue: mq.MessageQueue) -> None:
    for _ in range(3):
        append_one(broker, "orders", 0, mq.Message("orders", b"x"), b"x", 0)
    pull: Any = broker.puller(queue)
    for count_max in (3, 4096, 4097, 1 << 31, 1 << 64):
        assert len(pull(0, count_max, ALL, None, 0.0).messages) == 3
    for byte_max in (0, -1, 1):
        assert len(pull(0, 3, byte_max, None, 0.0).messages) == 1
    assert len(pull(Number(1), 3, Number(ALL), None, 0).messages) == 2
    assert pull(True, 3, ALL, None, False).next_offset == 3
    assert pull(-1, 3, ALL, None, 0.0).status is mq.PullStatus.OFFSET_ILLEGAL
    assert pull(4, 3, ALL, None, 0.0).status is mq.PullStatus.OFFSET_ILLEGAL


def test_after_close_both_say_so(directory: Path) -> None:
    with mq.open(directory) as broker:
        queue = broker.create_topic("orders", 1).queues[0].message_queue
        append, pull = broker.appender(queue), broker.puller(queue)
        message = mq.Message("orders", b"x")
        append(message, b"x", 0)
        (kept,) = pull(0, 1, ALL, None, 0.0).messages
    for _ in range(2):
        with pytest.raises(mq.BrokerClosed):
            append(message, b"x", 0)
        with pytest.raises(mq.BrokerClosed):
            pull(0, 1, ALL, None, 0.0)
        with pytest.raises(mq.BrokerClosed):
            append_one(broker, "orders", 0, message, b"x", 0)
    del broker
    gc.collect()
    with pytest.raises(mq.BrokerClosed):
        append(message, b"x", 0)
    assert kept.body == b"x"


def test_neither_keeps_a_closed_broker_from_being_collected(directory: Path) -> None:
    broker = mq.open(directory)
    queue = broker.create_topic("orders", 1).queues[0].message_queue
    message = mq.Message("orders", b"x")
    append_one(broker, "orders", 0, message, b"x", 0)
    broker.puller(queue)(0, 1, ALL, None, 0.0)
    broker.kept = broker.appender(queue), broker.puller(queue)  # type: ignore[attr-defined]  # a cycle
    broker.close()
    gone = weakref.ref(broker)
    del broker
    gc.collect()
    assert gone() is None


def test_only_the_binding_creates_what_a_function_is_bound_to(
    broker: mq.LocalBroker, queue: mq.MessageQueue
) -> None:
    append: Any = broker.appender(queue)
    with pytest.raises(TypeError):
        type(append.__self__)()


FORKED = """
import os, sys, mq
broker = mq.open(sys.argv[1])
queue = broker.create_topic("orders", 1).queues[0].message_queue
append, pull, producer = broker.appender(queue), broker.puller(queue), mq.Producer(broker)
message = mq.Message("orders", b"x")
producer.send(message)
append(message, b"x", 0)
(kept, _) = pull(0, 2, 1 << 20, None, 0.0).messages
child = os.fork()
if child == 0:
    for call in (
        lambda: append(message, b"x", 0), lambda: pull(0, 1, 1 << 20, None, 0.0),
        lambda: producer.send(message), lambda: broker.appender(queue)(message, b"x", 0),
        lambda: producer.send_batch([message]),
    ):
        try:
            call()
        except mq.ForkedBroker:
            continue
        os._exit(7)
    if kept.body != b"x":
        os._exit(8)
    sys.exit(0)  # an interpreter's usual end, with all of it alive
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
append(message, b"x", 0)
assert pull(0, 9, 1 << 20, None, 0.0).next_offset == 3
broker.close()
"""

SHUT_DOWN = """
import sys, threading, mq
broker = mq.open(sys.argv[1])
queue = broker.create_topic("orders", 1).queues[0].message_queue
append, pull, producer = broker.appender(queue), broker.puller(queue), mq.Producer(broker)
message = mq.Message("orders", b"x")
results = [append(message, b"x", 0), producer.send(message), producer.send_batch([message, message])]
page = pull(0, 3, 1 << 20, None, 0.0)
page.messages.append(page)
started = threading.Semaphore(0)

def work(call):
    call()
    started.release()
    while True:
        call()

class Last:
    def __del__(self):
        append(message, b"last", 0)
        pull(0, 1, 1 << 20, None, 0.0)

sys.last = Last()
calls = (
    lambda: append(message, b"x", 0), lambda: producer.send(message), lambda: pull(0, 3, 1 << 20, None, 0.0),
    lambda: broker.puller(queue)(broker.max_offset(queue), 1, 1 << 20, None, 0.001),
)
for call in calls:
    threading.Thread(target=work, args=(call,), daemon=True).start()
for _ in calls:
    started.acquire()
print("done")
"""


@pytest.mark.parametrize("code", [FORKED, SHUT_DOWN], ids=["forked", "shut down"])
def test_a_process_ends_as_it_should(directory: Path, code: str) -> None:
    ends_well(directory, code)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_broker_closes_while_threads_are_in_every_call(directory: Path, flush: Any) -> None:
    message = mq.Message("orders", b"x" * 100, tags="paid")
    for _ in range(5):
        broker = mq.open(directory, flush=flush)
        queue = broker.create_topic("orders", 2).queues[0].message_queue
        append, pull, producer = broker.appender(queue), broker.puller(queue), mq.Producer(broker)
        first = append(message, b"first", 0)
        assert first is not None
        at = first.queue_offset
        enough = threading.Semaphore(0)

        def sends() -> None:
            producer.send(message)  # noqa: B023 - over before the next round
            enough.release()  # noqa: B023 - the same

        calls: list[Callable[[], object]] = [
            lambda: append(message, b"x", 0),  # noqa: B023 - the same
            lambda: pull(at, 100, ALL, None, 0.0),  # noqa: B023 - the same
            lambda: pull(at, 1, ALL, None, 0.0),  # noqa: B023 - the same
            lambda: pull(1 << 40, 1, ALL, None, 5.0),  # noqa: B023 - the same
            lambda: broker.puller(queue)(broker.max_offset(queue), 1, ALL, None, 5.0),  # noqa: B023 - the same
            lambda: producer.send_batch([message] * 10),  # noqa: B023 - the same
            sends,
        ]

        def close() -> None:
            # With a limit: a thread that ended with an error is reported below.
            all(enough.acquire(timeout=60) for _ in range(50))  # noqa: B023 - the same
            broker.close()  # noqa: B023 - the same

        assert run_all(calls, close) == []


def test_topics_come_and_go_while_threads_are_in_every_call(directory: Path) -> None:
    """A route that is out of date is found anew, by whichever thread notices; nothing goes elsewhere."""
    broker = mq.open(directory, auto_create_topics=False)
    broker.create_topic("orders", 1)
    queue = mq.MessageQueue("orders", "mq", 0)
    pull, producer = broker.puller(queue), mq.Producer(broker)
    message = mq.Message("orders", b"x", tags="paid")
    ended = False

    def going_on(call: Callable[[], object]) -> Callable[[], None]:
        def once() -> None:
            if ended:
                raise mq.BrokerClosed("ended")
            with suppress(mq.TopicNotFound, mq.NotPermitted):
                call()

        return once

    def pulls() -> None:
        for found in pull(0, 100, ALL, None, 0.0).messages:
            assert (found.topic, found.body) == ("orders", b"x")

    def change() -> None:
        nonlocal ended
        for number in range(60):
            broker.create_topic(f"other{number}", 1)
            if number % 5 == 0:
                broker.delete_topic("orders")
                broker.create_topic("orders", 1)
        producer.close()
        ended = True

    calls = [
        going_on(lambda: producer.send(message)),
        going_on(lambda: producer.send(message)),
        going_on(lambda: append_one(broker, "orders", 0, message, b"x", 0)),
        going_on(pulls),
        going_on(pulls),
    ]
    assert run_all(calls, change) == []
    broker.close()


def test_calls_give_their_memory_back(broker: mq.LocalBroker, queue: mq.MessageQueue) -> None:
    append, pull, producer = broker.appender(queue), broker.puller(queue), mq.Producer(broker)
    message, unusual = mq.Message("orders", b"x"), mq.Message("orders", b"x", wait=False)
    batch = [message] * 3
    odd: Any = append

    def each() -> None:
        append(message, b"x", 0)
        producer.send(message)
        producer.send(unusual)
        producer.send_batch(batch)
        assert len(pull(0, 5, ALL, None, 0.0).messages) == 5
        pull(1 << 40, 10, ALL, None, 0.0)
        for arguments in ((message, "x", 0), (message, b"x", "0"), (message,)):
            with suppress(TypeError):
                odd(*arguments)

    shared = (mq.Message, mq.MessageExt, mq.SendResult, mq.PullResult, message, queue, mq.SendStatus.SEND_OK)
    assert keeps_nothing(each, shared, 2000)


def test_a_batch_of_anything_unusual_is_left_to_python() -> None:
    usual = mq.Message("orders", b"12", tags="paid")
    size = 2 + len(usual.encoded)
    assert survey([usual, usual]) == 2 * size
    packed = pack([usual, usual])
    assert packed is not None
    assert (packed[0], packed[2]) == (b"1212", usual.encoded * 2)
    assert [int.from_bytes(packed[1][at : at + 4], sys.byteorder) for at in (0, 4)] == [2, 2]
    unusual: Sequence[Any] = (
        Subclass("orders", b"1"),
        mq.Message("orders", b"1", wait=False),
        mq.Message("orders", b"1", delay_level=1),
        mq.Message.__new__(mq.Message),
        object(),
        None,
    )
    for odd in unusual:
        for messages in ([odd], [odd, usual], [usual, odd]):
            assert survey(messages) is None
            assert pack(messages) is None
    assert survey([usual, mq.Message("others", b"1")]) is None
    assert pack([mq.Message("orders", b"1", flag=1)]) is None
    assert survey([]) is None
    no_lists: Sequence[Any] = ((usual,), None, 5)
    for no_list in no_lists:
        assert survey(no_list) is None
        assert pack(no_list) is None


def test_what_was_never_filled_in_is_not_sent(broker: mq.LocalBroker, queue: mq.MessageQueue) -> None:
    producer = mq.Producer(broker)
    producer.send(mq.Message("orders", b"x"))
    for send in (producer.send, producer.send_async, lambda message: producer.send_batch([message])):
        with pytest.raises((AttributeError, TypeError)):
            send(mq.Message.__new__(mq.Message))
    assert broker.max_offset(queue) == 1


def test_a_result_that_a_producer_got_outlives_everything(directory: Path) -> None:
    with mq.open(directory) as broker, mq.Producer(broker) as producer:
        broker.create_topic("orders", 1)
        result, batch = (
            producer.send(mq.Message("orders", b"x")),
            producer.send_batch([mq.Message("orders", b"x")] * 2),
        )
        told = [message.msg_id for message in broker.topic("orders").queues[0].read(0).messages]
    del broker, producer
    gc.collect()
    assert [result.msg_id, *batch.msg_ids] == told
    assert [each.queue_offset for each in (result, *batch.split())] == [0, 1, 2]
    assert len(batch.offset_msg_id.split(",")) == 2
