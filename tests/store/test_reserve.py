"""Blocks that are found before they are needed, and large batches, which are written through the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.native import lib
from tests.support.eventually import eventually
from tests.support.insides import control_of, log_end
from tests.support.processes.fail_build import TREE, fail_build, fail_points

MIB = 1 << 20
FILE_SIZE = 32 * MIB


def in_memory(path: Path) -> bool:
    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout
    return kind.strip() == "tmpfs"


def blocks(root: Path) -> dict[str, int]:
    """Bytes on disk of each file of the log."""
    return {
        path.name: path.stat().st_blocks * 512
        for path in (root / "commitlog").iterdir()
        if path.name.isdigit()
    }


def beyond(broker: LocalBroker, root: Path) -> int:
    """Bytes on disk that no message is in, and none may be sent to without another look for blocks."""
    control = control_of(broker)
    return sum(blocks(root).values()) - control.get(lib.MQ_ALLOCATED_END)


def send_batches(broker: LocalBroker, size: int) -> None:
    with mq.Producer(broker, "senders") as producer:
        for number in range(size // MIB):
            producer.send_batch(
                [mq.Message("orders", os.urandom(1024), keys=f"{number}") for _ in range(1024)]
            )


def open_store(root: Path, reserve_size: int = 128 * MIB) -> LocalBroker:
    return mq.open(root, commitlog_file_size=FILE_SIZE, duties=False, reserve_size=reserve_size)


def test_blocks_are_found_before_they_are_needed_and_given_back_by_the_close(directory: Path) -> None:
    with open_store(directory) as broker:
        send_batches(broker, 2 * MIB)
        wanted = 0 if in_memory(directory) else 2 * MIB
        eventually(lambda: beyond(broker, directory) >= wanted, lambda: blocks(directory))
        end = log_end(broker)
    assert end <= sum(blocks(directory).values()) <= end + 8192


def test_the_file_to_come_has_blocks_before_a_message_is_in_it(directory: Path) -> None:
    with open_store(directory) as broker:
        send_batches(broker, 24 * MIB)
        assert log_end(broker) < FILE_SIZE
        if not in_memory(directory):
            eventually(
                lambda: blocks(directory).get(f"{FILE_SIZE:020}", 0) >= 4 * MIB, lambda: blocks(directory)
            )


def reserved(broker: LocalBroker) -> int:
    """Bytes beyond the log's end that an append may write without asking the file system."""
    return control_of(broker).get(lib.MQ_RESERVED_END) - log_end(broker)


def test_a_store_with_messages_reserves_from_its_opening_on(directory: Path) -> None:
    with open_store(directory) as broker:
        send_batches(broker, MIB)
    with open_store(directory) as broker:
        if in_memory(directory):
            return
        eventually(lambda: reserved(broker) >= 4 * MIB, lambda: blocks(directory))
        assert beyond(broker, directory) >= 4 * MIB
    assert sum(blocks(directory).values()) <= 4 * MIB


def test_an_empty_store_reserves_nothing(directory: Path) -> None:
    """A follower may be told to begin its log elsewhere: no file may be there already."""
    with open_store(directory) as broker:
        broker.create_topic("orders", 1)
        time.sleep(0.3)  # It would reserve after 0.1 s.
        assert not blocks(directory)


def test_processes_share_one_reserve(directory: Path) -> None:
    with open_store(directory) as broker, open_store(directory) as other:
        send_batches(broker, 2 * MIB)
        wanted = 0 if in_memory(directory) else 4 * MIB
        eventually(lambda: max(reserved(broker), 0) >= wanted, lambda: blocks(directory))
        assert reserved(other) > 0 or not wanted
        send_batches(other, 6 * MIB)
        send_batches(broker, 6 * MIB)
    assert not list(problems(directory))


