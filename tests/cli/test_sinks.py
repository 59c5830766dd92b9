"""What Spark's sinks have written, on the command line, without Spark."""

import subprocess
import sys
import time
from pathlib import Path

import mq
from mq.sink_ledger import Entry
from tests.cli.conftest import ENVIRONMENT, Run
from tests.cli.sinks import say, stage

WITHOUT = """
import sys
for name in ("pyspark", "pyarrow"):
    sys.modules[name] = None  # An import of it fails.
from mq.cli.command import run
sys.exit(run(sys.argv[1:]))
"""


def test_no_sink_is_said(run: Run, directory: Path) -> None:
    mq.open(directory).close()
    answer = run("sinks")
    assert (answer.status, answer.out) == (0, "no sink has written here exactly once\n")
    assert run("sinks", "--json").out == ""


def test_sinks_are_listed(run: Run, directory: Path) -> None:
    now_ms = int(time.time() * 1000)
    with mq.open(directory) as broker:
        say(
            broker,
            Entry("app", "query-1", 41, 0, 1000, time_ms=now_ms - 3_600_000),
            Entry("app", "query-1", 42, 0, 1500, ("42/b.arrow",), 1, now_ms - 10_800_000),
            Entry("batch-1", "batch-1", 0, 0, 5, time_ms=now_ms, lasting=False),
        )
    stage(directory, "app/42/b.arrow", 1234)
    stage(directory, "other/0/c.arrow")
    heading, *lines = run("sinks").out.splitlines()
    assert heading.split() == ["TXN", "EPOCH", "ROWS", "AGE", "STATE", "STAGED"]
    assert [line.split() for line in lines[:2]] == [
        ["app", "42", "1,500", "3", "h", "unfinished,", "1", "file", "left", "1,234"],
        ["other", "-", "0", "-", "nothing", "yet", "100"],
    ]
    assert lines[2:] == ["1 completed single write not shown: --all lists them"]
    assert run("sinks", "--all").out.splitlines()[2].split()[:3] == ["batch-1", "0", "5"]
    first, second = run("sinks", "--json").objects
    assert first == {
        "txn": "app",
        "query_id": "query-1",
        "epoch": 42,
        "rows": 1500,
        "time_ms": now_ms - 10_800_000,
        "whole": False,
        "single": False,
        "files_left": ["42/b.arrow"],
        "files_lost": [],
        "staged_files": 1,
        "staged_bytes": 1234,
        "being_written": 0,
    }
    assert (second["txn"], second["epoch"], second["staged_bytes"]) == ("other", None, 100)


def test_an_epoch_of_which_the_rest_is_lost(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker:
        say(
            broker,
            Entry("app", "query-1", 42, 0, 1500, ("42/gone.arrow", "42/b.arrow"), 0, int(time.time() * 1000)),
        )
    stage(directory, "app/42/b.arrow")
    gone = f"{directory}/mq/spark/app/42/gone.arrow"
    _, line, said = run("sinks").out.splitlines()
    assert "unfinished, 2 files left, 1 of them lost" in line
    assert said.startswith(
        f"{gone}: it is missing; put back what is gone, and the next commit appends the rest;"
    )
    assert f"mq.spark.abandon('{directory}', 'app')" in said
    (facts,) = run("sinks", "--json").objects
    assert facts["files_lost"] == [gone]


def test_neither_spark_nor_arrow_is_needed(directory: Path) -> None:
    with mq.open(directory) as broker:
        say(broker, Entry("app", "query-1", 42, 0, 1500))
    stage(directory, "app/43/b.arrow")
    for verb in ("sinks", "verify"):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, str(directory), verb],
            capture_output=True,
            env=ENVIRONMENT,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"app" in done.stdout


def test_what_the_dead_have_staged_is_no_problem(run: Run, directory: Path) -> None:
    mq.open(directory).close()
    stage(directory, "app/0/a.arrow")
    answer = run("verify")
    assert answer.status == 0
    note, said = answer.out.splitlines()
    assert note.startswith(f"note: {directory}/mq/spark/app/0: 1 file, 100 bytes, which wait for a commit")
    assert said == "no problems"
    assert [list(each) for each in run("verify", "--json").objects] == [["note"]]


def test_rows_that_are_lost_are_a_problem(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker:
        say(broker, Entry("app", "query-1", 42, 0, 1500, ("42/gone.arrow",)))
    stage(directory, "app/42/b.arrow")
    answer = run("verify")
    assert answer.status == 1
    problem, said = answer.out.splitlines()
    assert problem.startswith(
        f"{directory}/mq/spark/app/42/gone.arrow: it is missing; it has rows of epoch 42"
    )
    assert said == "1 problems"


def test_damage_of_remembered_keys_is_a_problem(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker, mq.Once(broker, "billing", size=10)("key-1"):
        pass
    path = directory / "mq" / "once" / "billing"
    with path.open("r+b") as file:
        file.seek(4096 + 32)
        file.write(b"\xff")
    answer = run("verify")
    assert answer.status == 1
    assert answer.out.splitlines() == [
        f"{path}: the mark at 4128 is damaged; its key is handled again if it comes again",
        "1 problems",
    ]
