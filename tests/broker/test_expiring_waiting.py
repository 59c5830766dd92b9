"""Messages that no group can read yet, and that are deleted all the same: each is named, before and after."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

import mq
from mq.api.retention import DELAYED, HALF, Range, Waiting
from mq.broker.local import LocalBroker
from mq.cli.command import run
from tests.support.eventually import eventually
from tests.support.store.small_store import fill, open_small

TIMER, LEVELS, HALVES = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
HOUR_MS = 3_600_000
WAITING = (
    Waiting(HALF, "orders", Range(HALVES, 0, 1, 2), 2),
    Waiting(DELAYED, "events", Range(LEVELS, 17, 0, 0), 1),
    Waiting(DELAYED, "events", Range(TIMER, 0, 2, 2), 1),
    Waiting(DELAYED, "orders", Range(TIMER, 0, 0, 3), 3),
)


def undecided(*_: object) -> mq.TransactionState:
    return mq.TransactionState.UNKNOWN


def filled(directory: Path) -> LocalBroker:
    """An open store in whose oldest files messages wait that no group can read yet."""
    broker = open_small(directory)  # A recall waits for the leader.
    for name in ("orders", "events", "others"):
        broker.create_topic(name, 1)
    with mq.TransactionProducer(broker, "writers", undecided) as writer:
        writer.send(mq.Message("orders", b"ended"), lambda *_: mq.TransactionState.COMMIT)
        for number in range(2):
            writer.send(mq.Message("orders", b"open %d" % number), undecided)
    broker.topic("events").send(b"level", delay_level=18)
    for topic in ("orders", "orders", "events", "orders"):
        broker.topic(topic).send(b"later", delay_ms=HOUR_MS)
    recalled = broker.topic("orders").send(b"recalled", delay_ms=HOUR_MS)
    assert recalled.recall_handle is not None
    broker.recall(recalled.recall_handle)
    fill(broker, "others", 60)
    return broker


def by_name(waiting: tuple[Waiting, ...]) -> list[Waiting]:
    return sorted(waiting, key=lambda each: (each.lies_in.topic, each.topic))


def test_a_dry_run_and_the_log_name_them(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with filled(directory) as broker, caplog.at_level(logging.WARNING, "mq.retention"):
        assert by_name(broker.retention.expiring(hours=0).waiting) == by_name(WAITING)
        broker.expire(retention_hours=0)
        assert list(broker.delayed()) == []
    told = [record.getMessage() for record in caplog.records if record.name == "mq.retention"]
    due, ended = "before they were due", "before their transactions ended"
    for text in (
        f"half messages for topic orders {ended}: 2 of them, from {HALVES} queue 0 offsets 1 to 2",
        f"delayed messages for topic events {due}: 1 of them, from {LEVELS} queue 17 offsets 0 to 0",
        f"delayed messages for topic events {due}: 1 of them, from {TIMER} queue 0 offsets 2 to 2",
        f"delayed messages for topic orders {due}: 3 of them, from {TIMER} queue 0 offsets 0 to 3",
    ):
        assert len([line for line in told if f"deleted {text}" in line]) == 1, (text, told)


def test_the_command_shows_them(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    filled(directory).close()
    assert run([str(directory), "expire", "--dry-run", "--hours", "0"]) == 0
    shown = capfd.readouterr().out
    assert f"3 delayed messages for orders would never be delivered: {TIMER}/0 offsets 0 to 3" in shown
    assert f"2 half messages for orders would never be delivered: {HALVES}/0 offsets 1 to 2" in shown
    assert run([str(directory), "expire", "--dry-run", "--hours", "0", "--json"]) == 0
    level = {"kind": "delayed", "topic": "events", "count": 1, "queue": f"{LEVELS}/17", "first": 0, "last": 0}
    assert level in json.loads(capfd.readouterr().out)["waiting"]


def test_what_was_delivered_or_has_a_copy_that_stays_is_not_named(directory: Path) -> None:
    with open_small(directory) as broker:
        for name in ("orders", "others"):
            broker.create_topic(name, 1)
        broker.topic("orders").send(b"soon", delay_ms=1)
        broker.topic("orders").send(b"soon", delay_level=1)
        deadline = time.monotonic() + 60
        while broker.topic("orders").queues[0].max_offset < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        fill(broker, "others", 60)
        # The copy is there before it is counted as delivered.
        eventually(
            lambda: broker.retention.expiring(hours=0).waiting == (),
            lambda: broker.retention.expiring(hours=0).waiting,
        )
