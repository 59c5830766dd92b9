"""Half messages, their ends and a TransactionProducer in C: odd arguments, closed under way, forked."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.fastpath.calling import Number, Subclass, raised, run_all
from tests.fastpath.ending import ends_well
from tests.support.appending import prepare_one

ALL = 1 << 20
GROUP = "payers"
COMMIT, ROLLBACK, UNKNOWN = (
    mq.TransactionState.COMMIT,
    mq.TransactionState.ROLLBACK,
    mq.TransactionState.UNKNOWN,
)


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as opened:
        yield opened


@pytest.fixture
def queue(broker: mq.LocalBroker) -> mq.MessageQueue:
    return broker.create_topic("orders", 1).queues[0].message_queue


@pytest.fixture
def producer(broker: mq.LocalBroker, queue: mq.MessageQueue) -> Iterator[mq.TransactionProducer]:
    with mq.TransactionProducer(broker, GROUP, lambda _: UNKNOWN) as made:
        yield made


def place_of(result: mq.SendResult) -> tuple[int, int]:
    return int(result.offset_msg_id[-16:], 16), result.queue_offset


def commits(*_: object) -> mq.TransactionState:
    return COMMIT


def test_every_kind_of_message_is_prepared_alike(broker: mq.LocalBroker, queue: mq.MessageQueue) -> None:
    prepare, end = broker.transactions.preparer(queue, GROUP), broker.transactions.ender(GROUP)
    kinds = [
        mq.Message("orders", b"0", tags="paid", keys=["k", "l"]),
        mq.Message("orders", b"1", tags="paid", flag=-5),
        Subclass("orders", b"2", tags="paid"),
        mq.Message("orders", b"3", tags="paid", wait=False),
        mq.Message("orders", b"4", tags="paid", properties={"a": "b"}),
    ]
    for number, message in enumerate(kinds):
        result = prepare(message, message.body, 0)
        assert result is not None
        assert (result.queue, result.queue_offset, result.status) == (queue, number, mq.SendStatus.SEND_OK)
        assert result.transaction_id == result.msg_id
        end(*place_of(result), COMMIT)
    given = prepare(kinds[0], b"5", 0, "A" * 32)
    assert given is not None
    assert given.msg_id == given.transaction_id == "A" * 32
    end(*place_of(given), COMMIT)
    found = broker.puller(queue)(0, 32, ALL, None, 0.0).messages
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [message.flag for message in found] == [0, -5, 0, 0, 0, 0]
    for each in found:
        names = each.properties
        assert (names["TRAN_MSG"], names["PGROUP"], names["TAGS"]) == ("true", GROUP, "paid")
        assert (names["REAL_TOPIC"], names["REAL_QID"]) == ("orders", "0")
        assert names["UNIQ_KEY"] == names["__transactionId__"] == each.msg_id


ODD_HALVES: list[tuple[Any, ...]] = [
    (),
    (mq.Message("orders", b"x"),),
    (mq.Message("orders", b"x"), b"x"),
    (mq.Message("orders", b"x"), b"x", 0, None, None),
    (mq.Message("orders", b"x"), "x", 0),
    (mq.Message("orders", b"x"), None, 0),
    (mq.Message("orders", b"x"), b"x", "0"),
    (mq.Message("orders", b"x"), b"x", 1 << 64),
    (mq.Message("orders", b"x"), b"x", 0, 5),
    (mq.Message.__new__(mq.Message), b"x", 0),
    (object(), b"x", 0),
    (None, b"x", 0),
]


@pytest.mark.parametrize("arguments", ODD_HALVES)
def test_odd_arguments_of_a_half_message_raise_and_store_nothing(
    broker: mq.LocalBroker, queue: mq.MessageQueue, arguments: tuple[Any, ...]
) -> None:
    prepare: Any = broker.transactions.preparer(queue, GROUP)
    for _ in range(2):
        assert raised(lambda: prepare(*arguments)) in {TypeError, AttributeError, OverflowError}
    assert broker.transactions.undecided() == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (0, 0),
        (0, 0, COMMIT, None),
        ("0", 0, COMMIT),
        (0, "0", COMMIT),
        (0, None, ROLLBACK),
        (0.0, 0, COMMIT),
        (0, 0, 8),
        (0, 0, "COMMIT"),
        (0, 0, None),
        (0, 0, mq.SendStatus.SEND_OK),
        (1 << 64, 0, COMMIT),
        (0, -(1 << 64), ROLLBACK),
    ],
)
def test_odd_arguments_of_an_end_raise_and_end_nothing(
    broker: mq.LocalBroker, queue: mq.MessageQueue, arguments: tuple[Any, ...]
) -> None:
    result = prepare_one(broker, queue, GROUP, mq.Message("orders", b"x"), b"x", 0)
    end: Any = broker.transactions.ender(GROUP)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, OverflowError, mq.MessageNotFound)):
            end(*arguments)
    assert [each.message.msg_id for each in broker.transactions.undecided()] == [result.msg_id]
    end(*place_of(result), UNKNOWN)
    assert len(broker.transactions.undecided()) == 1
    log_offset, queue_offset = place_of(result)
    with suppress(TypeError):
        end(Number(log_offset), Number(queue_offset), COMMIT)
    end(log_offset, queue_offset, COMMIT)
    assert broker.max_offset(queue) == 1


def test_odd_ways_to_send_are_told(broker: mq.LocalBroker, producer: mq.TransactionProducer) -> None:
    send: Any = producer.send
    begin: Any = producer.begin
    message = mq.Message("orders", b"x")
    for call in (
        send,
        lambda: send(message),
        lambda: send(message, None),
        lambda: send(message, commits, 1, 2),
        lambda: send(message, commits, args=1),
        lambda: send(message, commits, queue=5),
        lambda: send(b"x", commits),
        lambda: send(mq.Message.__new__(mq.Message), commits),
        begin,
        lambda: begin(message, message),
        lambda: begin(None),
        lambda: begin(message, execute=commits),
    ):
        assert raised(call) in {TypeError, AttributeError}
    assert broker.transactions.undecided() == []
    assert send(message, execute=commits, arg=5).status is mq.SendStatus.SEND_OK
    assert send(Subclass("orders", b"x"), commits).status is mq.SendStatus.SEND_OK
    assert send(message=message, execute=commits).status is mq.SendStatus.SEND_OK
    assert broker.transactions.undecided() == []


def test_what_ends_more_than_a_transaction_goes_on_up(
    broker: mq.LocalBroker, producer: mq.TransactionProducer
) -> None:
    for message in (mq.Message("orders", b"x"), Subclass("orders", b"x")):
        for error in (KeyboardInterrupt, SystemExit, GeneratorExit):

            def execute(*_: object, error: type[BaseException] = error) -> mq.TransactionState:
                raise error

            with pytest.raises(error):
                producer.send(message, execute)
    assert len(broker.transactions.undecided()) == 6


def test_a_transaction_is_made_by_begin_alone_and_shows_what_it_is(producer: mq.TransactionProducer) -> None:
    made: Any = mq.Transaction()  # type: ignore[call-arg, unused-ignore]  # as a user might
    with pytest.raises(AttributeError):
        _ = made.result
    for use in (made.commit, made.rollback, made.unknown, made.__enter__().commit):
        with pytest.raises((TypeError, AttributeError)):
            use()
    with pytest.raises((TypeError, AttributeError, mq.MQError)), made:
        pass
    begun: Any = producer.begin(mq.Message("orders", b"x"))
    assert begun.state is None
    assert "undecided" in repr(begun)
    with pytest.raises(AttributeError):
        begun.state = COMMIT
    with pytest.raises(TypeError):
        begun.__exit__()
    begun.unknown()
    assert begun.state is UNKNOWN
    assert "UNKNOWN" in repr(begun)


def test_a_subclass_has_its_own_way(broker: mq.LocalBroker, queue: mq.MessageQueue) -> None:
    class Counting(mq.TransactionProducer):
        count = 0

        def send(self, *arguments: Any, **options: Any) -> mq.SendResult:
            self.count += 1
            return super().send(*arguments, **options)

        def begin(self, *arguments: Any, **options: Any) -> mq.Transaction:
            self.count += 1
            return super().begin(*arguments, **options)

    with Counting(broker, GROUP, lambda _: UNKNOWN) as producer:
        producer.send(mq.Message("orders", b"x"), commits)
        with producer.begin(mq.Message("orders", b"x")):
            pass
        assert producer.count == 2
    assert broker.max_offset(queue) == 2


def test_after_close_all_say_so(directory: Path) -> None:
    with mq.open(directory) as broker:
        queue = broker.create_topic("orders", 1).queues[0].message_queue
        prepare, end = broker.transactions.preparer(queue, GROUP), broker.transactions.ender(GROUP)
        producer = mq.TransactionProducer(broker, GROUP, lambda _: UNKNOWN)
        message = mq.Message("orders", b"x")
        result = prepare(message, b"x", 0)
        assert result is not None
        begun = producer.begin(message)
    for _ in range(2):
        with pytest.raises(mq.BrokerClosed):
            prepare(message, b"x", 0)
        with pytest.raises(mq.BrokerClosed):
            end(*place_of(result), COMMIT)
        with pytest.raises(mq.BrokerClosed):
            producer.send(message, commits)
    with pytest.raises(mq.BrokerClosed), begun:
        pass
    producer.close()
    del broker
    gc.collect()
    with pytest.raises(mq.BrokerClosed):
        prepare(message, b"x", 0)
    with mq.open(directory) as broker:
        assert len(broker.transactions.undecided()) == 2


def test_none_of_them_keeps_a_closed_broker_from_being_collected(directory: Path) -> None:
    broker = mq.open(directory)
    queue = broker.create_topic("orders", 1).queues[0].message_queue
    producer = mq.TransactionProducer(broker, GROUP, lambda _: UNKNOWN)
    producer.send(mq.Message("orders", b"x"), commits)
    kept = [
        broker.transactions.preparer(queue, GROUP),
        broker.transactions.ender(GROUP),
        producer,
        producer.begin(mq.Message("orders", b"x")),
    ]
    broker.kept = kept  # type: ignore[attr-defined]  # a cycle
    producer.close()
    broker.close()
    gone = weakref.ref(broker)
    del broker, producer, kept
    gc.collect()
    assert gone() is None


FORKED = """
import os, sys, mq
broker = mq.open(sys.argv[1])
queue = broker.create_topic("orders", 1).queues[0].message_queue
COMMIT = mq.TransactionState.COMMIT
prepare, end = broker.transactions.preparer(queue, "payers"), broker.transactions.ender("payers")
producer = mq.TransactionProducer(broker, "payers", lambda _: COMMIT)
message = mq.Message("orders", b"x")
result = prepare(message, b"x", 0)
place = int(result.offset_msg_id[-16:], 16), result.queue_offset
begun = producer.begin(message)
child = os.fork()
if child == 0:
    for call in (
        lambda: prepare(message, b"x", 0), lambda: end(*place, COMMIT), begun.commit,
        lambda: producer.send(message, lambda *_: COMMIT), lambda: producer.begin(message),
        broker.transactions.undecided,
    ):
        try:
            call()
        except mq.ForkedBroker:
            continue
        os._exit(7)
    producer.close()
    sys.exit(0)  # an interpreter's usual end, with all of it alive
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
end(*place, COMMIT)
begun.commit()
assert broker.max_offset(queue) == 2
broker.close()
"""

SHUT_DOWN = """
import sys, threading, mq
OFTEN = {"transaction_timeout": 0.01, "transaction_check_interval": 0.01, "transaction_check_max": 1_000_000}
broker = mq.open(sys.argv[1], **OFTEN)
broker.create_topic("orders", 1)
COMMIT = mq.TransactionState.COMMIT
producer = mq.TransactionProducer(broker, "payers", lambda _: mq.TransactionState.UNKNOWN)
message = mq.Message("orders", b"x")
begun = producer.begin(message)
producer.send(message, lambda *_: mq.TransactionState.UNKNOWN)
started = threading.Semaphore(0)

