"""Whoever dies while he sends or handles a key: the next one finds out how far he came.

Deaths before each line of the code, and deaths at any time among several processes that are at the same keys.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mq
from tests.crash.failbuild import TREE, fail_build, fail_points
from tests.damage.children import Child, call
from tests.dedup import at_work

ROUNDS = int(os.environ.get("MQ_KILLS", "12"))


@pytest.mark.crash
@pytest.mark.parametrize(("flush", "delay_level"), [("async", 0), ("sync", 0), ("async", 5)])
def test_a_sender_dies_before_any_line(directory: Path, flush: str, delay_level: int) -> None:
    assert call(at_work.dead_senders, str(directory), flush, delay_level, False, timeout=240) > 40


@pytest.mark.crash
def test_the_first_sender_dies_before_any_line(tmp_path: Path) -> None:
    assert call(at_work.dead_senders, str(tmp_path / "stores"), "async", 0, True, timeout=240) > 25


INSIDE = ("LOCKED", "ARMED", "HALF_RECORD", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED", "FLUSHED")


@pytest.mark.crash
@pytest.mark.parametrize("point", INSIDE)
def test_a_sender_dies_inside_the_append(directory: Path, point: str) -> None:
    flush = "sync" if point == "FLUSHED" else "async"
    with mq.open(directory, flush=flush, flush_interval=3600, **at_work.SMALL) as broker:
        broker.create_topic("orders", 1)
        with mq.Producer(broker, dedup_window=3600) as producer:
            producer.send(at_work.order(b"before"), dedup_key="before")
        completed = subprocess.run(
            [sys.executable, "-m", "tests.dedup.at_work", str(directory), flush],
            env={
                **os.environ,
                "PYTHONPATH": f"{fail_build()}{os.pathsep}{TREE}",
                "MQ_FAIL": f"{fail_points()[point]}:1:kill",
            },
            cwd=directory.parent,
            check=False,
        )
        assert completed.returncode == -signal.SIGKILL
        with mq.Producer(broker, dedup_window=3600) as producer:
            results = [producer.send(at_work.order(b"of the living"), dedup_key="key-1") for _ in range(2)]
        assert results[0].offset_msg_id == results[1].offset_msg_id
        [stored] = broker.query("orders", "key-1")
        assert stored.offset_msg_id == results[0].offset_msg_id
        assert broker.topic("orders").queues[0].max_offset == 2


@pytest.mark.crash
def test_a_handler_dies_before_any_line(directory: Path) -> None:
    assert call(at_work.dead_handlers, str(directory), timeout=240) > 40


@pytest.mark.crash
def test_senders_of_the_same_keys_are_killed_at_any_time(directory: Path, tmp_path: Path) -> None:
    """Each key is stored once, and whoever was answered was told the same."""
    acks, chance, key_count = tmp_path / "acks", random.Random(7), 300
    acks.touch()
    with mq.open(directory, **at_work.SMALL) as broker:
        broker.create_topic("orders", 3)
        killed = 0
        for number in range(ROUNDS):
            arguments = [
                (str(directory), f"{number}-{n}", chance.randrange(1 << 30), key_count, str(acks))
                for n in range(3)
            ]
            children = [Child(at_work.keep_sending, *each) for each in arguments]
            time.sleep(chance.uniform(0.15, 0.6))
            for child in children:
                if child.process.poll() is None:
                    killed += 1
                child.kill()
            for child in children:
                child.__exit__(None, None, None)
        call(at_work.keep_sending, str(directory), "last", 1, key_count, str(acks))
        told: dict[str, set[str]] = {}
        for key, offset_msg_id in at_work.lines_of(acks):
            told.setdefault(key, set()).add(offset_msg_id)
        for key in map(str, range(key_count)):
            [stored] = broker.query("orders", f"key-{key}")
            assert told[key] == {stored.offset_msg_id}
    assert killed > ROUNDS


@pytest.mark.crash
def test_handlers_of_the_same_keys_are_killed_at_any_time(directory: Path, tmp_path: Path) -> None:
    """No two are in the body of a key at a time; a body that ended is run again only where that end was the
    last that its handler did."""
    journal, chance, key_count = tmp_path / "journal", random.Random(11), 400
    journal.touch()
    with mq.open(directory, **at_work.SMALL) as broker:
        killed = set[int]()
        for _ in range(ROUNDS):
            # All in one order, so that they meet at every key.
            seed = chance.randrange(1 << 30)
            children = [
                Child(at_work.keep_handling, str(directory), seed, key_count, str(journal)) for _ in range(3)
            ]
            time.sleep(chance.uniform(0.15, 0.6))
            for child in children:
                child.kill()
                if child.process.returncode == -signal.SIGKILL:
                    killed.add(child.pid)
            for child in children:
                child.__exit__(None, None, None)
        call(at_work.keep_handling, str(directory), 1, key_count, str(journal))
        inside: dict[str, str] = {}
        ends: dict[str, list[tuple[str, int]]] = {}
        last: dict[str, int] = {}
        for line, (key, what, pid) in enumerate(at_work.lines_of(journal)):
            last[pid] = line
            if what == "begin":
                assert key not in inside or int(inside[key]) in killed, f"two are at {key}"
                inside[key] = pid
            else:
                assert inside.pop(key) == pid
                ends.setdefault(key, []).append((pid, line))
        for key, each in ends.items():
            for pid, line in each[:-1]:
                assert int(pid) in killed, f"{key} was handled twice"
                assert last[pid] == line, f"{key} was handled twice, and the first one lived on"
        once = mq.Once(broker, "billing")
        assert all(once.seen(f"key-{key}") for key in range(key_count))
    assert len(killed) > ROUNDS // 2
