"""A TransactionProducer whose broker has troubles: half messages that are not safe, ends that get nowhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import mq
from mq.api.broker import Appender, Check, Ender, SendResult
from tests.support.memory.broker import MemoryBroker
from tests.support.store.small_store import log_offset_of

GROUP = "payers"
COMMIT, ROLLBACK, UNKNOWN = (
    mq.TransactionState.COMMIT,
    mq.TransactionState.ROLLBACK,
    mq.TransactionState.UNKNOWN,
)
MESSAGE = mq.Message("orders", b"x")
PASSING = [
    mq.StoreFull("full", path="commitlog"),
    mq.StorePoisoned("poisoned"),
    mq.RemotingError("gone"),
    mq.RequestTimeout("late"),
    OSError(5, "I/O error"),
]


class Troubled(MemoryBroker):
    """A broker in memory that fails as it is told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.status = mq.SendStatus.SEND_OK
        self.failures: list[Exception] = []  # of half messages
        self.end_failure: Exception | None = None
        self.check_failures: list[Exception] = []  # of ends that a check asked for
        self.ids: list[str | None] = []
        self.states: list[mq.TransactionState] = []
        preparer, ender = self.transactions.preparer, self.transactions.ender
        self.transactions.preparer = partial(self.troubled_preparer, preparer)  # type: ignore[method-assign]  # as told
        self.transactions.ender = partial(self.troubled_ender, ender)  # type: ignore[method-assign]  # as above

    def troubled_preparer(
        self, preparer: Callable[..., Appender], queue: mq.MessageQueue, group: str
    ) -> Appender:
        usual = preparer(queue, group)

        def prepare(
            message: mq.Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> mq.SendResult | None:
            self.ids.append(unique_id)
            if self.failures:
                raise self.failures.pop(0)
            found = usual(message, body, sys_flag, unique_id)
            if found is None:
                return None
            return mq.SendResult(
                self.status,
                found.queue,
                found.queue_offset,
                found.msg_id,
                (bytes.fromhex(found.offset_msg_id)[:-8], log_offset_of(found)),
                found.transaction_id,
            )

        return prepare

    def troubled_ender(self, ender: Callable[[str], Ender], group: str) -> Ender:
        usual = ender(group)

        def end(
            log_offset: int,
            queue_offset: int,
            state: mq.TransactionState,
            from_check: bool = False,
            of: SendResult | Check | None = None,
            /,
        ) -> None:
            if from_check:
                if self.check_failures:
                    raise self.check_failures.pop(0)
            else:
                self.states.append(state)
                if self.end_failure is not None:
                    raise self.end_failure
            usual(log_offset, queue_offset, state, from_check, of)

        return end


@pytest.fixture
def broker() -> Troubled:
    made = Troubled()
    made.create_topic("orders", 1)
    return made


def never(_: mq.MessageExt) -> mq.TransactionState:
    raise AssertionError("asked")


def executed(*_: object) -> mq.TransactionState:
    raise AssertionError("executed")


@pytest.mark.parametrize(
    "status", [status for status in mq.SendStatus if status is not mq.SendStatus.SEND_OK]
)
def test_a_half_message_that_is_not_safe_is_rolled_back_before_anything_is_done(
    broker: Troubled, status: mq.SendStatus
) -> None:
    broker.status = status
    with mq.TransactionProducer(broker, GROUP, never) as producer:
        result = producer.send(MESSAGE, executed)
        assert result.status is status
        with pytest.raises(mq.SendFailed, match=status.name):
            producer.begin(MESSAGE)
    assert broker.states == [ROLLBACK, ROLLBACK]
    assert broker.transactions.undecided() == []
    assert broker.topic("orders").queues[0].max_offset == 0


@pytest.mark.parametrize("failure", PASSING, ids=lambda failure: type(failure).__name__)
def test_an_end_that_may_get_through_later_is_logged_and_left_to_check(
    broker: Troubled, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broker.end_failure = failure
    with mq.TransactionProducer(broker, GROUP, never) as producer:
        result = producer.send(MESSAGE, lambda *_: COMMIT)
        with producer.begin(MESSAGE) as transaction:
            pass
        with pytest.raises(ZeroDivisionError), producer.begin(MESSAGE):
            _ = 1 // 0
    assert transaction.state is COMMIT
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.exc_info[1] for record in told if record.exc_info] == [failure] * 3
    assert result.msg_id in told[0].getMessage()
    assert [
        word in record.getMessage()
        for record, word in zip(told, ("COMMIT", "COMMIT", "ROLLBACK"), strict=True)
    ]
    assert len(broker.transactions.undecided()) == 3


@pytest.mark.parametrize(
    "failure", [mq.NotPermitted("rolled back"), mq.MessageNotFound("A"), mq.BrokerClosed("closed")]
)
def test_an_end_that_never_will_is_raised(broker: Troubled, failure: Exception) -> None:
    broker.end_failure = failure
    with mq.TransactionProducer(broker, GROUP, never) as producer:
        with pytest.raises(type(failure)):
            producer.send(MESSAGE, lambda *_: COMMIT)
        with pytest.raises(type(failure)), producer.begin(MESSAGE):
            pass
        # What went wrong first goes first.
        with pytest.raises(ZeroDivisionError), producer.begin(MESSAGE):
            _ = 1 // 0


def test_a_half_message_is_tried_again_under_its_id(broker: Troubled) -> None:
    lost = mq.RequestTimeout("no answer")
    lost.unique_id = "C0" * 16
    broker.failures = [lost, mq.RemotingError("busy", code=2)]
    with mq.TransactionProducer(broker, GROUP, never) as producer:
        result = producer.send(MESSAGE, lambda *_: COMMIT)
        assert broker.ids == [None, "C0" * 16, "C0" * 16]
        assert result.msg_id == "C0" * 16
        broker.failures = [mq.RemotingError("gone") for _ in range(3)]
        with pytest.raises(mq.SendFailed):
            producer.send(MESSAGE, executed)
        broker.failures = [mq.StoreFull("full", path="commitlog")]
        with pytest.raises(mq.StoreFull):
            producer.begin(MESSAGE)
    assert broker.topic("orders").queues[0].max_offset == 1


def test_a_check_whose_answer_does_not_get_through_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    broker = Troubled(transaction_timeout=0.02, transaction_check_interval=0.05, transaction_check_max=1000)
    broker.create_topic("orders", 1)
    failures: list[Exception] = [
        mq.StoreFull("full", path="commitlog"),
        mq.MessageNotFound("A"),
        OSError(5, "I/O"),
    ]
    broker.check_failures = failures
    with mq.TransactionProducer(broker, GROUP, lambda _: COMMIT) as producer:
        producer.send(MESSAGE, lambda *_: UNKNOWN)
        until = time.monotonic() + 30
        while broker.transactions.undecided():
            assert time.monotonic() < until
            time.sleep(0.01)
    assert failures == []
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


class Scripted:
    """A checker that gives what it is told, in turn, and waits after that."""

    def __init__(self, *turns: Check | Exception | None) -> None:
        self._turns = list(turns)
        self._poked = threading.Event()
        self.has_left = False

    def next(self, wait: float) -> Check | None:
        if not self._turns:
            self._poked.wait(wait)
            return None
        turn = self._turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def wakeup(self) -> None:
        self._poked.set()

    def leave(self) -> None:
        self.has_left = True


def asked_about(broker: Troubled) -> Check:
    with mq.TransactionProducer(broker, GROUP, never) as producer:
        producer.send(MESSAGE, lambda *_: UNKNOWN)
    half = broker.transactions.undecided()[0].message
    return Check(half, GROUP, half.log_offset, half.queue_offset)


def test_a_broker_that_cannot_tell_what_to_check_is_asked_again(
    broker: Troubled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mq.txn.answers.ERROR_PAUSE", 0.01)
    checker = Scripted(ValueError("damaged"), None, OSError(5, "I/O"), asked_about(broker))
    broker.transactions.enlist = lambda *_: checker  # type: ignore[assignment]  # a broker of one checker
    with mq.TransactionProducer(broker, GROUP, lambda _: COMMIT):
        until = time.monotonic() + 30
        while broker.transactions.undecided():
            assert time.monotonic() < until
            time.sleep(0.01)
    assert checker.has_left
    assert len([record for record in caplog.records if "go on in" in record.getMessage()]) == 2


def test_close_does_not_wait_for_ever_for_a_check_that_hangs(
    broker: Troubled, caplog: pytest.LogCaptureFixture
) -> None:
    released, hangs = threading.Event(), threading.Event()

    def hang(_: mq.MessageExt) -> mq.TransactionState:
        hangs.set()
        released.wait()
        return COMMIT

    checker = Scripted(asked_about(broker))
    broker.transactions.enlist = lambda *_: checker  # type: ignore[assignment]  # as above
    producer = mq.TransactionProducer(broker, GROUP, hang, threads=2)
    assert hangs.wait(30)
    producer.close(1.0)
    assert checker.has_left
    assert "without waiting longer for 1 check" in caplog.text
    producer.close()  # twice is fine, and takes no time
    released.set()


def test_a_check_may_close_its_producer(broker: Troubled) -> None:
    checker = Scripted(asked_about(broker))
    broker.transactions.enlist = lambda *_: checker  # type: ignore[assignment]  # as above
    closed = threading.Event()

    def close(_: mq.MessageExt) -> mq.TransactionState:
        made.wait()
        producer.close()
        closed.set()
        return COMMIT

    made = threading.Event()
    producer = mq.TransactionProducer(broker, GROUP, close)
    made.set()
    assert closed.wait(30)
    assert checker.has_left
