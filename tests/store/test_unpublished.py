"""Records of an append that was never published lie behind the log's end: none of them ever comes back.

Not where the process that made them void died next, nor from a disk that does not have its zeros.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mq
from tests.store.bulk_appends import run_failing
from tests.store.unpublished import ACKNOWLEDGED, BODY_SIZE, MIB, bodies, bulk, send, sizes
from tests.support.insides import store_of, was_recovered
from tests.support.processes.fail_build import TREE, fail_points

PAGE = 4096

GHOSTS = """
import mq
from tests.store.unpublished import {way}, sizes
{way}(mq.open({directory!r}, **sizes({file_size})), {count})
"""
SENDER = """
import os, signal, sys, mq
from tests.store.unpublished import ACKNOWLEDGED, send, sizes
broker = mq.open(sys.argv[1], **sizes(int(sys.argv[2])))
send(broker, *ACKNOWLEDGED)
broker.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.crash
@pytest.mark.parametrize(
    ("way", "file_size", "count", "passage"),
    [
        # More than the kernel reads ahead, so that it is seen that not all was written.
        pytest.param("bulk", 64 * MIB, 12_000, 7000, id="in one file"),
        pytest.param("bulk", MIB, 900, 500, id="in many files"),
        pytest.param("batch", MIB, 300, 220, id="a batch in two files"),
    ],
)
def test_it_does_not_come_back_when_the_one_that_repaired_it_is_killed(
    directory: Path, way: str, file_size: int, count: int, passage: int
) -> None:
    with mq.open(directory, **sizes(file_size)) as broker:
        broker.create_topic("orders", 1)
        send(broker, b"first", *([bytes(BODY_SIZE)] * 150 if way == "batch" else []))
        before = bodies(broker)
    code = GHOSTS.format(way=way, directory=str(directory), file_size=file_size, count=count)
    done = run_failing(code, directory, f"{fail_points()['HALF_RECORD']}:{passage}:kill")
    assert done.returncode == -signal.SIGKILL, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    sender = subprocess.run(
        [sys.executable, "-c", SENDER, directory, str(file_size)],
        env=environment, check=False, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert sender.returncode == -signal.SIGKILL, sender.stderr
    for _ in range(2):
        with mq.open(directory, **sizes(file_size)) as broker:
            assert bodies(broker) == before + ACKNOWLEDGED
            assert not was_recovered(broker)


@pytest.mark.crash
def test_it_does_not_come_back_from_a_disk_that_had_it_before_it_was_void(
    directory: Path, tmp_path: Path
) -> None:
    """As a store of before a repair synced its zeros may have it: recovery knows it by its time."""
    with mq.open(directory, **sizes(MIB)) as broker:
        broker.create_topic("orders", 1)
        send(broker, b"first")
        log = Path("commitlog", f"{0:020}")
        without = (directory / log).read_bytes()
        before, after = tmp_path / "before", tmp_path / "after"
        shutil.copytree(directory, before)
        bulk(broker, 30)
        with_ghosts = (directory / log).read_bytes()
    (before / log).write_bytes(without)
    with mq.open(before, **sizes(MIB)) as broker:
        send(broker, *ACKNOWLEDGED)
        broker.flush()
        end = store_of(broker).end() // PAGE * PAGE + PAGE
        shutil.copytree(before, after)
    with (after / log).open("r+b") as file:
        file.seek(end)
        file.write(with_ghosts[end:])
    with mq.open(after, **sizes(MIB)) as broker:
        assert was_recovered(broker)
        assert bodies(broker) == [b"first", *ACKNOWLEDGED]
