"""Transactions: no consumer sees a half message; it is committed once or never; open ones are checked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import mq
from mq.api.broker import Check
from tests.contract.conftest import Open
from tests.contract.differences import ANSWERED_ENDS, needs
from tests.support.appending import prepare_one
from tests.support.arrivals import read_all

COMMIT, ROLLBACK, UNKNOWN = (
    mq.TransactionState.COMMIT,
    mq.TransactionState.ROLLBACK,
    mq.TransactionState.UNKNOWN,
)
GROUP = "payers"
QUICK: dict[str, Any] = {
    "transaction_timeout": 0.1,
    "transaction_check_interval": 0.15,
    "transaction_check_max": 1000,  # The default of fifteen is over before a slow machine has checked once.
}
PATIENCE = 60.0

Decide = Callable[[mq.MessageExt], mq.TransactionState]


@pytest.fixture
def broker(opened: Open) -> mq.Broker:
    """One that checks soon, and often."""
    broker = opened(**QUICK)
    broker.create_topic("orders", 1)
    return broker


@pytest.fixture
def patient(opened: Open) -> mq.Broker:
    """One that does not check before the test is over."""
    broker = opened(transaction_timeout=3600.0, transaction_check_interval=3600.0)
    broker.create_topic("orders", 1)
    return broker


@pytest.fixture
def queue(broker: mq.Broker) -> mq.Queue:
    return broker.topic("orders").queues[0]


class Answers:
    """A check that is asked, and answers as it is told."""

    def __init__(self, answer: Decide) -> None:
        self.answer = answer
        self.asked: list[mq.MessageExt] = []

    def __call__(self, message: mq.MessageExt) -> mq.TransactionState:
        self.asked.append(message)
        return self.answer(message)


def message(body: bytes = b"x", **options: Any) -> mq.Message:
    return mq.Message("orders", body, **options)


def never(_: mq.MessageExt) -> mq.TransactionState:
    raise AssertionError("asked, though everything was decided")


def wait_until(what: Callable[[], object], why: Callable[[], object] = lambda: "it did not come") -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, why()
        time.sleep(0.005)


def bodies(broker: mq.Broker) -> list[bytes]:
    return [found.body for found in broker.topic("orders").queues[0].read(0).messages]


# By send.


@needs(ANSWERED_ENDS)
def test_what_commits_is_seen_then_and_as_it_was_sent(patient: mq.Broker) -> None:
    queue = patient.topic("orders").queues[0]
    seen: list[int] = []

    def execute(sent: mq.Message, arg: object) -> mq.TransactionState:
        assert (sent.body, arg) == (b"x", "arg")
        seen.append(queue.max_offset)
        return COMMIT

    sent = message(tags="t", keys=["k", "l"], properties={"p": "v"}, flag=3)
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        result = producer.send(sent, execute, "arg")
    assert seen == [0]
    assert (result.status, result.queue) == (mq.SendStatus.SEND_OK, queue.message_queue)
    assert result.transaction_id == result.msg_id
    (found,) = queue.read(0).messages
    assert (found.topic, found.queue_id, found.queue_offset) == ("orders", 0, 0)
    assert (found.body, found.tags, found.keys, found.flag) == (b"x", "t", ("k", "l"), 3)
    assert found.properties["p"] == "v"
    assert (found.msg_id, found.transaction_id) == (result.msg_id, result.msg_id)
    assert found.offset_msg_id != result.offset_msg_id
    assert f"{found.prepared_transaction_offset:016X}" == result.offset_msg_id[-16:]
    assert found.sys_flag & 12 == 8
    assert queue.read(0, expression="t").messages
    assert [each.queue_offset for each in patient.query("orders", "k")] == [0]
    assert patient.message(result.msg_id).topic == "orders"
    assert patient.transactions.undecided() == []


@needs(ANSWERED_ENDS)
def test_what_rolls_back_is_never_seen(patient: mq.Broker) -> None:
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        result = producer.send(message(keys="k"), lambda *_: ROLLBACK)
    assert result.status is mq.SendStatus.SEND_OK
    assert bodies(patient) == []
    assert patient.query("orders", "k") == []
    assert patient.transactions.undecided() == []


@needs(ANSWERED_ENDS)
@pytest.mark.parametrize("outcome", [UNKNOWN, None, "COMMIT", 8, ValueError("no")])
def test_what_is_not_known_stays_undecided(
    patient: mq.Broker, caplog: pytest.LogCaptureFixture, outcome: object
) -> None:
    def execute(*_: object) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with mq.TransactionProducer(patient, GROUP, never) as producer:
        result = producer.send(message(), execute)
    assert bodies(patient) == []
    (undecided,) = patient.transactions.undecided()
    assert (undecided.group, undecided.times_checked, undecided.given_up) == (GROUP, 0, False)
    assert (undecided.message.msg_id, undecided.message.topic) == (result.msg_id, "orders")
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    if outcome is UNKNOWN:
        assert told == []
    else:
        assert len(told) == 1
        assert result.msg_id in told[0].getMessage()
        if isinstance(outcome, Exception):
            assert told[0].exc_info is not None
            assert told[0].exc_info[1] is outcome
        else:
            assert repr(outcome) in told[0].getMessage()


@needs(ANSWERED_ENDS)
def test_queues_take_turns_and_a_shard_key_stands_for_one(patient: mq.Broker) -> None:
    patient.create_topic("wide", 4)

    def send(**options: Any) -> int:
        return producer.send(mq.Message("wide", b"x"), lambda *_: COMMIT, **options).queue.queue_id

    with mq.TransactionProducer(patient, GROUP, never) as producer:
        assert sorted(send() for _ in range(4)) == [0, 1, 2, 3]
        assert len({send(shard_key="a") for _ in range(4)}) == 1
        chosen = patient.topic("wide").queues[2]
        assert send(queue=chosen) == 2
        assert chosen.max_offset >= 2
        assert sum(queue.max_offset for queue in patient.topic("wide").queues) == 9
        with pytest.raises(ValueError, match="give one"):
            send(queue=chosen, shard_key="a")
    with mq.TransactionProducer(patient, GROUP, never, selector=lambda queues, *_: queues[3]) as producer:
        assert [send() for _ in range(3)] == [3, 3, 3]


@needs(ANSWERED_ENDS)
def test_a_large_body_is_compressed_on_its_way(patient: mq.Broker) -> None:
    with mq.TransactionProducer(patient, GROUP, never, compress_over=1000) as producer:
        producer.send(message(b"a" * 10_000), lambda *_: COMMIT)
        producer.send(message(b"a" * 999), lambda *_: COMMIT)
    found = patient.topic("orders").queues[0].read(0).messages
    assert [each.body for each in found] == [b"a" * 10_000, b"a" * 999]
    assert [len(each.stored_body) < 500 for each in found] == [True, False]


@needs(ANSWERED_ENDS)
def test_what_is_no_transaction_is_refused_before_anything_is_stored(patient: mq.Broker) -> None:
    def executed(*_: object) -> mq.TransactionState:
        raise AssertionError("executed")

    with mq.TransactionProducer(patient, GROUP, never) as producer:
        delays: list[dict[str, Any]] = [{"delay_level": 1}, {"delay_ms": 1000}, {"deliver_at_ms": 1000}]
        for delay in delays:
            with pytest.raises(mq.MessageInvalid, match="delay"):
                producer.send(message(**delay), executed)
            with pytest.raises(mq.MessageInvalid, match="delay"):
                producer.begin(message(**delay))
        with pytest.raises(mq.MessageTooLarge):
            producer.send(message(bytes(patient.message_size_max + 1)), executed)
        with pytest.raises(TypeError, match="Message"):
            producer.send(b"x", executed)  # type: ignore[arg-type]  # what callers without types do
        with pytest.raises(TypeError, match="execute"):
            producer.send(message(), COMMIT)  # type: ignore[arg-type]  # as above
        with pytest.raises(TypeError, match=r"TransactionProducer\.send\(\).*'execute'"):
            producer.send(message())  # type: ignore[call-arg]  # as above
        with pytest.raises(mq.TopicInvalid):
            producer.send(mq.Message("no topic", b"x"), executed)
        with pytest.raises(mq.NotPermitted):
            producer.send(mq.Message("SCHEDULE_TOPIC_XXXX", b"x"), executed)
    with pytest.raises(mq.BrokerClosed):
        producer.send(message(), executed)
    with pytest.raises(mq.BrokerClosed):
        producer.begin(message())
    for group, check, error in (
        ("no group", never, mq.GroupInvalid),
        (GROUP, None, TypeError),
    ):
        with pytest.raises(error):
            mq.TransactionProducer(patient, group, check)  # type: ignore[arg-type]  # as above
    with pytest.raises(ValueError, match="threads"):
        mq.TransactionProducer(patient, GROUP, never, threads=0)
    for threads in (True, 1.5, "2", None):
        with pytest.raises(TypeError, match="threads"):
            mq.TransactionProducer(patient, GROUP, never, threads=threads)  # type: ignore[arg-type]  # as above
    assert patient.transactions.undecided() == []
    assert bodies(patient) == []


@needs(ANSWERED_ENDS)
def test_topics_that_change_meanwhile_do_not_matter(patient: mq.Broker) -> None:
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        for number in range(20):
            if number % 5 == 0:
                patient.create_topic("other", 1 + number)
            producer.send(message(b"%d" % number), lambda *_: COMMIT)
    assert bodies(patient) == [b"%d" % number for number in range(20)]


def test_threads_commit_all_of_theirs_once(patient: mq.Broker) -> None:
    def send_many(first: int) -> None:
        for number in range(first, first + 50):
            state = (COMMIT, ROLLBACK)[number % 2]
            producer.send(message(b"%d" % number), lambda *_, state=state: state)

    with mq.TransactionProducer(patient, GROUP, never) as producer:
        threads = [threading.Thread(target=send_many, args=(1000 * each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    queue = patient.topic("orders").queues[0]
    wait_until(lambda: queue.max_offset == 100)
    found = [int(each.body) for each in read_all(queue)]
    assert sorted(found) == [1000 * each + number for each in range(4) for number in range(0, 50, 2)]


# By begin.


@needs(ANSWERED_ENDS)
def test_leaving_the_with_statement_commits(patient: mq.Broker) -> None:
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        with producer.begin(message(), shard_key="a") as transaction:
            assert bodies(patient) == []
            assert transaction.message_id == transaction.result.msg_id
            assert [each.message.msg_id for each in patient.transactions.undecided()] == [
                transaction.message_id
            ]
        assert bodies(patient) == [b"x"]
    assert patient.transactions.undecided() == []


@needs(ANSWERED_ENDS)
def test_an_exception_rolls_back_and_goes_on_up(patient: mq.Broker) -> None:
    error = ValueError("no")
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        with pytest.raises(ValueError, match="no") as raised, producer.begin(message()):
            raise error
        assert raised.value is error
    assert bodies(patient) == []
    assert patient.transactions.undecided() == []


@needs(ANSWERED_ENDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_may_come_at_any_moment_leaves_it_to_check(patient: mq.Broker, error: BaseException) -> None:
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        with pytest.raises(type(error)) as raised, producer.begin(message()) as transaction:
            raise error
        assert raised.value is error
        assert transaction.state is UNKNOWN
    assert bodies(patient) == []
    assert [each.message.body for each in patient.transactions.undecided()] == [b"x"]


@needs(ANSWERED_ENDS)
def test_what_is_decided_early_stays_so(patient: mq.Broker) -> None:
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        with suppress(ZeroDivisionError), producer.begin(message(b"1")) as transaction:
            transaction.commit()
            assert bodies(patient) == [b"1"]
            transaction.commit()
            with pytest.raises(mq.NotPermitted, match="COMMIT"):
                transaction.rollback()
            _ = 1 // 0
        with producer.begin(message(b"2")) as transaction:
            transaction.rollback()
            with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
                transaction.commit()
        with producer.begin(message(b"3")) as transaction:
            transaction.unknown()
    assert bodies(patient) == [b"1"]
    assert [each.message.body for each in patient.transactions.undecided()] == [b"3"]


@needs(ANSWERED_ENDS)
def test_a_producer_that_is_closed_still_ends_what_it_began(patient: mq.Broker) -> None:
    with mq.TransactionProducer(patient, GROUP, never) as producer:
        transaction = producer.begin(message())
    with transaction:
        pass
    assert bodies(patient) == [b"x"]


# Checks.


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_an_undecided_transaction_is_checked(
    broker: mq.Broker, queue: mq.Queue, answer: mq.TransactionState
) -> None:
    check = Answers(lambda _: answer)
    with mq.TransactionProducer(broker, GROUP, check) as producer:
        sent = message(tags="t", keys="k", properties={"p": "v"})
        result = producer.send(sent, lambda *_: UNKNOWN, shard_key="a")
        wait_until(lambda: check.asked)
        wait_until(lambda: queue.max_offset == (answer is COMMIT))
    asked = check.asked[0]
    assert (asked.topic, asked.queue_id) == ("orders", result.queue.queue_id)
    assert (asked.body, asked.tags, asked.keys, asked.properties["p"]) == (b"x", "t", ("k",), "v")
    assert (asked.msg_id, asked.transaction_id) == (result.msg_id, result.msg_id)
    assert [found.msg_id for found in queue.read(0).messages] == [result.msg_id] * (answer is COMMIT)


def test_a_check_that_cannot_tell_is_asked_again(
    broker: mq.Broker, queue: mq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    answers: Iterator[Any] = iter([UNKNOWN, ValueError("no database"), "COMMIT", None, SystemExit(1), COMMIT])

    def answer(_: mq.MessageExt) -> Any:
        state = next(answers, COMMIT)  # On a slow machine it is asked once more before it has answered.
        if isinstance(state, BaseException):
            raise state
        return state

    with mq.TransactionProducer(broker, GROUP, Answers(answer)) as producer:
        result = producer.send(message(), lambda *_: UNKNOWN)
        wait_until(lambda: queue.max_offset == 1)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 4
    assert all(result.msg_id in text for text in told)
    # In any order: a thread may stand still between its answer and what it says of it.
    assert sorted(text.partition(": check ")[2] for text in told) == [
        "failed",
        "failed",
        "returned 'COMMIT', which is no TransactionState",
        "returned None, which is no TransactionState",
    ]


def test_only_producers_of_the_same_group_are_asked(broker: mq.Broker, queue: mq.Queue) -> None:
    with (
        mq.TransactionProducer(broker, "others", never),
        mq.TransactionProducer(broker, GROUP, lambda _: COMMIT) as producer,
    ):
        producer.send(message(), lambda *_: UNKNOWN)
        wait_until(lambda: queue.max_offset == 1)


def test_another_producer_of_the_group_is_asked_when_its_own_is_gone(
    broker: mq.Broker, queue: mq.Queue
) -> None:
    with mq.TransactionProducer(broker, GROUP, never) as first:
        first.send(message(), lambda *_: UNKNOWN)
        first.close()
    with mq.TransactionProducer(broker, GROUP, lambda _: COMMIT):
        wait_until(lambda: queue.max_offset == 1)


def test_a_check_that_hangs_delays_its_own_share_alone(broker: mq.Broker, queue: mq.Queue) -> None:
    released = threading.Event()
    hung: list[bytes] = []

    def hang(asked: mq.MessageExt) -> mq.TransactionState:
        hung.append(asked.body)
        assert released.wait(PATIENCE)
        return UNKNOWN

    with mq.TransactionProducer(broker, GROUP, hang) as producer:
        for number in range(20):
            producer.send(message(b"%d" % number), lambda *_: UNKNOWN)
        wait_until(lambda: hung)
        with mq.TransactionProducer(broker, GROUP, lambda _: COMMIT):
            wait_until(lambda: queue.max_offset == 20, lambda: bodies(broker))
        released.set()
    assert sorted(bodies(broker), key=int) == [b"%d" % number for number in range(20)]


@needs(ANSWERED_ENDS)
def test_a_slow_transaction_that_a_check_has_ended_learns_of_it(broker: mq.Broker, queue: mq.Queue) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    def wait(*_: object) -> mq.TransactionState:
        wait_until(lambda: not broker.transactions.undecided())
        return COMMIT

    with mq.TransactionProducer(broker, GROUP, lambda _: ROLLBACK) as producer:
        with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
            producer.send(message(), wait)
        with pytest.raises(mq.NotPermitted, match="ROLLBACK"), producer.begin(message()):
            wait()
        with pytest.raises(ZeroDivisionError), producer.begin(message()):
            fail(wait())
    assert queue.max_offset == 0
    with mq.TransactionProducer(broker, GROUP, lambda _: COMMIT) as producer:
        producer.send(message(), wait)
        with pytest.raises(ZeroDivisionError), producer.begin(message()):
            fail(wait())
    assert queue.max_offset == 2


def test_a_transaction_is_not_checked_before_its_immunity_time_is_over(opened: Open) -> None:
    broker = opened(**QUICK)
    broker.create_topic("orders", 1)
    check = Answers(lambda _: COMMIT)
    with mq.TransactionProducer(broker, GROUP, check) as producer:
        immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"}
        begin = time.monotonic()
        producer.send(message(b"immune", properties=immune), lambda *_: UNKNOWN)
        producer.send(message(b"not"), lambda *_: UNKNOWN)
        wait_until(lambda: bodies(broker))
        took = time.monotonic() - begin
        wait_until(lambda: len(bodies(broker)) == 2)
    assert sorted(bodies(broker)) == [b"immune", b"not"]
    if took < 2:  # Else a slow machine asks about both at a time.
        assert bodies(broker) == [b"not", b"immune"]
    immune_one = next(each for each in check.asked if each.body == b"immune")
    (committed,) = (
        each for each in broker.topic("orders").queues[0].read(0).messages if each.body == b"immune"
    )
    assert committed.store_time_ms - immune_one.born_time_ms > 2000


@needs(ANSWERED_ENDS)
def test_a_transaction_given_up_without_producers_is_resumed(opened: Open) -> None:
    broker = opened(transaction_timeout=0.05, transaction_check_interval=0.05, transaction_check_max=2)
    broker.create_topic("orders", 1)
    with mq.TransactionProducer(broker, GROUP, never) as producer:
        result = producer.send(message(), lambda *_: UNKNOWN, None)
        producer.close()
    wait_until(lambda: [each.given_up for each in broker.transactions.undecided()] == [True])
    (undecided,) = broker.transactions.undecided()
    assert (undecided.message.msg_id, undecided.group) == (result.msg_id, GROUP)
    assert undecided.times_checked == 2
    with pytest.raises(mq.MessageNotFound):
        broker.transactions.resume("0" * 32)
    with mq.TransactionProducer(broker, GROUP, lambda _: COMMIT):

        def is_committed() -> bool:
            """Resumed again and again: a slow machine gives it up once more before it has asked."""
            with suppress(mq.MessageNotFound, mq.NotPermitted):  # It is decided.
                broker.transactions.resume(result.msg_id)
            return bodies(broker) == [b"x"]

        broker.transactions.resume(result.msg_id)
        wait_until(is_committed)
        wait_until(lambda: not broker.transactions.undecided())  # The message can be seen before that.
    with pytest.raises((mq.MessageNotFound, mq.NotPermitted)):
        broker.transactions.resume(result.msg_id)


# What a broker is asked.


def place_of(result: mq.SendResult) -> tuple[int, int]:
    return int(result.offset_msg_id[-16:], 16), result.queue_offset


def prepared(broker: mq.Broker, body: bytes = b"x") -> mq.SendResult:
    queue = broker.topic("orders").queues[0].message_queue
    return prepare_one(broker, queue, GROUP, message(body), body, 0)


@needs(ANSWERED_ENDS)
def test_an_end_counts_once_and_its_opposite_is_refused(patient: mq.Broker) -> None:
    result = prepared(patient)
    for _ in range(3):
        patient.transactions.ender(GROUP)(*place_of(result), COMMIT)
    patient.transactions.ender(GROUP)(*place_of(result), COMMIT, True)
    assert bodies(patient) == [b"x"]
    with pytest.raises(mq.NotPermitted, match="COMMIT"):
        patient.transactions.ender(GROUP)(*place_of(result), ROLLBACK)
    result = prepared(patient)
    for _ in range(3):
        patient.transactions.ender(GROUP)(*place_of(result), ROLLBACK)
    with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
        patient.transactions.ender(GROUP)(*place_of(result), COMMIT)
    assert bodies(patient) == [b"x"]


@needs(ANSWERED_ENDS)
def test_an_end_of_what_is_no_half_message_is_refused(patient: mq.Broker) -> None:
    log_offset, queue_offset = place_of(prepared(patient))
    sent = patient.topic("orders").send(b"plain")
    for place in (
        (log_offset + 1, queue_offset),
        (log_offset, queue_offset + 1),
        (log_offset, -1),
        (-1, queue_offset),
        (1 << 40, queue_offset),
        place_of(sent),
    ):
        with pytest.raises(mq.MessageNotFound):
            patient.transactions.ender(GROUP)(*place, COMMIT)
    with pytest.raises(mq.NotPermitted, match=GROUP):
        patient.transactions.ender("others")(log_offset, queue_offset, COMMIT)
    patient.transactions.ender(GROUP)(log_offset, queue_offset, UNKNOWN)
    assert bodies(patient) == [b"plain"]
    assert len(patient.transactions.undecided()) == 1


@needs(ANSWERED_ENDS)
def test_several_that_end_one_transaction_at_once_store_one_message(patient: mq.Broker) -> None:
    for _ in range(20):
        result = prepared(patient)
        together = threading.Barrier(4)

        def end(place: tuple[int, int] = place_of(result), together: threading.Barrier = together) -> None:
            together.wait()
            patient.transactions.ender(GROUP)(*place, COMMIT)

        threads = [threading.Thread(target=end) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bodies(patient) == [b"x"] * 20


@needs(ANSWERED_ENDS)
def test_every_place_of_a_transaction_ends_it(broker: mq.Broker, queue: mq.Queue) -> None:
    result = prepared(broker)
    checker = broker.transactions.enlist(GROUP, "asked")
    seen: list[Check] = []

    def asked_twice() -> bool:
        if (asked := checker.next(1.0)) is not None:
            seen.append(asked)
        return len(seen) == 2

    wait_until(asked_twice)
    first, second = seen
    assert (
        place_of(result) != (first.log_offset, first.queue_offset) != (second.log_offset, second.queue_offset)
    )
    broker.transactions.ender(GROUP)(first.log_offset, first.queue_offset, COMMIT, True)
    broker.transactions.ender(GROUP)(*place_of(result), COMMIT)
    with pytest.raises(mq.NotPermitted):
        broker.transactions.ender(GROUP)(second.log_offset, second.queue_offset, ROLLBACK, True)
    assert queue.max_offset == 1
    checker.leave()
    checker.leave()


def test_a_producer_that_waits_for_checks_is_told_to_reconnect(broker: mq.Broker) -> None:
    checker = broker.transactions.enlist(GROUP, "asked")
    assert checker.next(0.0) is None
    begin = time.monotonic()
    checker.wakeup()
    assert checker.next(PATIENCE) is None
    timer = threading.Timer(0.05, checker.wakeup)
    timer.start()
    assert checker.next(PATIENCE) is None
    assert time.monotonic() - begin < PATIENCE
    timer.join()
    checker.leave()


def test_consumers_see_neither_half_messages_nor_their_topic(patient: mq.Broker) -> None:
    prepared(patient)
    assert patient.topics() == ["orders"]
    assert bodies(patient) == []
