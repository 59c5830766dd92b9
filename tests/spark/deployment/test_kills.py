"""Any process of a query is killed, at any time: every message is copied once and counted once.

The processes are the Python of the driver, its JVM, an executor's JVM, and any Python that a JVM has started:
workers of tasks, what plans, what commits, and what watches the source. A query outlives its executors and
workers, so a session lasts until its driver or JVM is killed, or Spark has made it useless. What is left then
is done in the session of all tests, which is never killed.

With MQ_HALTS=1 the processes are stopped for a while as well, and alarms cut the workers short.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.spark.pipeline import finish
from tests.spark.processes import CLUSTER, DEADLY, GAVE_UP, SECONDS_MAX, Ended, Process, victims_of
from tests.spark.reading import send
from tests.spark.session import environment
from tests.spark.writing import stored
from tests.support.processes.halts import WANTED, halts

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.rounds]

EACH_ONCE = ["worker", "executor", "jvm", "driver"]
ROUNDS = int(os.environ.get("MQ_SPARK_KILLS", len(EACH_ONCE)))
BACKLOG_MAX = 2000
ALONE = "local[2,3]"
ALARMS = Path(__file__).with_name("alarms")


class Rounds:
    """Sends to the queries and kills them, life after life."""

    def __init__(self, broker: LocalBroker, directory: Path, place: Path, seed: int) -> None:
        self.broker = broker
        self.directory = directory
        self.place = place
        self.chance = random.Random(seed)
        self.sent = 0
        self.killed: Counter[str] = Counter()
        self.useless = 0  # sessions

    def end_of(self, topic: str) -> int:
        return sum(queue.max_offset for queue in self.broker.topic(topic).queues)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """As long as it lasts; but never far ahead of the queries, so that the last one is soon done."""
        stopping = threading.Event()

        def send_on() -> None:
            while not stopping.wait(0.02):
                if self.sent - self.end_of("results") < BACKLOG_MAX:
                    bodies = [b"%d" % number for number in range(self.sent, self.sent + 20)]
                    send(self.broker, "orders", self.sent % 40 // 20, *bodies)
                    self.sent += 20

        sender = threading.Thread(target=send_on, name="sender")
        sender.start()
        try:
            yield
        finally:
            stopping.set()
            sender.join()

    def live(self, victims: list[str]) -> None:
        """One session: its victims, of which the last one ends it."""
        on_cluster = "executor" in victims or (len(victims) > 1 and self.chance.random() < 0.5)
        arguments = (self.directory, self.place, CLUSTER if on_cluster else ALONE)
        process = Process("tests.spark.pipeline", self.place, *arguments, env=alarmed(self.place))
        left = victims.copy()
        try:
            jvm = int(process.line())
            with halts(lambda: list(process.all()), self.sent):
                while left:
                    if self.killed.total() < len(EACH_ONCE) or self.chance.random() < 0.8:
                        self.await_progress(process)
                    self.kill(process, jvm, left[0])
                    left.pop(0)
                # The rest may run on for a while, as it does without a clean-up.
                time.sleep(self.chance.random())
        except Ended as ended:
            self.given_up(ended.code, str(ended))
        finally:
            process.close()
        if left:
            self.live(left)

    def given_up(self, code: int, said: str) -> None:
        """A session may be of no more use, if that is rare."""
        assert code == GAVE_UP, said
        self.useless += 1
        print(f"a session of no more use: {said}", flush=True)
        assert self.useless <= 1 + ROUNDS // 10

    def await_progress(self, process: Process) -> None:
        """Until both queries have written once more."""
        before = {topic: self.end_of(topic) for topic in ("results", "counts")}
        process.wait(lambda: all(self.end_of(topic) > end for topic, end in before.items()))

    def kill(self, process: Process, jvm: int, victim: str) -> None:
        time.sleep(self.chance.random())  # So that any moment may be the one.

        def killed() -> bool:
            found = victims_of(process, victim, jvm)
            if found:
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(found), signal.SIGKILL)
                    return True
            return False

        process.wait(killed)
        self.killed[victim] += 1
        print(f"{self.killed.total()} of {ROUNDS}: {victim}, at {self.end_of('results'):,} rows", flush=True)


def alarmed(place: Path) -> dict[str, str]:
    """What a session is started with: where that is asked for, alarms cut its workers short."""
    found = environment(place)
    if not WANTED:
        return found
    paths = os.pathsep.join([str(ALARMS), found["PYTHONPATH"]])
    return {**found, "PYTHONPATH": paths, "MQ_ALARMS": str(place / "alarms")}


def lives(count: int, chance: random.Random) -> list[list[str]]:
    """So many victims, the first ones one of each kind; those of one session together."""
    found: list[list[str]] = [[]]
    for number in range(count):
        victim = EACH_ONCE[number] if number < len(EACH_ONCE) else chance.choice(EACH_ONCE)
        found[-1].append(victim)
        if victim in DEADLY:
            found.append([])
    return [victims for victims in found if victims]


def counted(broker: LocalBroker) -> dict[int, list[tuple[int, int]]]:
    """For each queue what was counted: the first offset of each batch, and the one behind its last."""
    found: dict[int, list[tuple[int, int]]] = {}
    for message in stored(broker, "counts"):
        said = json.loads(message.body)
        found.setdefault(said["queue"], []).append((said["last"] + 1 - said["count"], said["last"] + 1))
    return {queue: sorted(spans) for queue, spans in found.items()}


@pytest.mark.timeout((ROUNDS + 2) * SECONDS_MAX)
def test_every_message_comes_out_once(spark: Any, directory: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("MQ_SPARK_SEED", random.randrange(1 << 32)))
    with mq.open(directory, commitlog_file_size=1 << 20, queue_file_units=1000) as broker:
        for topic in ("orders", "results", "counts"):
            broker.create_topic(topic, 2)
        rounds = Rounds(broker, directory, tmp_path, seed)
        with rounds.sending():
            for victims in lives(ROUNDS, rounds.chance):
                rounds.live(victims)
        finish(spark, str(directory), tmp_path)
        found = sorted(int(message.body) for message in stored(broker, "results"))
        ends = {queue.queue_id: queue.max_offset for queue in broker.topic("orders").queues}
        spans = counted(broker)
    replays = tmp_path / "replays"
    print(
        f"seed {seed}: killed {dict(rounds.killed)}; {rounds.sent:,} rows in, {len(found):,} out,"
        f" {sum(map(len, spans.values())):,} counts;"
        f" {len(set(replays.read_text().splitlines())) if replays.exists() else 0} replays recognised"
    )
    if WANTED:
        alarms = len((tmp_path / "alarms").read_text().splitlines())
        print(f"{alarms} alarms")
        assert alarms
    assert found == list(range(rounds.sent)), f"seed {seed}"
    assert rounds.killed.total() == ROUNDS
    for queue, end in ends.items():
        borders = [0, *(border for span in spans[queue] for border in span), end]
        assert borders[::2] == borders[1::2], f"seed {seed}: queue {queue}"
