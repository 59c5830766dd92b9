"""The main job of time and transactions, in small: all is as the model says, whoever was killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.orders import __main__ as orders
from examples.orders.model import Expected, World, expected
from examples.orders.plan import Plan
from mq.store.check import problems

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
def test_orders_end_as_the_model_says_whoever_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "day"
    completed = run("--orders", "1000", "--rounds", "1", "--minute", "0.05", "--directory", directory)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "FAILS" not in completed.stdout
    assert completed.stdout.count("holds ") == 9
    killed = re.search(r"^(\d+) processes were killed", completed.stdout, re.MULTILINE)
    assert killed is not None
    # Twice in each of five ways; who has no more to do then, does not come by where he was to die.
    assert int(killed[1]) >= 5
    assert [str(problem) for problem in problems(directory / "store")] == []


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
