"""Follower and master are killed at random while messages are sent; the copy stays a copy.

MQ_REPLICA_KILLS: how often (10).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.check import problems
from mq.store.log.commitlog import segment_files
from tests.support.cluster.ports import free_port
from tests.support.eventually import eventually
from tests.support.processes.children import Child, Died, Failed, hear, say

pytestmark = [pytest.mark.crash, pytest.mark.rounds, pytest.mark.timeout(1500)]

ROUNDS = int(os.environ.get("MQ_REPLICA_KILLS", "10"))
FILE_SIZE = 256 << 10


def keep_serving(root: Path, port: int, replicas: int) -> None:
    """A master that sends to itself; of each message that a replica has it says the number."""
    flush = "sync" if replicas else "async"
    with (
        mq.open(root, commitlog_file_size=FILE_SIZE, flush=flush, replicas=replicas) as broker,  # type: ignore[call-overload]  # one of the two
        mq.remoting.serve(broker, port=port, namesrv_port=0, ha_port=port + 1),
        mq.Producer(broker) as producer,
    ):
        say("serving")
        number = time.time_ns()
        while True:
            number += 1
            body = b"%d " % number + b"x" * random.randrange(2000)
            sent = producer.send(mq.Message("orders", body, keys=str(number)))
            if replicas and sent.status is mq.SendStatus.SEND_OK:
                say(str(number))


def keep_following(root: Path, port: int) -> None:
    with mq.remoting.replicate(f"127.0.0.1:{port + 1}", root, commitlog_file_size=FILE_SIZE) as replica:
        say("following")
        hear()
        until = time.monotonic() + 60
        while replica.lag != 0 and time.monotonic() < until:
            time.sleep(0.01)
        say(str(replica.offset))


def log_of(path: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in segment_files(path / "commitlog"))[:end]


@pytest.mark.parametrize("replicas", [0, 1])
def test_either_side_is_killed_and_goes_on(tmp_path: Path, replicas: int) -> None:
    master, copy, port = tmp_path / "master", tmp_path / "copy", free_port((-2, 1))
    acknowledged = list[str]()
    note = acknowledged.append
    with (
        _Restarted(keep_following, copy, port) as following,
        _Restarted(keep_serving, master, port, replicas, said=note) as serving,
    ):
        for _ in range(ROUNDS):
            time.sleep(random.uniform(0.05, 0.6))
            random.choice((serving, following)).restart()
        # However little was sent meanwhile, the copy's log goes beyond its first file.
        eventually(
            lambda: len(segment_files(copy / "commitlog")) > 2 and bool(acknowledged) == bool(replicas),
            lambda: f"{segment_files(copy / 'commitlog')}, {len(acknowledged)} acknowledged",
            seconds=200.0,
        )
    with mq.open(copy, duties=False) as promoted:  # Before it hears of the master again.
        own_end = promoted.replication.log_range[1]
        lost = [number for number in acknowledged if not promoted.query("orders", number)]
        assert (lost, bool(acknowledged)) == ([], bool(replicas))
    assert own_end > FILE_SIZE
    assert log_of(copy, own_end) == log_of(master, own_end)
    with mq.open(master) as broker, mq.remoting.serve(broker, port=port, namesrv_port=0, ha_port=port + 1):
        end = broker.replication.log_range[1]
        with mq.remoting.replicate(f"127.0.0.1:{port + 1}", copy) as replica:
            eventually(lambda: replica.offset == end, lambda: f"{replica.offset} {end} {replica.error}")
            assert replica.cuts == ()
    assert log_of(copy, end) == log_of(master, end)
    for path in (master, copy):
        assert list(problems(path)) == []
    print(f"{ROUNDS} kills, {len(acknowledged):,} sends acknowledged by the copy, {end:,} bytes of log")


class _Restarted:
    """A process that is killed and started again, and killed at last. said() gets its lines but the first."""

    def __init__(
        self, function: Callable[..., None], *arguments: Any, said: Callable[[str], None] = lambda _: None
    ) -> None:
        self._function, self._arguments, self._said = function, arguments, said
        self._start()

    def _start(self) -> None:
        self._child = Child(self._function, *self._arguments)
        self._child.hear()  # It is at work.
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        with suppress(Died, Failed):  # It was killed.
            while True:
                self._said(self._child.hear())

    def restart(self) -> None:
        self.__exit__()
        self._start()

    def __enter__(self) -> _Restarted:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._listening.join()
        self._child.__exit__(None, None, None)
