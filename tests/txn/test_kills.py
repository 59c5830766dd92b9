"""Producers die at every step of a transaction, and database and messages agree afterwards.

The database is the truth. It is asked by the live members of the group; that includes the very processes that
are about to die, and whose answers then are lost.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.support.eventually import eventually
from tests.support.processes.halts import halts
from tests.support.processes.nursery import Nursery, Process
from tests.support.store.sizes import SIZES
from tests.txn.deposits import GROUP, TOPIC, Check, Step
from tests.txn.stage import Stage, agreed, nursery_in, told

pytestmark = pytest.mark.rounds

COUNT = int(os.environ.get("MQ_TRANSACTION_KILLS", "1000"))
PER_PROCESS = 4 * len(Step)
PRODUCERS = 4
AT_A_TIME = 3
RANDOM_KILLS = int(os.environ.get("MQ_TRANSACTION_RANDOM_KILLS", "40"))
TIMEOUT = 0.5
INTERVAL = 1.0
MARGIN = 30.0  # s, for a machine with other work
OPTIONS: dict[str, Any] = {
    **SIZES,
    "transaction_timeout": TIMEOUT,
    "transaction_check_interval": INTERVAL,
    "transaction_check_max": 1000,  # The usual fifteen may be over before a slow machine has answered.
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery_in(tmp_path_factory.mktemp("nursery")) as made:
        yield made


@pytest.fixture
def stage(nursery: Nursery, directory: Path) -> Iterator[Stage]:
    made = Stage(nursery, directory, OPTIONS)
    yield made
    made.end_all()
    assert nursery.failures() == ""


@pytest.mark.timeout(300)
def test_producers_killed_at_every_step(stage: Stage) -> None:
    database = stage.database
    with mq.open(stage.directory, **OPTIONS) as broker:
        broker.create_topic(TOPIC, 4)
        check = Check(str(stage.path))
        with halts(stage.nursery.living), mq.TransactionProducer(broker, GROUP, check):
            running: list[Process] = []
            numbers = range(0, COUNT, PER_PROCESS)
            for first in numbers:
                if len(running) == AT_A_TIME:
                    stage.wait(running.pop(0))
                # The last deposit of a process dies in the middle of a transaction of the database.
                count = min(PER_PROCESS, COUNT - first) - 1
                running.append(
                    stage.start(
                        "depositors", database=stage.path, first=first, count=count, producers=PRODUCERS
                    )
                )
            for process in running:
                stage.wait(process)
            last_kill = time.monotonic()
            eventually(lambda: agreed(broker, database), lambda: told(broker, database))
            took = time.monotonic() - last_kill
        done = len(database.numbers())
        print(f"{COUNT} transactions, {len(numbers)} kills, {done} committed: agreed after {took:.2f} s")
        # Four steps of six come after the database, four deposits of five are to be there.
        assert 0.3 * COUNT < done < 0.8 * COUNT
        assert took <= TIMEOUT + INTERVAL + MARGIN


@pytest.mark.timeout(300)
def test_producers_killed_at_any_moment(stage: Stage) -> None:
    database = stage.database
    chance = random.Random(4)
    with mq.open(stage.directory, **OPTIONS) as broker:
        broker.create_topic(TOPIC, 4)
        check = Check(str(stage.path))
        with halts(stage.nursery.living), mq.TransactionProducer(broker, GROUP, check):
            for run in range(RANDOM_KILLS):
                process = stage.start(
                    "depositors_until_killed", database=stage.path, first=run << 24, threads=3
                )
                time.sleep(0.03 + 0.2 * chance.random())
                stage.kill(process)
            eventually(lambda: agreed(broker, database), lambda: told(broker, database))
        print(f"{RANDOM_KILLS} kills, {len(database.numbers())} committed")
        assert len(database.numbers()) > RANDOM_KILLS
