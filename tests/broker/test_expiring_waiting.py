"""Messages that no group can read yet, and that are deleted all the same: each is named, before and after."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.retention import DELAYED, HALF, Range, Waiting
from mq.broker.delay.pending import messages
from mq.broker.local import LocalBroker
from mq.cli.command import run
from mq.store.index.find_records import stored
from mq.store.log.reappend import Copies, changed
from tests.support.eventually import eventually
from tests.support.insides import schedule_of, store_of
from tests.support.store.small_store import LOG_FILE_SIZE, fill, open_small, written

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
    day waits in one of its older files, after others that do."""

    def __init__(self, broker: LocalBroker, before_count: int = 0) -> None:
        self.broker = broker
        for name in ("orders", "others"):
            broker.create_topic(name, 1)
        fill(broker, "others", 30)
        for _ in range(before_count + 1):
            broker.topic("orders").send(b"far", delay_ms=24 * HOUR_MS)
        queue = mq.MessageQueue(TIMER, broker.name, 0)
        *self.before, self.far = messages(schedule_of(broker).reader, queue, 0)
        fill(broker, "others", 60)
        broker.flush()
        broker.retention.change(hours=1)
        # One that is made ahead comes at any time.
        self.files = written(broker.path)

    def age(self, hours: float) -> None:
        moment = time.time() - hours * 3600
        for file in self.files:
            os.utime(file, (moment, moment))

    def store_again(self, message: mq.MessageExt | None = None, **changed_properties: str) -> None:
        """What a broker stores in the timer topic: the message on its way, or its marker."""
        message = message or self.far
        properties = changed(message.encoded, changed_properties)
        Copies(store_of(self.broker)).append(TIMER, 0, message, properties, reconsume_times=0)

    def store_others_again(self) -> None:
        """All before it, in files that are not too old."""
        fill(self.broker, "others", 30)
        for message in self.before:
            self.store_again(message, TIMER_ROLL_TIMES="1")

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


def no_space(*_: object) -> int:
    raise mq.StoreFull("no space", path="index")


def test_without_space_for_the_index_its_copies_are_looked_for(
    shortened: Shortened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.store.store.bring_up", no_space)
    shortened.age(1.1)
    shortened.broker.retention.expire()
    assert shortened.kept() == shortened.held()
    shortened.store_again(TIMER_ROLL_TIMES="1")
    shortened.broker.retention.expire()
    assert len(shortened.kept()) <= 1


class Looked:
    """What the search for messages that wait costs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies = self.repairs = 0
        search, repair = stored, Copies.repair_tail

        def counted(*arguments: Any, **options: Any) -> Iterator[mq.MessageExt]:
            self.copies += 1
            return search(*arguments, **options)

        def counted_repair(copies: Copies) -> None:
            self.repairs += 1
            repair(copies)

        monkeypatch.setattr("mq.broker.expiring_waiting.stored", counted)
        monkeypatch.setattr(Copies, "repair_tail", counted_repair)


@pytest.fixture
def long_row(directory: Path) -> Iterator[Shortened]:
    """Eight have a copy, and the last one waits."""
    with open_small(directory, retention_hours=72, duties=False) as broker:
        long_row = Shortened(broker, 8)
        long_row.store_others_again()
        long_row.age(1.1)
        yield long_row


def test_the_next_look_begins_with_what_held_files_back(
    long_row: Shortened, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Looked(monkeypatch)
    long_row.broker.retention.work()
    assert long_row.kept() == long_row.held()
    assert (looked.copies, looked.repairs) == (9, 1)
    for _ in range(2):
        long_row.broker.retention.work()
    assert long_row.kept() == long_row.held()
    assert (looked.copies, looked.repairs) == (11, 3)
    long_row.store_again(TIMER_ROLL_TIMES="1")
    long_row.broker.retention.work()
    assert long_row.kept() == []


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_look_of_the_duty_is_bounded(
    long_row: Shortened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_indexed: bool
) -> None:
    """What it has not come to holds files back, and the log says nothing of it."""
    monkeypatch.setattr("mq.broker.retention.TIMES_LOOKED_AT", 3)
    looked = Looked(monkeypatch)
    if not is_indexed:
        monkeypatch.setattr("mq.store.store.bring_up", no_space)
    with caplog.at_level(logging.INFO, "mq.retention"):
        for count in range(1, 4):
            long_row.broker.retention.work()
            assert set(long_row.held()) <= set(long_row.kept())
            assert looked.copies <= 3 * count
            assert "kept longer than 1 h" not in caplog.text or count == 3
    if is_indexed:
        assert long_row.kept() == long_row.held()
        assert f"message {long_row.far.msg_id}" in caplog.text
    else:
        assert int(long_row.kept()[0].name) <= long_row.before[0].log_offset
    # Who asks for it waits until all is looked at.
    long_row.broker.retention.expire()
    assert long_row.kept() == long_row.held()


def test_what_was_not_delivered_after_all_is_searched_again(
    shortened: Shortened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was wrong for a moment."""
    with monkeypatch.context() as clock:
        clock.setattr("mq.broker.expiring_waiting.delivered_before", lambda *_: 1 << 60)
        shortened.age(1.1)
        clock.setattr("mq.store.retention.delete", lambda *_: None)
        shortened.broker.retention.work()
    shortened.broker.retention.work()
    assert shortened.kept() == shortened.held()
