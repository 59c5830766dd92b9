"""The main job on Spark, in small: the table is right although the driver was killed; and what it says if
something is not."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import mq
from examples.pipeline import __main__ as pipeline
from examples.pipeline import drivers, query
from examples.pipeline.drivers import essence
from examples.pipeline.plan import RESULTS, Plan
from examples.pipeline.plot import busiest, course, course_of_all, plot, span
from examples.pipeline.run import Run, Status
from examples.pipeline.sums import Found, Sum, sums_of, verdict
from examples.pipeline.table import Table
from mq.store.check import problems

ROOT = Path(__file__).parents[3]
DAY_S = 86_400
FIRST_S = 1_700_000_000
EVENT_COUNT = 240


def events() -> list[dict[str, Any]]:
    """A history of some modules and days; a binary file has no lines."""
    return [
        {
            "seq": seq,
            "commit": f"{seq // 4:012x}",
            "time": FIRST_S + seq * DAY_S // 20,
            "module": f"module {seq % 3} — ü",
            "path": f"module {seq % 3} — ü/file {seq % 7}.py",
            "ext": "py",
            "added": None if seq % 11 == 0 else seq,
            "deleted": None if seq % 11 == 0 else seq % 5,
        }
        for seq in range(EVENT_COUNT)
    ]


def recorded(place: Path) -> Path:
    path = place / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events()))
    return path


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.rounds
@pytest.mark.timeout(900)
def test_the_table_is_right_although_the_driver_was_killed(tmp_path: Path) -> None:
    """All of it: executors in processes of their own, and a kill of each process of the driver."""
    pytest.importorskip("pyspark")
    from tests.spark.session import environment

    directory = tmp_path / "run"
    arguments = ["--input", recorded(tmp_path), "--directory", directory, "--plot", tmp_path / "picture.png"]
    arguments += ["--kills", "2"]
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.pipeline", *map(str, arguments)],
        env={**environment(tmp_path), "COLUMNS": "160"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    log = directory / "spark.log"
    said = essence(log.read_text(errors="replace")) if log.exists() else ""
    assert completed.returncode == 0, completed.stdout + completed.stderr + said
    assert "FAILS" not in completed.stdout
    assert completed.stdout.count("holds ") == 4
    assert re.findall("the (Python|JVM) of the driver was killed", completed.stdout) == ["Python", "JVM"]
    assert (tmp_path / "picture.png").exists()
    assert [str(problem) for problem in problems(directory / "store")] == []
    assert in_use(directory) == []


def in_use(directory: Path) -> list[str]:
    """Processes that were told of a directory and live."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(directory) in (command := path.read_text(errors="replace")):
                found.append(command)
    return found


