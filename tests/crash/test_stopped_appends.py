"""A process is stopped at each point of an append, with the lock in hand, and goes on later.

Nothing can be taken from it. Every call of another process ends within its own time limit, and one that needs
the lock with an error that names its holder. Nothing of that call is stored, and all that the stopped one was
about to store is there when it has gone on.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.shared.process_state import process_state
from tests.crash.stopped import TOPIC, bulk
from tests.support import assigned
from tests.support.appending import prepare_one
from tests.support.processes.fail_build import TREE, fail_build, fail_points
from tests.support.processes.nursery import Nursery, Process
from tests.support.processes.outcomes import Calls, outcomes
from tests.support.store.sizes import SMALL

pytestmark = [pytest.mark.crash, pytest.mark.rounds]

POINT = fail_points()
LIMIT, PATIENCE = 0.1, 60.0  # seconds: of a call, and of this test
SIZES = {**SMALL, "queue_file_units": 3}
APPEND = ("LOCKED", "ARMED", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED")
CASES = [
    *((way, point) for way in ("single", "batch", "bulk") for point in APPEND),
    *((way, "HALF_RECORD") for way in ("single", "batch", "bulk")),
    *((way, point) for way in ("batch", "bulk") for point in ("NEW_QUEUE_FILE", "LINKED_QUEUE_FILE")),
    *((way, "BLANK") for way in ("large", "bulk")),
]
keys = count()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(TREE, tmp_path / "report", fail_build(), "tests.crash.stopped") as nursery:
        yield nursery
        assert nursery.failures() == ""


def calls_that_store(broker: LocalBroker, producer: mq.Producer) -> Calls:
    queue = mq.MessageQueue(TOPIC, broker.name, 0)
    refused = mq.Message(TOPIC, b"refused")
    (dead,) = broker.topic("read").queues[0].read(0, count_max=1).messages
    return {
        "send": lambda: producer.send(refused),
        "send to a queue": lambda: producer.send(refused, queue=queue),
        # Its limit counts from here on, and not from when the producer's thread takes the message.
        "asynchronous": lambda: producer.send_async(refused, timeout=1.0).result(),
        "one-way": lambda: producer.send_oneway(refused),
        "batch": lambda: producer.send_batch([refused, refused]),
        "key": lambda: producer.send(refused, dedup_key=f"key-{next(keys)}"),
        "level": lambda: producer.send(mq.Message(TOPIC, b"refused", delay_level=1)),
        "timer": lambda: producer.send(mq.Message(TOPIC, b"refused", delay_ms=3_600_000)),
        "first of a topic": lambda: producer.send(mq.Message("fresh", b"refused")),
        "half message": lambda: prepare_one(broker, queue, "payers", refused, b"refused", 0),
        "bulk": lambda: bulk(broker, TOPIC, [b"refused"] * 2),
        "hand back": lambda: assigned.send_back(broker, dead, "readers"),
        "dead letter": lambda: assigned.send_back(broker, dead, "readers", delay_level=-1),
    }


def other_calls(broker: LocalBroker) -> Calls:
    queue = broker.topic("read").queues[0]

    def open_another() -> None:
        mq.open(broker.path, duties=False, **SIZES).close()

    return {
        "read": lambda: queue.read(0),
        "query": lambda: broker.query("read", "kept"),
        "commit": lambda: assigned.commit(broker, "readers", queue.message_queue, 1),
        "lag": lambda: broker.group("readers").lag("read"),
        "flush": broker.flush,
        "expire": broker.expire,
        "create": lambda: broker.create_topic("read", 1),
        "open": open_another,
        "verify": lambda: list(problems(broker.path)),
    }


def stopped_at(process: Process, nursery: Nursery) -> None:
    deadline = time.monotonic() + PATIENCE
    while not process_state(process.pid).is_stopped:
        assert not process.wait(0.002), f"it did not pass the point {nursery.failures()}"
        assert time.monotonic() < deadline


@pytest.mark.timeout(600)
def test_an_append_is_stopped_at_each_point(directory: Path, tmp_path: Path, nursery: Nursery) -> None:
    sent: Counter[bytes] = Counter()
    with (
        mq.open(directory, duties=False, **SIZES) as broker,
        mq.Producer(broker, timeout=LIMIT, retries=0, dedup_window=600) as producer,
    ):
        broker.create_topic(TOPIC, 2)
        broker.create_topic("read", 1).send(b"kept", keys="kept")
        # So that what belongs to no single topic is there.
        for name, call in calls_that_store(broker, producer).items():
            if name in ("level", "timer", "key", "half message"):
                call()
        refused, others = calls_that_store(broker, producer), other_calls(broker)
        own = broker.topic(TOPIC).queues[0].message_queue
        for way, point in CASES:
            case, done = f"{way}-{point}", tmp_path / f"{way}-{point}"
            process = nursery.start(
                "appender",
                environment={"MQ_FAIL": f"{POINT[point]}:1:stop"},
                root=directory,
                way=way,
                name=case,
                done=done,
                sizes=SIZES,
            )
            stopped_at(process, nursery)
            said = rf"process {process.pid} \(.*\), which is stopped"
            for name, (text, seconds) in outcomes(refused, LIMIT).items():
                # Also where it waited for another one of these calls, which waits for the stopped process.
                assert re.search(said, text), (case, name, text)
                assert seconds < PATIENCE / 2, (case, name)
            for name, (text, seconds) in outcomes(others, LIMIT).items():
                assert not text or re.search(said, text), (case, name, text)
                assert seconds < PATIENCE / 2, (case, name)
            assert not done.exists()
            process.go_on()
            assert process.wait(PATIENCE)
            assert nursery.failures() == ""
            sent.update(done.read_bytes().split(b"\n"))
            nursery.forget(process)
            producer.send(mq.Message(TOPIC, case.encode()), queue=own, timeout=PATIENCE)
            sent[case.encode()] += 1
        stored = bodies_of(broker)
        del stored[b"refused"]  # The first one with a key.
        assert stored == sent, (stored - sent, sent - stored)
        assert sum(queue.max_offset for queue in broker.topic("read").queues) == 1
        # A topic that was made for a refused message may stay: deleting it needs the lock as well.
        for topic in set(broker.topics()) - {TOPIC, "read"}:
            assert not any(queue.max_offset for queue in broker.topic(topic).queues)


def bodies_of(broker: LocalBroker) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for queue in broker.topic(TOPIC).queues:
        at = 0
        while messages := queue.read(at, count_max=1000).messages:
            found.update(message.body for message in messages)
            at += len(messages)
    return found


@pytest.mark.parametrize("way", ["single", "batch", "bulk"])
def test_a_repair_is_stopped(directory: Path, tmp_path: Path, nursery: Nursery, way: str) -> None:
    """A process that repairs what a dead one left has the lock. What the dead one had not acknowledged is not
    there, and what the stopped one sends is there once."""
    with (
        mq.open(directory, duties=False, **SIZES) as broker,
        mq.Producer(broker, timeout=LIMIT, retries=0) as producer,
    ):
        broker.create_topic(TOPIC, 2)
        producer.send(mq.Message(TOPIC, b"before"), timeout=PATIENCE)
        died = {"MQ_FAIL": f"{POINT['RECORD']}:1:kill"}
        dead = nursery.start(
            "dying_appender", environment=died, root=directory, way=way, name="dead", sizes=SIZES
        )
        assert dead.wait(PATIENCE)
        nursery.forget(dead)
        done = tmp_path / "done"
        process = nursery.start(
            "appender",
            environment={"MQ_FAIL": f"{POINT['REPAIR']}:1:stop"},
            root=directory,
            way="single",
            name="stopped",
            done=done,
            sizes=SIZES,
        )
        stopped_at(process, nursery)
        said = rf"process {process.pid} \(.*\), which is stopped"
        calls: Calls = {
            "send": lambda: producer.send(mq.Message(TOPIC, b"refused")),
            "batch": lambda: producer.send_batch([mq.Message(TOPIC, b"refused")] * 2),
            "bulk": lambda: bulk(broker, TOPIC, [b"refused"] * 2),
        }
        for name, (text, seconds) in outcomes(calls, LIMIT).items():
            assert re.search(said, text), (name, text)
            assert seconds < PATIENCE / 2, name
        process.go_on()
        assert process.wait(PATIENCE)
        assert nursery.failures() == ""
        nursery.forget(process)
        producer.send(mq.Message(TOPIC, b"after"), timeout=PATIENCE)
        found = bodies_of(broker)
        assert found == Counter([b"before", b"stopped", b"after"])
        assert list(problems(directory)) == []


def test_a_process_is_stopped_at_the_making_of_a_file_of_the_log(
    directory: Path, tmp_path: Path, nursery: Nursery
) -> None:
    """Others send meanwhile, or are told which process is stopped; the file is made once."""
    with (
        mq.open(directory, duties=False, **SIZES) as broker,
        mq.Producer(broker, timeout=LIMIT, retries=0) as producer,
    ):
        broker.create_topic(TOPIC, 2)
        producer.send(mq.Message(TOPIC, b"before"), timeout=PATIENCE)
        done = tmp_path / "done"
        process = nursery.start(
            "appender",
            environment={"MQ_FAIL": f"{POINT['NEW_LOG_FILE']}:1:stop"},
            root=directory,
            way="large",
            name="stopped",
            done=done,
            sizes=SIZES,
        )
        stopped_at(process, nursery)
        said = rf"process {process.pid} \(.*\), which is stopped"
        calls: Calls = {
            f"send {number}": partial(producer.send, mq.Message(TOPIC, b"%d" % number)) for number in range(4)
        }
        sent = Counter([b"before", b"after"])
        for name, (text, seconds) in outcomes(calls, LIMIT).items():
            assert not text or re.search(said, text), (name, text)
            assert seconds < PATIENCE / 2, name
            if not text:
                sent[name.removeprefix("send ").encode()] += 1
        process.go_on()
        assert process.wait(PATIENCE)
        assert nursery.failures() == ""
        nursery.forget(process)
        producer.send(mq.Message(TOPIC, b"after"), timeout=PATIENCE)
        sent.update(done.read_bytes().split(b"\n"))
        assert bodies_of(broker) == sent
        assert list(problems(directory)) == []
