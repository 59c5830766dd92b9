"""Any process of a query is killed, at any time: every message comes out once, whole epochs or nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.spark.reading import send
from tests.spark.session import environment
from tests.spark.test_sink import stored

pytestmark = [pytest.mark.spark, pytest.mark.crash]

ROUNDS = int(os.environ.get("MQ_SPARK_KILLS", "1"))
SECONDS_MAX = 200.0  # for a start on a machine with other work
VICTIMS = ("jvm", "driver", "worker")


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


@contextmanager
def pipeline(directory: Path, place: Path, master: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The query in a process of its own; whatever is left of it is killed at the end."""
    command = [sys.executable, "-m", "tests.spark.pipeline", str(directory), str(place), master, *more]
    with (place / "output").open("a") as output:
        process = subprocess.Popen(
            command,
            env=environment(place),
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    family = {process.pid}
    try:
        yield process
    finally:
        family.update(descendants(process.pid))
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def end_of(broker: LocalBroker, topic: str) -> int:
    return sum(queue.max_offset for queue in broker.topic(topic).queues)


def kill_one(process: subprocess.Popen[str], victim: str, chance: random.Random) -> None:
    assert process.stdout is not None
    jvm = int(process.stdout.readline())
    workers = [pid for pid in descendants(jvm) if pid != jvm]
    pid = {"jvm": jvm, "driver": process.pid, "worker": chance.choice(workers or [jvm])}[victim]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(ROUNDS * 2 * SECONDS_MAX + 2 * SECONDS_MAX)
def test_every_message_comes_out_once(directory: Path, tmp_path: Path) -> None:
    with mq.open(directory, commitlog_file_size=1 << 20, queue_file_units=1000) as broker:
        for topic in ("orders", "results"):
            broker.create_topic(topic, 2)
        run_rounds(broker, directory, tmp_path)


def run_rounds(broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    stopping = threading.Event()
    count = 0

    def send_on() -> None:
        nonlocal count
        while not stopping.wait(0.02):
            send(broker, "orders", count % 2, *[b"%d" % number for number in range(count, count + 20)])
            count += 20

    sender = threading.Thread(target=send_on)
    sender.start()
    try:
        for number in range(ROUNDS):
            with pipeline(directory, tmp_path, "local[2,3]") as process:
                before = end_of(broker, "results")
                until = time.monotonic() + SECONDS_MAX
                while end_of(broker, "results") == before and process.poll() is None:
                    assert time.monotonic() < until, (tmp_path / "output").read_text()[-4000:]
                    time.sleep(0.05)
                time.sleep(chance.random() * 2)
                kill_one(process, VICTIMS[number % len(VICTIMS)], chance)
                time.sleep(chance.random())
    finally:
        stopping.set()
        sender.join()
    with pipeline(directory, tmp_path, "local[2,3]", "once") as process:
        assert process.wait(SECONDS_MAX) == 0, (tmp_path / "output").read_text()[-4000:]
    found = sorted(int(message.body) for message in stored(broker, "results"))
    assert found == list(range(count)), f"seed {seed}: {len(found)} messages of {count}"
