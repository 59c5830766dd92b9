"""The checking and the checked process may be any process, may fail, hang and die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.transactions import HalfMessage
from mq.store.shared.process_state import process_state
from tests.support.appending import prepare_one
from tests.support.eventually import eventually
from tests.support.processes.nursery import Nursery
from tests.support.store.peer import Peer
from tests.support.store.sizes import SIZES
from tests.txn.deposits import GROUP, TOPIC, Database, Deposit
from tests.txn.stage import Stage, agreed, deposited, nursery_in, told

pytestmark = pytest.mark.rounds

COUNT = 60
OPTIONS: dict[str, Any] = {
    **SIZES,
    "transaction_timeout": 0.2,
    "transaction_check_interval": 0.3,
    "transaction_check_max": 1000,  # The default of fifteen is over before a slow machine has checked once.
}
DUTY_KILLS = 8


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery_in(tmp_path_factory.mktemp("nursery")) as made:
        yield made


@pytest.fixture
def stage(nursery: Nursery, directory: Path) -> Iterator[Stage]:
    made = Stage(nursery, directory, OPTIONS.copy())
    yield made
    made.end_all()
    assert nursery.failures() == ""


def leave_undecided(
    broker: mq.Broker, database: Database, count: int = COUNT, first: int = 0
) -> list[mq.SendResult]:
    """As producers leave it that died: every second deposit is in the database."""
    broker.create_topic(TOPIC, 2)
    results = []
    queues = broker.publishable(TOPIC)
    for number in range(first, first + count):
        if number % 2:
            # First, since a check may come as soon as the half message is there.
            database.deposit(number)
        message = Deposit(number).message
        results.append(prepare_one(broker, queues[number % 2], GROUP, message, message.body, 0))
    return results


def decided_until(broker: mq.Broker, stage: Stage, are_asked: Callable[[], bool]) -> int:
    """Decide transactions until all processes have been checked. Returns the number of transactions. One that
    is halted leaves its share to others, which may have decided all by the time it goes on."""
    for count in range(COUNT, 20 * COUNT, COUNT):
        leave_undecided(broker, stage.database, first=count - COUNT)
        eventually(lambda: agreed(broker, stage.database), lambda: told(broker, stage.database))
        if are_asked():
            return count
    raise AssertionError("a process is never checked")


def test_any_live_process_of_the_group_is_asked_and_only_those(stage: Stage) -> None:
    with mq.open(stage.directory, **OPTIONS) as broker:
        names = ["one", "two", "three"]
        for name in names:
            stage.checker(name)
        stage.checker("stranger", group="others")
        count = decided_until(broker, stage, lambda: all(map(stage.was_asked, names)))
        assert set.union(*(set(stage.asked(name)) for name in names)) == set(range(count))
        assert stage.asked("stranger") == []


@pytest.mark.parametrize("fails", ["raises", "nonsense", "hangs"])
def test_one_that_cannot_answer_delays_its_share_alone(stage: Stage, fails: str) -> None:
    with mq.open(stage.directory, **OPTIONS) as broker:
        stage.checker("bad", fails=fails)
        stage.checker("good")
        count = decided_until(broker, stage, lambda: stage.was_asked("bad"))
        assert set(stage.asked("good")) == set(range(count))


def test_a_producer_that_is_stopped_passes_its_share_on(directory: Path) -> None:
    options = {**OPTIONS, "transaction_check_interval": 5.0}
    with mq.open(directory, **options) as broker, Peer(directory, **options) as peer:
        broker.create_topic(TOPIC, 1)
        checker = broker.transactions.enlist(GROUP, "goes on")
        peer.do(f"checker = broker.transactions.enlist({GROUP!r}, 'is stopped')")
        os.kill(peer.pid, signal.SIGSTOP)
        try:
            eventually(lambda: process_state(peer.pid).is_stopped, lambda: "it is not stopped")
            (queue,) = broker.publishable(TOPIC)
            message = mq.Message(TOPIC, b"open")
            made = {prepare_one(broker, queue, GROUP, message, message.body, 0).msg_id for _ in range(10)}
            asked: dict[int, set[str]] = {}
            while len(asked) < 2:  # until the second round
                check = checker.next(60.0)
                assert check is not None
                assert isinstance(check.message, HalfMessage)
                asked.setdefault(check.message.times_checked, set()).add(check.message.msg_id)
        finally:
            os.kill(peer.pid, signal.SIGCONT)
        assert asked[1] == made
        checker.leave()


def test_those_asked_are_killed_again_and_again(stage: Stage) -> None:
    with mq.open(stage.directory, **OPTIONS) as broker:
        leave_undecided(broker, stage.database)
        for turn in range(5):
            hanging = stage.checker(f"bad{turn}", fails="hangs")
            eventually(partial(stage.was_asked, f"bad{turn}"), stage.nursery.failures)
            stage.kill(hanging)
        assert deposited(broker) == []
        stage.checker("good")
        eventually(lambda: agreed(broker, stage.database), lambda: told(broker, stage.database))


def test_the_leader_is_killed_meanwhile(stage: Stage) -> None:
    stage.options["transaction_check_interval"] = 0.1
    holders = [stage.holder("holder0")]
    stage.checker("good")
    with mq.open(stage.directory, **stage.options) as broker:
        for turn in range(1, DUTY_KILLS + 1):
            leave_undecided(broker, stage.database, first=turn * COUNT)
            # The oldest has the duties; the next to come may be the next to have them.
            holders.append(stage.holder(f"holder{turn}"))
            time.sleep(0.05 * turn)
            stage.kill(holders.pop(0))
        eventually(lambda: agreed(broker, stage.database), lambda: told(broker, stage.database))
        assert len(stage.database.numbers()) == DUTY_KILLS * COUNT // 2


def test_without_anybody_to_ask_it_is_given_up_and_resumed(stage: Stage) -> None:
    stage.options |= {"transaction_check_interval": 0.1, "transaction_check_max": 3}
    with mq.open(stage.directory, **stage.options) as broker:
        stage.checker("stranger", group="others")
        results = leave_undecided(broker, stage.database, 10)
        eventually(
            lambda: all(each.given_up for each in broker.transactions.undecided()),
            lambda: told(broker, stage.database),
        )
        undecided = broker.transactions.undecided()
        assert sorted(each.message.msg_id for each in undecided) == sorted(each.msg_id for each in results)
        assert {each.times_checked for each in undecided} == {3}
        stage.checker("good")

        def are_decided() -> bool:
            """Again and again: a slow machine gives them up once more before it has asked."""
            for result in results[:5]:
                with suppress(mq.NotPermitted):  # It is decided.
                    broker.transactions.resume(result.msg_id)
            return len(broker.transactions.undecided()) == 5

        eventually(are_decided, lambda: told(broker, stage.database))
        assert set(stage.asked("good")) == set(range(5))
        assert deposited(broker) == [1, 3]


def test_two_processes_that_end_the_same_transactions_store_each_message_once(stage: Stage) -> None:
    apart_ns = 500_000
    with mq.open(stage.directory, **SIZES) as broker:
        results = leave_undecided(broker, stage.database, 400)
        places = [(int(result.offset_msg_id[-16:], 16), result.queue_offset) for result in results]
        begin = time.monotonic_ns() + 500_000_000
        both = [
            stage.start("both_end", options=SIZES, places=places, at_ns=begin, apart_ns=apart_ns)
            for _ in range(2)
        ]
        for process in both:
            stage.wait(process)
        assert deposited(broker) == list(range(400))
        assert broker.transactions.undecided() == []