def work(call):
    call()
    started.release()
    while True:
        call()

def begin():
    with producer.begin(message):
        pass

class Last:
    def __del__(self):
        begun.commit()

sys.last = Last()
for call in (begin, lambda: producer.send(message, lambda *_: COMMIT)):
    threading.Thread(target=work, args=(call,), daemon=True).start()
    started.acquire()
print("done")
"""


@pytest.mark.parametrize("code", [FORKED, SHUT_DOWN], ids=["forked", "shut down"])
def test_a_process_ends_as_it_should(directory: Path, code: str) -> None:
    ends_well(directory, code)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_broker_closes_while_threads_are_in_every_call(directory: Path, flush: Any) -> None:
    message = mq.Message("orders", b"x" * 100, tags="paid")
    for _ in range(3):
        broker = mq.open(directory, flush=flush, transaction_timeout=0.01, transaction_check_interval=0.01)
        queue = broker.create_topic("orders", 2).queues[0].message_queue
        preparers, end = [broker.transactions.preparer(queue, GROUP)], broker.transactions.ender(GROUP)
        producer = mq.TransactionProducer(broker, GROUP, commits)
        enough = threading.Semaphore(0)
        # As transactions do that were checked in vain too often, on a slow machine.
        broker.create_topic(f"later-{len(broker.topics())}", 1)

        def prepares() -> None:
            result = preparers[-1](message, b"x", 0)  # noqa: B023 - over before the next round
            if result is None:
                preparers.append(broker.transactions.preparer(queue, GROUP))  # noqa: B023 - the same
                return
            end(*place_of(result), COMMIT)  # noqa: B023 - the same
            enough.release()  # noqa: B023 - the same

        def begins() -> None:
            with producer.begin(message):  # noqa: B023 - the same
                pass

        def leaves() -> None:
            producer.send(message, lambda *_: UNKNOWN)  # noqa: B023 - the same
            assert len(broker.transactions.undecided()) < 1000  # noqa: B023 - the same
            time.sleep(0.005)

        calls: list[Callable[[], object]] = [
            prepares,
            begins,
            lambda: producer.send(message, commits),  # noqa: B023 - the same
            leaves,
        ]

        def close() -> None:
            # With a limit: a thread that ended with an error is reported below.
            all(enough.acquire(timeout=60) for _ in range(10))  # noqa: B023 - the same
            broker.close()  # noqa: B023 - the same

        assert run_all(calls, close) == []
        producer.close()


def test_transactions_give_their_memory_back(
    broker: mq.LocalBroker, queue: mq.MessageQueue, producer: mq.TransactionProducer
) -> None:
    message = mq.Message("orders", b"x")
    send: Any = producer.send
    seen: list[weakref.ref[Any]] = []

    class Arg:
        pass

    def each() -> None:
        arg = Arg()
        seen.append(weakref.ref(arg))
        producer.send(message, commits, arg)
        producer.send(message, lambda *_: ROLLBACK, arg)
        with producer.begin(message):
            pass
        with suppress(ZeroDivisionError), producer.begin(message):
            _ = 1 // 0
        for arguments in ((message,), (message, None), (b"x", commits)):
            with suppress(TypeError):
                send(*arguments)

    for _ in range(3):
        each()
    gc.collect()

    def kept() -> int:
        before = len(gc.get_objects())
        for _ in range(50):
            each()
        gc.collect()
        return len(gc.get_objects()) - before

    # Those that `seen` got, and some that other threads have in hand; these may be more once or twice.
    assert any(kept() < 50 + 20 for _ in range(3))
    assert [ref for ref in seen if ref() is not None] == []
    assert sys.getrefcount(COMMIT) < 1000