SEND_AND_DIE = """
import os, signal, sys, mq
from tests.support.eventually import eventually
broker = mq.open(sys.argv[1], commitlog_file_size={file_size}, duties=False)
producer = mq.Producer(broker, "senders")
for number in range(8):
    producer.send_batch([mq.Message("orders", os.urandom(1024)) for _ in range(1024)])
log = os.path.join(sys.argv[1], "commitlog")
held = lambda: sum(os.stat(os.path.join(log, name)).st_blocks * 512 for name in os.listdir(log))
eventually(lambda: held() >= {held}, held)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.rounds  # twenty seconds without a send
def test_what_a_killed_process_reserved_is_given_back_by_another(directory: Path) -> None:
    with open_store(directory) as broker:
        broker.create_topic("orders", 1)
        held = 8 * MIB if in_memory(directory) else 16 * MIB
        command = [sys.executable, "-c", SEND_AND_DIE.format(file_size=FILE_SIZE, held=held), str(directory)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        if not in_memory(directory):
            assert beyond(broker, directory) >= 4 * MIB
        eventually(lambda: beyond(broker, directory) <= 8192, lambda: blocks(directory))
        assert reserved(broker) <= 8192
        send_batches(broker, 2 * MIB)
    assert not list(problems(directory))


def returns(broker: LocalBroker) -> int:
    return control_of(broker).get(lib.MQ_RESERVE_RETURNS)


FIND_NO_SPACE = """
import sys, mq
with mq.open(sys.argv[1], commitlog_file_size={file_size}, duties=False):
    sys.stdin.read()
"""


@pytest.mark.crash
def test_what_a_full_disk_has_given_back_nobody_counts_on(directory: Path) -> None:
    """Another process may have found the same blocks at that time, and not said so yet."""
    with open_store(directory, reserve_size=0) as broker:
        send_batches(broker, MIB)
        if in_memory(directory):
            return
        before = returns(broker)
        producer = mq.Producer(broker, "senders", retries=0)

        def returned() -> bool:
            producer.send(mq.Message("orders", b"not at rest"))
            return returns(broker) > before

        with (
            producer,
            subprocess.Popen(
                [sys.executable, "-c", FIND_NO_SPACE.format(file_size=FILE_SIZE), str(directory)],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(fail_build()), str(TREE)]),
                    "MQ_FAIL": f"{fail_points()['ALLOCATE']}:1:failing",
                },
                cwd=directory.parent,  # Not the tree, whose build has no points to fail at.
                stdin=subprocess.PIPE,
            ) as child,
        ):
            try:
                eventually(returned, child.poll)
            finally:
                child.kill()


def test_without_a_reserve_no_more_is_held_than_is_sent(directory: Path) -> None:
    with open_store(directory, reserve_size=0) as broker:
        send_batches(broker, 8 * MIB)
        assert beyond(broker, directory) <= 8192


@pytest.mark.rounds  # ten seconds without a send
def test_a_store_at_rest_gives_back_what_it_reserved(directory: Path) -> None:
    with open_store(directory) as broker:
        send_batches(broker, 8 * MIB)
        wanted = 0 if in_memory(directory) else 2 * MIB
        eventually(lambda: beyond(broker, directory) >= wanted, lambda: blocks(directory))
        eventually(lambda: beyond(broker, directory) <= 8192, lambda: blocks(directory))
        send_batches(broker, 8 * MIB)  # Nothing that it lacks now was counted on.
        eventually(lambda: beyond(broker, directory) >= wanted, lambda: blocks(directory))
        assert not list(problems(directory))


@pytest.mark.parametrize("size", [-1, 1 << 41])
def test_a_reserve_out_of_range(directory: Path, size: int) -> None:
    with pytest.raises(ValueError, match=r"reserve_size is .*: it must be from 0 to"):
        open_store(directory, reserve_size=size)


def test_large_batches_beside_single_messages_and_over_the_end_of_a_file(directory: Path) -> None:
    """Some are written through the file and some into its map, to the same pages."""
    bodies = []
    with mq.open(directory, commitlog_file_size=MIB, create=True) as broker:
        broker.create_topic("orders", 1)
        with mq.Producer(broker, "senders") as producer:
            for number in range(12):
                batch = [b"%d %d " % (number, each) * (1 + each % 90) for each in range(900)]
                single = b"single %d" % number
                producer.send_batch([mq.Message("orders", body, tags="t") for body in batch])
                producer.send(mq.Message("orders", single))
                bodies += [*batch, single]
        (queue,) = broker.topic("orders").queues
        read: list[bytes] = []
        while found := queue.read(len(read), count_max=1000).messages:
            read += [message.body for message in found]
        assert read == bodies
        assert len(blocks(directory)) > 5
    assert not list(problems(directory))
