"""The first message of a queue that is kept: it never goes back, and a hole does not hide those before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mq.store.native import lib
from tests.support.insides import control_of, store_of
from tests.support.processes.fail_build import fail_build, fail_points
from tests.support.store.encoder import Record
from tests.support.store.small_store import LOG_FILE_SIZE, contents, fill, open_small

TRIM = """
from pathlib import Path
from mq.store.native import lib
from tests.support.insides import store_of
from tests.support.store.small_store import open_small
with open_small(Path({root!r}), duties=False) as broker:
    print(lib.mq_queue_trim(store_of(broker).live(), {number}, {log_min}))
"""


@pytest.mark.crash
@pytest.mark.parametrize(("here", "there"), [(60, 30), (30, 60), (60, 60)])
def test_of_two_concurrent_trims_the_better_informed_one_is_right(
    directory: Path, here: int, there: int
) -> None:
    """One stops when it has found the first message to keep, and says so only after another one did."""
    with open_small(directory, duties=False) as broker:
        broker.create_topic("A", 1)
        offsets = fill(broker, "A", 120)
        control = control_of(broker)
        (number,) = [number for number, topic, _ in control.queues() if topic == "A"]
        code = TRIM.format(root=str(directory), number=number, log_min=offsets[there])
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(fail_build()), str(Path(__file__).parents[2])]),
                "MQ_FAIL": f"{fail_points()['TRIMMED']}:1:stop",
            },
            cwd=directory.parent,  # Not the tree, whose build has no points to stop at.
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            try:
                assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
                assert control.min_offset(number) == 0
                assert lib.mq_queue_trim(store_of(broker).live(), number, offsets[here]) == here
                assert control.min_offset(number) == here
                os.kill(child.pid, signal.SIGCONT)
                assert child.communicate(timeout=240)[0] == f"{there}\n"
            finally:
                child.kill()
        assert control.min_offset(number) == max(here, there)
        assert broker.topic("A").queues[0].read(max(here, there)).messages[0].body == b"message 60"


@pytest.mark.parametrize("missing", [1, 7, 10, 18])
def test_what_lies_before_a_hole_is_kept(tmp_path: Path, missing: int) -> None:
    """Such a log is none of ours: a message is missing that was the next one of its queue."""
    log, kept = b"", [at for at in range(20) if at != missing]
    for at in kept:
        record = Record("A", b"message %d" % at, queue_offset=at, log_offset=len(log), store_time=1)
        log += record.encode(property_crc=True)
    assert len(log) < LOG_FILE_SIZE
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / ("0" * 20)).write_bytes(log.ljust(LOG_FILE_SIZE, b"\0"))
    with open_small(tmp_path / "store") as broker:
        queue = broker.topic("A").queues[0]
        assert (queue.min_offset, queue.max_offset) == (0, 20)
        assert [message.queue_offset for message in queue.read(0).messages] == kept


@pytest.mark.parametrize("left", range(1, 8))
def test_a_record_behind_which_no_file_ends_is_none(directory: Path, left: int) -> None:
    """No record leaves less room than a BLANK takes: what comes next would have no place."""
    record = Record("A", b"x", store_time=1).encode(property_crc=True)
    body = b"x" * (LOG_FILE_SIZE - left - len(record) + 1)
    log = Record("A", body, store_time=1).encode(property_crc=True)
    assert len(log) == LOG_FILE_SIZE - left
    (directory / "commitlog").mkdir(parents=True)
    (directory / "commitlog" / ("0" * 20)).write_bytes(log.ljust(LOG_FILE_SIZE, b"\0"))
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 30)
        assert contents(broker)["A", 0][2] == [(at, b"message %d" % at) for at in range(30)]
