"""A process dies while it sends or handles a key: the next one finds out how far it came.

Deaths before each line of the code, and deaths at any time among several processes that are at the same keys.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.dedup.table import BUCKET_COUNT, SentKeys, digest_of
from tests.dedup import dedup_actors
from tests.support.insides import set_dedup_buckets, store_of
from tests.support.processes.children import Child, call
from tests.support.processes.fail_build import TREE, fail_build, fail_points

pytestmark = pytest.mark.rounds

ROUNDS = int(os.environ.get("MQ_KILLS", "12"))


@pytest.mark.crash
@pytest.mark.parametrize(("flush", "delay_level"), [("async", 0), ("sync", 0), ("async", 5)])
def test_a_sender_dies_before_any_line(directory: Path, flush: Any, delay_level: int) -> None:
    assert call(dedup_actors.dead_senders, str(directory), flush, delay_level, False, timeout=240) > 40


@pytest.mark.crash
def test_the_first_sender_dies_before_any_line(tmp_path: Path) -> None:
    assert call(dedup_actors.dead_senders, str(tmp_path / "stores"), "async", 0, True, timeout=240) > 25


INSIDE = ("LOCKED", "ARMED", "HALF_RECORD", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED", "FLUSHED")
AROUND = ("KEY_LOCKED", "KEY_CLAIMED", "KEY_APPENDED", "KEY_MARKED")


@pytest.mark.crash
@pytest.mark.parametrize(
    ("way", "point"),
    [*(("first", point) for point in INSIDE), *(("usual", point) for point in (*INSIDE, *AROUND))],
)
def test_a_sender_dies_inside_the_append(directory: Path, way: str, point: str) -> None:
    """With the first key of a producer, which Python stores, or a later one, which is one call of C."""
    flush: Any = "sync" if point == "FLUSHED" else "async"
    fail = f"{fail_points()[point]}:1:kill"
    with mq.open(directory, flush=flush, flush_interval=3600, **dedup_actors.SMALL) as broker:
        broker.create_topic("orders", 1)
        with mq.Producer(broker, dedup_window=3600) as producer:
            producer.send(dedup_actors.order(b"before"), dedup_key="before")
        completed = subprocess.run(
            [
                *(sys.executable, "-m", "tests.dedup.dedup_actors", str(directory), flush),
                fail if way == "usual" else "",
            ],
            env={
                **os.environ,
                "PYTHONPATH": f"{fail_build()}{os.pathsep}{TREE}",
                "MQ_FAIL": fail if way == "first" else "",
            },
            cwd=directory.parent,
            check=False,
        )
        assert completed.returncode == -signal.SIGKILL
        with mq.Producer(broker, dedup_window=3600) as producer:
            results = [
                producer.send(dedup_actors.order(b"of the living"), dedup_key="key-1") for _ in range(2)
            ]
        assert results[0].offset_msg_id == results[1].offset_msg_id
        [stored] = broker.query("orders", "key-1")
        assert stored.offset_msg_id == results[0].offset_msg_id
        assert broker.topic("orders").queues[0].max_offset == 2


@pytest.mark.crash
def test_a_handler_dies_before_any_line(directory: Path) -> None:
    assert call(dedup_actors.dead_handlers, str(directory), timeout=240) > 40


@pytest.mark.crash
@pytest.mark.parametrize("buckets", [BUCKET_COUNT, 4])
def test_senders_of_the_same_keys_are_killed_at_any_time(
    directory: Path, tmp_path: Path, buckets: int
) -> None:
    """Each key is stored once, and every answered send returned that message. With few buckets most of them
    have to go for others."""
    acks, chance, key_count = tmp_path / "acks", random.Random(7), 300
    acks.touch()
    with mq.open(directory, **dedup_actors.SMALL) as broker:
        broker.create_topic("orders", 3)
        set_dedup_buckets(broker, buckets)
        mq.Producer(broker, dedup_window=3600).send(dedup_actors.order(b"first"), dedup_key="first")
        killed = 0
        for number in range(ROUNDS):
            arguments = [
                (str(directory), f"{number}-{n}", chance.randrange(1 << 30), key_count, str(acks))
                for n in range(3)
            ]
            # All together write some 30,000 bytes.
            enough = acks.stat().st_size + chance.randrange(25_000)
            children = [Child(dedup_actors.keep_sending, *each) for each in arguments]
            while acks.stat().st_size < enough and any(child.process.poll() is None for child in children):
                time.sleep(0.001)
            for child in children:
                if child.process.poll() is None:
                    killed += 1
                child.kill()
            for child in children:
                child.__exit__(None, None, None)
        call(dedup_actors.keep_sending, str(directory), "last", 1, key_count, str(acks))
        told: dict[str, set[str]] = {}
        for key, offset_msg_id in dedup_actors.lines_of(acks):
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
    with mq.open(directory, **dedup_actors.SMALL) as broker:
        killed = set[int]()
        for _ in range(ROUNDS):
            # All in one order, so that they meet at every key.
            seed = chance.randrange(1 << 30)
            children = [
                Child(dedup_actors.keep_handling, str(directory), seed, key_count, str(journal))
                for _ in range(3)
            ]
            # All together write some 14,000 bytes: about an equal part of them in each round.
            enough = journal.stat().st_size + chance.randrange(2 * 14_000 // ROUNDS)
            while journal.stat().st_size < enough and any(child.process.poll() is None for child in children):
                time.sleep(0.001)
            for child in children:
                child.kill()
                if child.process.poll() == -signal.SIGKILL:
                    killed.add(child.pid)
            for child in children:
                child.__exit__(None, None, None)
        call(dedup_actors.keep_handling, str(directory), 1, key_count, str(journal))
        inside: dict[str, str] = {}
        ends: dict[str, list[tuple[str, int]]] = {}
        last: dict[str, int] = {}
        for line, (key, what, pid) in enumerate(dedup_actors.lines_of(journal)):
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


@pytest.mark.crash
def test_what_came_twice_is_handled_once_by_members_that_are_killed(directory: Path, tmp_path: Path) -> None:
    """Each order is stored twice and every second member is killed. What was handled again was the last that
    its thread did before its process was killed."""
    journal, chance, count = tmp_path / "journal", random.Random(3), 400
    journal.touch()
    with mq.open(directory, **dedup_actors.SMALL) as broker, ExitStack() as stack:
        topic = broker.create_topic("orders", 6)

        def send_twice(begin: int, end: int) -> None:
            for _ in range(2):
                with mq.Producer(broker, dedup_window=3600) as producer:
                    for number in range(begin, end):
                        producer.send(dedup_actors.order(b"%d" % number), dedup_key=f"key-{number}")
                keys = SentKeys(store_of(broker), clock_ms=lambda: time.time_ns() // 1_000_000)
                for number in range(begin, end):  # As if the window had ended.
                    digest = digest_of("key", "orders", f"key-{number}")
                    with dedup_actors.held(keys, digest, 1):
                        keys.bucket().unclaim(digest, None)
            assert sum(queue.max_offset for queue in topic.queues) == 2 * end

        send_twice(0, count)
        killed = set[str]()
        members = [stack.enter_context(member(directory, journal)) for _ in range(3)]
        deadline = time.monotonic() + 180
        while True:
            assert time.monotonic() < deadline
            if broker.group("billing").offsets("orders") and not broker.group("billing").lag("orders"):
                if len(killed) > 2:
                    break
                # They were done before the busy machine could kill one.
                send_twice(count, count := count + 100)
            time.sleep(chance.uniform(0.1, 0.3))
            if len(killed) < ROUNDS:
                victim = members.pop(0)
                assert victim.hear() == "in"
                victim.kill()
                killed.add(str(victim.pid))
                members.append(stack.enter_context(member(directory, journal)))
        for each in members:
            each.kill()
        handled: dict[str, list[tuple[str, int]]] = {}
        last: dict[str, int] = {}
        for line, (key, thread) in enumerate(dedup_actors.lines_of(journal)):
            handled.setdefault(key, []).append((thread, line))
            last[thread] = line
        assert handled.keys() == {f"orders/key-{number}" for number in range(count)}
        for key, times in handled.items():
            for thread, line in times[:-1]:
                assert thread.split("/")[0] in killed, f"{key} was handled twice"
                assert last[thread] == line, f"{key} was handled twice, and the first one lived on"
    assert len(killed) > 2


def member(directory: Path, journal: Path) -> Child:
    return Child(dedup_actors.keep_consuming, str(directory), str(journal), timeout=200)
