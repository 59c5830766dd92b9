"""A process has no descriptor left when it is to flush what others appended.

Nothing was written, so nothing failed to be: it says what it lacks, and the store goes on for all processes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.store.small_store import bodies, open_small

LACKING = """
import resource
from contextlib import contextmanager
from pathlib import Path
import mq
from tests.support.insides import store_of
from tests.support.store.small_store import fill, open_small, send

@contextmanager
def no_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

def lacking(call):
    try:
        with no_descriptors():
            call()
    except Exception as error:
        print(type(error).__name__, getattr(error, "resource", error), error.unique_id or "")
    else:
        print("done")

root = Path({root!r})
with open_small(root, duties=False) as one, open_small(root, flush={flush!r}, duties=False) as other:
"""
FLUSHES = """
    fill(one, "A", 60)
    # The writer has the log's files mapped: it lacks a descriptor for the directory.
    ours, theirs = store_of(one), store_of(other)
    for call in (ours.flush_log, theirs.flush_log, theirs.flush_queues, other.flush):
        lacking(call)
    other.flush()
    fill(one, "A", 60)
    fill(other, "A", 60)
    one.flush()
"""
SENDS = """
    fill(one, "A", 60)
    hurried, queue = mq.Message("A", b"hurried", wait=False), one.publishable("A")[0]
    for _ in range(2):  # Then the files that the next ones go to are mapped, and have room.
        other.appender(queue)(hurried, b"hurried", 0)
    message = mq.Message("A", b"x")
    lacking(lambda: {send})
    one.flush()
    print(*(message.msg_id for message in other.topic("A").queues[0].read(62).messages))
"""

ENLISTING = """
    import os
    calls = lambda: one.transactions.table(), lambda: one.transactions.enlist("billing", "id")
    for call in calls:
        for room in range(12):
            before = os.listdir("/proc/self/fd")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + room, hard))
            try:
                kept = call()
            except Exception as error:
                print(type(error).__name__, getattr(error, "resource", error))
            else:
                break
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert len(os.listdir("/proc/self/fd")) == len(before), room
        else:
            raise AssertionError("it never had enough")
"""


def lacking(root: Path, steps: str, flush: Any) -> list[list[str]]:
    with open_small(root) as broker:
        broker.create_topic("A", 1)
    done = subprocess.run(
        [sys.executable, "-c", LACKING.format(root=str(root), flush=flush) + steps],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_flush_that_lacks_descriptors_does_not_poison_the_store(directory: Path, flush: Any) -> None:
    assert lacking(directory, FLUSHES, flush) == [["InsufficientResources", "descriptors"]] * 4
    with open_small(directory) as broker:
        assert len(bodies(broker)) == 180


@pytest.mark.parametrize(
    ("send", "count"),
    [("other.append_batch(queue, [message] * 2)", 2), ('other.appender(queue)(message, b"x", 0)', 1)],
)
def test_what_was_stored_and_not_flushed_is_told_by_its_id(directory: Path, send: str, count: int) -> None:
    """A resend reports that, and does not resend a batch message by message."""
    error, stored = lacking(directory, SENDS.format(send=send), "sync")
    assert error == ["InsufficientResources", "descriptors", stored[0]]
    assert len(stored) == count


def test_what_is_not_opened_for_lack_of_descriptors_keeps_none(directory: Path) -> None:
    errors = lacking(directory, ENLISTING, "async")
    assert len(errors) > 2
    assert all(error == ["InsufficientResources", "descriptors"] for error in errors)