@pytest.mark.spark
def test_when_the_query_fails_it_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from tests.spark.session import environment

    arguments = ["--input", recorded(tmp_path), "--directory", tmp_path / "run", "--master", "nowhere"]
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.pipeline", *map(str, arguments)],
        env={**environment(tmp_path), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert completed.returncode == 1
    assert "pipeline: the query ended by itself, with status 1.\n" in completed.stderr
    assert "start with spark, k8s, or local" in completed.stderr
    assert "Traceback" not in completed.stderr
    assert in_use(tmp_path) == []
    assert list(tmp_path.glob("mq-pipeline-*")) == []


@pytest.mark.spark
def test_an_interrupt_ends_all_of_it(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from tests.spark.session import environment

    with subprocess.Popen(
        [sys.executable, "-m", "examples.pipeline", "--input", str(recorded(tmp_path))],
        env={**environment(tmp_path), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not any("java" in command for command in in_use(tmp_path)):
            assert process.poll() is None
            time.sleep(0.05)
        # As a terminal does, to all that it started.
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=240)[1]
    assert (process.returncode, said.strip()) == (1, "pipeline: interrupted")
    assert in_use(tmp_path) == []
    assert list(tmp_path.glob("mq-pipeline-*")) == []


@pytest.mark.parametrize("moment", ["started", "closed"])
def test_an_interrupt_at_a_bad_moment_leaves_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It comes between the start of a driver and the note of it; or while a driver is seen to its end."""
    real, begun = subprocess.Popen, list[Any]()

    def popen(_: Any, **options: Any) -> Any:
        begun.append(real([sys.executable, "-c", "input()"], **options))
        if moment == "started":
            signal.raise_signal(signal.SIGINT)
        return begun[0]

    def killed_at_once(driver: drivers.Driver) -> None:
        monkeypatch.setattr(drivers, "members", interrupted)
        driver.close()

    def interrupted() -> list[drivers.Member]:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr(drivers.Driver, "check", killed_at_once)
    monkeypatch.setattr("examples.pipeline.drivers.subprocess.Popen", popen)
    recorded(tmp_path)
    plan = Plan(tmp_path, tmp_path / "scratch", "nowhere", EVENT_COUNT, 1000.0, 0)
    table = Table(plan.table)
    with mq.open(plan.store) as broker, pytest.raises(KeyboardInterrupt):
        Run(plan, broker, table).go_on(lambda _: None)
    table.close()
    (driver,) = begun
    assert driver.returncode == -signal.SIGKILL
    assert in_use(tmp_path) == []


def test_a_query_whose_python_starts_too_late_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that stands still for ten seconds. What else ends a query ends the driver."""
    errors = pytest.importorskip("pyspark.errors")
    ends = [query.LATE, query.LATE, "", query.LATE, "Task not serializable"]
    receiving, sending = os.pipe()

    class Session:
        def awaitTermination(self, _: float) -> bool:  # noqa: N802 - the name is Spark's
            if said := ends.pop(0):
                raise errors.StreamingQueryException(said)
            os.write(sending, b"finish\n")
            return False

        def stop(self) -> None: ...

    monkeypatch.setattr(query, "session", lambda _: Session())
    monkeypatch.setattr(query, "start", lambda *_: Session())
    monkeypatch.setattr(query, "batch", lambda *_: [("module", "day", 1, 2, 3)])
    result = tmp_path / "result"
    with os.fdopen(receiving) as given:
        monkeypatch.setattr(sys, "stdin", given)
        query.main("store", "checkpoint", "local", "1", str(result))
        assert json.loads(result.read_text()) == [["module", "day", 1, 2, 3]]
        with pytest.raises(SystemExit, match="Task not serializable"):
            query.main("store", "checkpoint", "local", "1", str(result))
    os.close(sending)
    assert ends == []


def test_what_counts_in_a_log_is_not_where_in_the_jvm_it_was() -> None:
    log = "INFO a\n\nError: b\n\tat org.apache.Some.where(Some.scala)\n\t... 31 more\nCaused by: c\n"
    assert essence(log) == "INFO a\nError: b\nCaused by: c"
    assert essence("\n".join(map(str, range(100)))).split() == list(map(str, range(80, 100)))


@pytest.mark.parametrize("lacking", ["pyspark", "pyspark_mq"])
def test_what_is_lacking_is_said_with_what_to_do(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == lacking else object())
    reason = pipeline.cannot()
    assert reason is not None
    assert sys.executable in reason
    assert "./run pipeline" in reason


def test_sums_are_of_days_in_utc() -> None:
    history = [
        {"module": "a", "time": 2 * DAY_S - 1, "added": 5, "deleted": 1},
        {"module": "a", "time": 2 * DAY_S, "added": None, "deleted": None},
        {"module": "a", "time": DAY_S, "added": 2, "deleted": 0},
        {"module": "b", "time": DAY_S, "added": 1, "deleted": 1},
    ]
    assert sums_of(history) == {
        ("a", "1970-01-02"): Sum(2, 7, 1),
        ("a", "1970-01-03"): Sum(1, 0, 0),
        ("b", "1970-01-02"): Sum(1, 1, 1),
    }


def missed(found: Found) -> list[int]:
    """The numbers of the statements that do not hold."""
    return [number for number, holds in enumerate(verdict(found, sums_of(events())).values()) if not holds]


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        (lambda found: found, []),
        (lambda found: replace(found, sent=EVENT_COUNT - 1), [0]),
        (lambda found: replace(found, table=dict(list(found.table.items())[1:])), [1]),
        (lambda found: replace(found, table={**found.table, ("new", "2024-01-01"): Sum(1, 0, 0)}), [1]),
        (lambda found: replace(found, twice=1), [2]),
        (lambda found: replace(found, missing=1), [2]),
        (lambda found: replace(found, batch={key: Sum(1, 0, 0) for key in found.batch}), [3]),
    ],
)
def test_what_differs_is_told(change: Callable[[Found], Found], numbers: list[int]) -> None:
    truth = sums_of(events())
    assert missed(change(Found(EVENT_COUNT, truth, len(truth), 0, 0, truth))) == numbers


def test_a_run_that_differs_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        def __init__(self, plan: Plan, broker: mq.Broker, table: Table) -> None: ...

        def go_on(self, show: Callable[[Status], None]) -> Found:
            show(self.status())
            truth = sums_of(events())
            return Found(EVENT_COUNT, truth, len(truth), 1, 0, truth)

        def status(self) -> Status:
            return Status(EVENT_COUNT, 0, EVENT_COUNT, EVENT_COUNT, (), False)

    monkeypatch.setattr(pipeline, "Run", Failing)
    monkeypatch.setattr(pipeline, "plot", lambda *_: None)
    given = argparse.Namespace(
        input=recorded(tmp_path), git=None, master="local", rate=1.0, kills=0, plot=tmp_path / "picture.png"
    )
    assert not pipeline.done(given, tmp_path, tmp_path / "spark")
    assert "FAILS each of " in capsys.readouterr().out


def fill(table: Table, broker: mq.Broker) -> None:
    with table.filled_from(broker):
        while table.lag(broker):
            os.sched_yield()


def test_the_latest_result_of_a_module_and_day_is_its_sum(tmp_path: Path) -> None:
    """One that is delivered again changes nothing, and one that was written again is counted, as twice."""
    first = {"batch": 0, "module": "a", "day": "2024-01-01", "changes": 2, "added": 3, "deleted": 1}
    second = {**first, "batch": 1, "changes": 5, "added": 7}
    other = {**first, "batch": 3, "module": "b"}
    table = Table(tmp_path / "table.db")
    with mq.open(tmp_path / "store") as broker:
        topic = broker.create_topic(RESULTS, 2)
        for result in (second, first):
            topic.send(json.dumps(result).encode())
        for _ in range(2):
            fill(table, broker)
            assert (table.event_count, table.result_count, table.twice(), table.missing()) == (5, 2, 0, 0)
            broker.group("table").reset(RESULTS, to="earliest")
        for result in (first, other):
            topic.send(json.dumps(result).encode())
        fill(table, broker)
    assert (table.event_count, table.twice(), table.missing(), table.batch_count()) == (7, 1, 1, 3)
    assert table.sums() == {("a", "2024-01-01"): Sum(5, 7, 1), ("b", "2024-01-01"): Sum(2, 3, 1)}
    table.close()


def test_every_driver_but_the_last_is_killed_in_mid_work() -> None:
    plan = Plan(Path(), Path(), "local", 49_490, 1000.0, 3)
    assert [plan.killed_at(life) for life in range(4)] == [12_372, 24_745, 37_117, None]
    assert plan.events_per_trigger == 4124
    assert plan._replace(event_count=1).events_per_trigger == 1


def test_the_picture_shows_what_had_been_changed_by_each_day(tmp_path: Path) -> None:
    sums = {
        ("a", "2024-01-03"): Sum(1, 4, 1),
        ("a", "2024-01-01"): Sum(1, 2, 1),
        ("b", "2024-02-02"): Sum(9, 1, 0),
    }
    assert busiest(sums) == ["a", "b"]
    assert span(sums) == (date(2024, 1, 1), date(2024, 2, 2))
    assert course(sums, "a") == ([date(2024, 1, 1), date(2024, 1, 3)], [3, 8])
    assert course_of_all(sums, by_month=True) == ([date(2024, 1, 1), date(2024, 2, 1)], [6, 1], [2, 0])
    assert course_of_all(sums, by_month=False)[1:] == ([2, 4, 1], [1, 1, 0])


@pytest.mark.parametrize("days", [1, 20, 4000])
def test_the_picture_is_drawn_of_long_and_short_histories(days: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    of_days = {
        (f"module {day % 9}", str(date(2010, 1, 1) + timedelta(day))): Sum(1, day, 1) for day in range(days)
    }
    plot(of_days, tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [["--kills", "-1"], ["--rate", "0"], ["--directory", "."]])
def test_wrong_usage_is_refused(wrong: list[str]) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "examples.pipeline", *wrong],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert completed.returncode == 2
