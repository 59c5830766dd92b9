"""Messages that no group can read yet, and that are deleted all the same: each is named, before and after."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.api.retention import DELAYED, HALF, Range, Waiting
from mq.broker.delay.pending import messages
from mq.broker.local import LocalBroker
from mq.cli.command import run
from mq.store.log.reappend import Copies, changed
from tests.support.eventually import eventually
from tests.support.insides import schedule_of, store_of
from tests.support.store.small_store import LOG_FILE_SIZE, fill, log_files, open_small

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


class Shortened:
    """A store whose messages were to be kept for three days, and are for an hour now. One that is due in a
    day waits in one of its older files."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        for name in ("orders", "others"):
            broker.create_topic(name, 1)
        fill(broker, "others", 30)
        broker.topic("orders").send(b"far", delay_ms=24 * HOUR_MS)
        queue = mq.MessageQueue(TIMER, broker.name, 0)
        (self.far,) = messages(schedule_of(broker).reader, queue, 0)
        fill(broker, "others", 60)
        broker.flush()
        broker.retention.change(hours=1)
        # One that is made ahead comes at any time.
        self.files = [file for file in log_files(broker.path) if any(file.read_bytes())]

    def age(self, hours: float) -> None:
        moment = time.time() - hours * 3600
        for file in self.files:
            os.utime(file, (moment, moment))

    def store_again(self, **changed_properties: str) -> None:
        """What a broker stores in the timer topic: the message on its way, or its marker."""
        properties = changed(self.far.encoded, changed_properties)
        Copies(store_of(self.broker)).append(TIMER, 0, self.far, properties, reconsume_times=0)

    def kept(self) -> list[Path]:
        return [file for file in self.files if file.exists()]

    def held(self) -> list[Path]:
        """From the file of the message on."""
        return [file for file in self.files if int(file.name) + LOG_FILE_SIZE > self.far.log_offset]


@pytest.fixture
def shortened(directory: Path) -> Iterator[Shortened]:
    with open_small(directory, retention_hours=72, duties=False) as broker:
        yield Shortened(broker)


def test_a_shorter_retention_waits_for_what_is_due_later(
    shortened: Shortened, caplog: pytest.LogCaptureFixture
) -> None:
    retention = shortened.broker.retention
    shortened.age(1.1)
    with caplog.at_level(logging.INFO, "mq.retention"):
        would = retention.expiring()
        assert would.waiting == ()
        assert retention.expire() == would.file_count == len(shortened.files) - len(shortened.held()) > 0
        for _ in range(2):
            assert retention.expire() == 0
    assert shortened.kept() == shortened.held()
    assert [one.msg_id for one in shortened.broker.delayed()] == [shortened.far.msg_id]
    (line,) = [line for line in caplog.messages if "kept longer than 1 h" in line]
    assert f"message {shortened.far.msg_id}" in line
    # Once it has been stored again, they go.
    shortened.store_again(TIMER_ROLL_TIMES="1")
    assert retention.expire() > 0
    assert [one.msg_id for one in shortened.broker.delayed()] == [shortened.far.msg_id]


def test_it_does_not_wait_for_what_is_recalled(shortened: Shortened) -> None:
    shortened.age(1.1)
    shortened.store_again(TIMER_DEL_UNIQKEY=f"orders+{shortened.far.msg_id}")
    shortened.broker.retention.expire()
    assert len(shortened.kept()) <= 1


@pytest.mark.parametrize("way", ["three days", "a number", "full disk"])
def test_it_does_not_wait_for_ever(
    shortened: Shortened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Such as where nothing can be stored again."""
    retention = shortened.broker.retention
    shortened.age(72.1 if way == "three days" else 1.1)
    if way == "full disk":
        retention.change(disk_ratio_max=0.5)
        monkeypatch.setattr("mq.store.retention.disk_excess", lambda *_: 1 << 40)
    while retention.expire(1 if way == "a number" else None):
        pass
    assert len(shortened.kept()) <= 1
    assert any(
        "deleted delayed messages for topic orders before they were due" in line for line in caplog.messages
    )


def test_without_space_for_the_index_its_copies_are_looked_for(
    shortened: Shortened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> int:
        raise mq.StoreFull("no space", path="index")

    monkeypatch.setattr("mq.store.store.bring_up", no_space)
    shortened.age(1.1)
    shortened.broker.retention.expire()
    assert shortened.kept() == shortened.held()
    shortened.store_again(TIMER_ROLL_TIMES="1")
    shortened.broker.retention.expire()
    assert len(shortened.kept()) <= 1
