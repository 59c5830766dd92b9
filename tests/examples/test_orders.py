"""The main job of time and transactions, in small: all is as the model says, whichever process was killed."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mq
from examples.orders import __main__ as orders
from examples.orders.model import Expected, World, expected, generate
from examples.orders.office import DUE, Office
from examples.orders.plan import Plan
from examples.orders.shop import ORDERS, Placed, now_ms
from mq.store.check import problems
from mq.store.shared.leader_lock import Turn
from tests.support.arrivals import wait_for

ROOT = Path(__file__).parents[2]


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.orders", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.crash
def test_orders_end_as_the_model_says_whichever_process_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "day"
    completed = run("--orders", "1000", "--rounds", "1", "--minute", "0.05", "--directory", directory)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "FAILS" not in completed.stdout
    assert completed.stdout.count("holds ") == 9
    killed = re.search(r"^(\d+) processes were killed", completed.stdout, re.MULTILINE)
    assert killed is not None
    # Twice in each of five ways; a process without work does not reach the point where it was to die.
    assert int(killed[1]) >= 5
    assert [str(problem) for problem in problems(directory / "store")] == []


def test_a_payment_in_time_is_seen_before_the_alarm_even_after_the_office_was_halted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are overdue when the order is received. The whole machine is halted between the two sends; a
    customer who delivers goes on last."""
    delivers: list[bool] = []
    take = Turn.take
    monkeypatch.setattr(Turn, "take", lambda turn: bool(delivers) and take(turn))
    plan = Plan(tmp_path, 4, 1, 0.02)
    order = generate(4, 1).orders[0]
    with plan.open_broker() as broker, mq.Producer(broker, "offices") as producer:
        for name in (ORDERS, DUE):
            broker.create_topic(name, 1)

        class Halted:
            sends = 0

            def send(self, message: mq.Message, **options: Any) -> None:
                self.sends += 1
                if self.sends == 2:
                    time.sleep(0.7)
                producer.send(message, **options)

        class OneOrder:
            def order(self, number: int) -> Placed:
                number, customer, cents, *_ = order
                return Placed(number, customer, cents, "transfer", now_ms() - 100, now_ms() - 200)

        nothing: Any = None
        shop: Any = OneOrder()
        alarms: Any = Halted()
        office = Office(plan, shop, nothing, nothing, alarms)
        broker.topic(ORDERS).send(json.dumps(order).encode(), keys=str(order.number))
        (message,) = broker.topic(ORDERS).queues[0].read(0).messages
        office.receive(message)
        delivers.append(True)
        found = wait_for(broker.topic(DUE).queues[0], 2)
        assert [each.tags for each in found] == ["transfer", "alarm"]


def test_another_outcome_than_the_model_s_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def expected_a_cent_less(world: World) -> Expected:
        what = expected(world)
        what.accounts["customer 1"] -= 1
        return what

    monkeypatch.setattr(orders, "expected", expected_a_cent_less)
    assert not orders.run(Plan(tmp_path, 4, 10, 0.02), rounds=0)
    assert "FAILS 3 balances" in capsys.readouterr().out


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    completed = run("--directory", tmp_path)
    assert completed.returncode == 2
    assert "exists already" in completed.stderr
