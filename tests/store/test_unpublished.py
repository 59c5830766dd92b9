"""Records of an append that was never published lie behind the log's end: none of them ever comes back.

Not where the process that made them void died next, nor where the power failed before its zeros were on disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.native import lib
from tests.store.bulk_appends import run_failing
from tests.support.appending import append_one
from tests.support.insides import store_of, was_recovered
from tests.support.processes.fail_build import TREE, fail_points
from tests.support.store.peer import Peer

MIB = 1 << 20
BODY_SIZE = 3000
PAGE = 4096
ACKNOWLEDGED = [b"acknowledged %d" % number for number in range(20)]


def sizes(file_size: int) -> dict[str, Any]:
    return {
        "commitlog_file_size": file_size,
        "queue_file_units": 20_000,
        "index_slot_count": 16,
        "index_unit_count": 4096,
        "duties": False,
    }


def send(broker: LocalBroker, *bodies: bytes) -> None:
    for body in bodies:
        append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)


def ghosts(count: int) -> list[bytes]:
    """Without a zero byte: what lies behind the log's end looks like an end where eight are zero."""
    return [b"ghost %d" % number + b"." * (BODY_SIZE - len(b"ghost %d" % number)) for number in range(count)]


def bulk(broker: LocalBroker, count: int) -> None:
    """Messages that are there all together, or not at all."""
    first = b"MQ_BULK\x01%d\x02" % count
    broker.bulk.append(
        [broker.topic("orders").queues[0].message_queue],
        array("i", [0] * count),
        [b"".join(ghosts(count))],
        array("i", [BODY_SIZE] * count),
        [first],
        array("i", [len(first)] + [0] * (count - 1)),
    )


def batch(broker: LocalBroker, count: int) -> None:
    queue = broker.topic("orders").queues[0].message_queue
    broker.append_batch(queue, [mq.Message("orders", body) for body in ghosts(count)])


def bodies(broker: LocalBroker) -> list[bytes]:
    queue, found, at = broker.topic("orders").queues[0], list[bytes](), 0
    while messages := queue.read(at, count_max=1000).messages:
        assert [message.queue_offset for message in messages] == list(range(at, at + len(messages)))
        found += [message.body for message in messages]
        at += len(messages)
    return found


GHOSTS = """
import mq
from tests.store.test_unpublished import {way}, sizes
{way}(mq.open({directory!r}, **sizes({file_size})), {count})
"""
SENDER = """
import os, signal, sys, mq
from tests.store.test_unpublished import ACKNOWLEDGED, send, sizes
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
    """As where a flush did not have the zeros on disk: recovery knows it by its time."""
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


def test_a_flush_has_the_zeros_on_disk_before_it_promises_anything(directory: Path) -> None:
    with mq.open(directory, **sizes(MIB)) as broker, Peer(directory, **sizes(MIB)) as peer:
        broker.create_topic("orders", 1)
        send(broker, b"first")
        broker.flush()
        store = store_of(broker)
        peer.do("from tests.support.insides import store_of")
        code = GHOSTS.format(way="bulk", directory=str(directory), file_size=MIB, count=30)
        done = run_failing(code, directory, f"{fail_points()['HALF_RECORD']}:15:kill")
        assert done.returncode == -signal.SIGKILL, done.stderr
        send(broker, b"second")
        assert [store.word(word) for word in (lib.MQ_VOIDS, lib.MQ_VOIDS_FLUSHED)] == [1, 0]
        assert store.word(lib.MQ_VOIDED_END) > store.end() + 10 * BODY_SIZE
        broker.flush()
        assert [store.word(word) for word in (lib.MQ_VOIDS, lib.MQ_VOIDS_FLUSHED)] == [1, 1]
        assert bodies(broker) == [b"first", b"second"]
