"""What is deleted when: by the settings of the store, where nothing has to be confirmed, never in silence."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.retention import Expiring, Range, Unread
from mq.broker.live_settings import AgreedSettings
from mq.broker.local import LocalBroker
from mq.store.directory.settings import USUAL, SettingsFile
from tests.support import assigned
from tests.support.eventually import eventually
from tests.support.insides import duties_of, schedule_of, store_of, timer_of
from tests.support.store.peer import Peer
from tests.support.store.small_store import LOG_FILE_SIZE, fill, log_files, open_small, written

COUNT = 120
HOUR_MS = 3_600_000


def filled(directory: Path, **options: Any) -> list[Path]:
    """A closed store with messages in several files of the log, which are its files."""
    with open_small(directory, **options) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", COUNT)
    return written(directory)


def age(directory: Path, hours: float) -> None:
    """As if everything in the store, the store itself included, had been left so long ago."""
    moment = time.time() - hours * 3600
    for file in (*log_files(directory), directory / "mq" / "settings.lock"):
        os.utime(file, (moment, moment))


def alive(directory: Path, hours: float) -> None:
    """As if the leader had been at work for the last time so long ago."""
    moment = time.time() - hours * 3600
    os.utime(directory / "mq" / "settings.lock", (moment, moment))


def after_work(directory: Path, **options: Any) -> list[Path]:
    """The files of the log once a process has been the leader for a while."""
    with open_small(directory, duties=False, **options) as broker:
        broker.retention.work()
    return written(directory)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[int], list[str]]]:
    """What the log of retention has of this level."""
    with caplog.at_level(logging.INFO, "mq.retention"):
        yield lambda level: [
            record.getMessage()
            for record in caplog.records
            if (record.name, record.levelno) == ("mq.retention", level)
        ]


# Whose retention.


def test_a_script_with_usual_options_goes_by_the_retention_of_the_store(directory: Path) -> None:
    files = filled(directory, retention_hours=1000)
    age(directory, 100)
    alive(directory, 0)
    with Peer(directory) as script:
        script.do("broker.retention.work()")
        assert script.ask("broker.retention.hours") == 1000
    assert written(directory) == files


def test_a_new_store_keeps_messages_for_three_days_and_says_so_to_all(directory: Path) -> None:
    filled(directory)
    assert json.loads((directory / "mq" / "settings.json").read_text())["retention_hours"] == 72
    age(directory, 73)
    alive(directory, 0)
    assert len(after_work(directory)) == 1


def test_another_retention_is_refused_with_a_word(directory: Path, told: Callable[[int], list[str]]) -> None:
    files = filled(directory, retention_hours=1000)
    age(directory, 100)
    alive(directory, 0)
    assert after_work(directory, retention_hours=1) == files
    (warning,) = told(logging.WARNING)
    for part in (str(directory), "retention_hours=1 ", "retention_hours=1000", "mq DIR settings"):
        assert part in warning


def test_the_same_again_is_nothing_to_tell(directory: Path, told: Callable[[int], list[str]]) -> None:
    filled(directory, retention_hours=1000, disk_ratio_max=0.5)
    filled(directory, retention_hours=1000.0, disk_ratio_max=0.5)
    assert told(logging.WARNING) == []


def test_it_is_changed_on_purpose(directory: Path) -> None:
    filled(directory, retention_hours=1000)
    with open_small(directory, retention_hours=500, change_settings=True) as broker, Peer(directory) as other:
        assert broker.retention.hours == other.ask("broker.retention.hours") == 500
        broker.retention.change(hours=10, disk_ratio_max=0.9)
        assert other.ask("broker.retention.hours, broker.retention.disk_ratio_max") == (10, 0.9)
        other.do("broker.change_settings(retention_hours=20)")
        assert broker.retention.hours == 20
        with pytest.raises(ValueError, match="retention_hours"):
            broker.retention.change(hours=-1)
        with pytest.raises(TypeError, match="shoe_size"):
            broker.change_settings(shoe_size=43)
        with pytest.raises(TypeError, match="held"):
            broker.change_settings(held="")
    with mq.open(directory, read_only=True) as reader, pytest.raises(mq.NotPermitted):
        reader.retention.change(hours=1)
    with open_small(directory) as broker:
        assert broker.retention.hours == 20


OTHERS: dict[str, Any] = {
    "flush_interval": 7.0,
    "message_delay_level": "1s 7s",
    "timer_precision_ms": 700,
    "transaction_timeout": 7.5,
    "transaction_check_interval": 77.0,
    "transaction_check_max": 7,
    "disk_ratio_max": 0.7,
    "retention_hours": 7,
}


def test_every_leader_uses_the_store_s_settings(directory: Path) -> None:
    assert OTHERS.keys() == USUAL.keys()
    with mq.open(directory, duties=False):
        pass  # A command made the store, and settled nothing.
    with mq.open(directory, **OTHERS), mq.open(directory) as other:
        assert other.kept_settings() == OTHERS
        assert schedule_of(other).delays_ms == (1000, 7000)
        assert timer_of(other).precision_ms == 700
        rounds = other.transactions.rounds
        assert rounds.times() == ((7500, 7, 7 * HOUR_MS), 77_000)
        assert duties_of(other).flush_interval() == 7.0
        other.change_settings(transaction_check_max=8, flush_interval=0.25)
        assert rounds.times()[0].check_max == 8
        assert duties_of(other).flush_interval() == 0.25


def test_what_is_changed_while_a_store_is_opened_is_noticed(directory: Path) -> None:
    with open_small(directory, retention_hours=1000) as broker:
        opened = store_of(broker)  # It has read the settings; its broker is about to.
        broker.change_settings(retention_hours=5)
        assert AgreedSettings(opened).option("retention_hours") == 5


def test_a_full_disk_is_not_what_somebody_means_who_names_a_number(
    directory: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[int], list[str]]
) -> None:
    with open_small(directory, disk_ratio_max=0.5, duties=False) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", COUNT)
        monkeypatch.setattr("mq.store.retention.disk_excess", lambda *_: 2 * LOG_FILE_SIZE + 1)
        assert broker.retention.expiring(hours=1000) == Expiring(0, 0, (), ())
        assert broker.expire(retention_hours=1000) == 0
        # What is younger goes with the leader's looks, one file with each.
        assert broker.retention.expiring().file_count == 1
        assert broker.retention.expiring(within_hours=1).file_count == 3
        assert broker.retention.warned().file_count == 3
        assert broker.expire() == 1
        assert "disk_ratio_max 0.5" in told(logging.INFO)[0]
        monkeypatch.setattr("mq.store.retention.disk_excess", lambda *_: 1 << 40)
        count = broker.retention.expiring(within_hours=1).file_count
        assert broker.expire(retention_hours=0) == count
        assert not any("disk_ratio_max" in line for line in told(logging.INFO)[2:])


# Not in silence.


@pytest.fixture
def read_in_part(directory: Path) -> Iterator[LocalBroker]:
    """Two topics whose messages are old; `slow` has read ten of A, `fast` all; no group has read B."""
    with open_small(directory, duties=False) as broker:
        broker.create_topic("A", 2)
        broker.create_topic("B", 1)
        fill(broker, "A", COUNT, 2)
        fill(broker, "B", 20)
        fill(broker, "A", 20, 1)
        queues = {queue.queue_id: queue.message_queue for queue in broker.topic("A").queues}
        assigned.commit(broker, "slow", queues[0], 10)
        for queue in queues.values():
            assigned.commit(broker, "fast", queue, broker.max_offset(queue))
        broker.flush()
        age(directory, 100)
        alive(directory, 0)
        yield broker


def everything(broker: LocalBroker) -> Expiring:
    """What expires, by comparing the queues before and after."""
    before = {queue: broker.min_offset(queue) for topic in ("A", "B") for queue in broker.readable(topic)}
    expected = broker.retention.expiring()
    files = len(written(broker.path))
    assert broker.expire() == expected.file_count
    assert len(written(broker.path)) == files - expected.file_count
    ranges = [
        Range(queue.topic, queue.queue_id, low, broker.min_offset(queue) - 1)
        for queue, low in before.items()
        if broker.min_offset(queue) > low
    ]
    assert sorted(ranges, key=repr) == sorted(expected.ranges, key=repr)
    return expected


def test_what_would_go_is_what_goes(read_in_part: LocalBroker) -> None:
    found = everything(read_in_part)
    assert found.byte_count == found.file_count * LOG_FILE_SIZE
    last = {(each.topic, each.queue_id): each.last for each in found.ranges}
    assert last["A", 1] == COUNT // 2 - 1
    assert found.unread == (
        Unread("slow", "A", 0, 10, last["A", 0]),
        Unread("slow", "A", 1, 0, last["A", 1]),
    )
    assert read_in_part.retention.expiring() == Expiring(0, 0, (), ())


def test_every_deletion_is_logged_with_the_groups_that_had_not_read_it(
    read_in_part: LocalBroker, told: Callable[[int], list[str]]
) -> None:
    found = read_in_part.retention.expiring()
    read_in_part.expire()
    (of_a,) = told(logging.WARNING)
    count = sum(each.count for each in found.unread)
    assert f"topic A: queue 0 offsets 0 to {found.unread[0].last}, queue 1 offsets 0 to 59;" in of_a
    assert of_a.endswith(f"; group slow had not read {count} of them")
    whole, of_b = told(logging.INFO)
    assert f"deleted {found.file_count} files of the commit log" in whole
    assert "topic B: queue 0 offsets 0 to " in of_b


def test_a_group_is_warned_a_day_before(read_in_part: LocalBroker, directory: Path) -> None:
    retention = read_in_part.retention
    retention.change(hours=100 + 23)
    assert retention.expiring().file_count == 0
    assert {each.group for each in retention.warned().unread} == {"slow"}
    retention.change(hours=100 + 25)
    assert retention.warned() == Expiring(0, 0, (), ())
    retention.change(hours=3)
    assert retention.warned_hours == 1


def test_consumers_that_broadcast_are_no_group_that_lags(read_in_part: LocalBroker) -> None:
    membership = read_in_part.consumer_groups.join(
        "slow", client_id="me", model="broadcasting", consume_type="pull", ordered=False, subscriptions=[]
    )
    assert read_in_part.retention.expiring().unread == ()
    membership.leave()


def test_failed_messages_are_not_deleted_without_naming_their_group(
    directory: Path, told: Callable[[int], list[str]]
) -> None:
    """Nobody has read %RETRY%billing, and no live member subscribes to it."""
    retry = "%RETRY%billing"
    with open_small(directory, message_delay_level="1s 1000s") as broker:
        broker.create_topic("A", 1)
        broker.topic("A").send(b"bad")
        (queue,) = broker.topic("A").queues
        (bad,) = queue.read(0).messages
        assigned.commit(broker, "billing", queue.message_queue, 1)
        assigned.send_back(broker, bad, "billing", delay_level=1)
        deadline = time.monotonic() + 60
        while not (retry in broker.topics() and broker.topic(retry).queues[0].max_offset):
            assert time.monotonic() < deadline, "it is not delivered to the retry topic"
            time.sleep(0.02)
        broker.create_topic("B", 1)
        fill(broker, "B", 60)
        # The copy is there before the one that waited is counted as delivered.
        eventually(lambda: broker.group("billing").lag("A") == 1, lambda: broker.group("billing").lag("A"))
        assert broker.retention.expiring(hours=0).unread == (Unread("billing", retry, 0, 0, 0),)
        broker.expire(retention_hours=0)
    (warning,) = told(logging.WARNING)
    assert f"topic {retry}: queue 0 offsets 0 to 0; group billing had not read 1 of them" in warning


def test_messages_that_wait_in_a_delay_level_are_those_of_a_group(
    directory: Path, told: Callable[[int], list[str]]
) -> None:
    with open_small(directory, message_delay_level="1s 1000s", duties=False) as broker:
        broker.create_topic("A", 1)
        broker.create_topic("B", 1)
        broker.topic("A").send(b"bad")
        (queue,) = broker.topic("A").queues
        (bad,) = queue.read(0).messages
        for group in ("audit", "billing"):
            assigned.commit(broker, group, queue.message_queue, 1)
        for group in ("billing", "billing", "audit", "billing"):
            assigned.send_back(broker, bad, group, delay_level=2)
        broker.topic("A").send(b"later", delay_level=2)
        broker.topic("B").send(b"of no group", delay_level=2)
        fill(broker, "B", 60)
        level = "SCHEDULE_TOPIC_XXXX"
        found = broker.retention.expiring(hours=0).unread
        assert sorted(found, key=lambda each: (each.group, each.first)) == [
            Unread("audit", level, 1, 2, 2),
            Unread("audit", level, 1, 4, 4),
            Unread("billing", level, 1, 0, 1),
            Unread("billing", level, 1, 3, 4),
        ]
        broker.expire(retention_hours=0)
    (warning,) = [text for text in told(logging.WARNING) if "deleted from topic" in text]
    for part in (level, "group audit had not read 2 of them", "group billing had not read 4 of them"):
        assert part in warning


# Not before it is confirmed.


def copied(directory: Path, copy: Path) -> Path:
    shutil.copytree(directory, copy)  # As cp -a does: with the times of the files.
    return copy


def test_a_copy_deletes_nothing_before_it_is_confirmed(
    directory: Path, tmp_path: Path, told: Callable[[int], list[str]]
) -> None:
    files = filled(directory)
    age(directory, 100)
    alive(directory, 0)
    copy = copied(directory, tmp_path / "copy")
    for _ in range(2):  # Also the second time.
        with open_small(copy) as broker:
            assert "copy" in broker.retention.held
            broker.retention.work()
            assert broker.expire() == 0
            assert broker.retention.expiring().file_count > 3
        assert any("mq DIR retention --confirm" in line for line in told(logging.WARNING))
    with open_small(copy, retention_hours=1, change_settings=True) as broker:
        assert broker.retention.held, "a change of settings is no word on what is there"
        assert len(written(copy)) == len(files)
        broker.retention.confirm()
        assert broker.retention.held == ""
        broker.retention.work()
    assert len(after_work(copy)) == 1
    # An explicit number counts as a confirmation.
    again = copied(directory, tmp_path / "again")
    with open_small(again, duties=False) as broker:
        assert broker.expire(retention_hours=50) > 3
        assert broker.retention.held


def test_what_is_put_back_in_its_own_place_is_a_copy(directory: Path, tmp_path: Path) -> None:
    """The file system gives the new files the numbers that the old ones had."""
    filled(directory)
    saved = copied(directory, tmp_path / "saved")
    shutil.rmtree(directory)
    time.sleep(0.01)  # Births are told apart by the tick of the clock.
    copied(saved, directory)
    with open_small(directory) as broker:
        assert "copy" in broker.retention.held


def test_a_directory_that_is_moved_goes_on(directory: Path, tmp_path: Path) -> None:
    filled(directory, retention_hours=50)
    age(directory, 100)
    alive(directory, 0)
    directory.rename(tmp_path / "moved")
    try:
        with open_small(tmp_path / "moved") as broker:
            assert broker.retention.held == ""
        assert len(after_work(tmp_path / "moved")) == 1
    finally:
        (tmp_path / "moved").rename(directory)


@pytest.mark.parametrize("harm", ["deleted", "damaged", "own files deleted", "rocketmq's"])
def test_without_its_settings_a_store_deletes_nothing(directory: Path, harm: str) -> None:
    files = filled(directory, retention_hours=1000)
    age(directory, 2000)
    own = directory / "mq"
    if harm == "damaged":
        (own / "settings.json").write_bytes(b"\0" * 100)
    elif harm == "deleted":
        (own / "settings.json").unlink()
    else:
        shutil.rmtree(own)
    # A number given at open settles it; that what is there may go is another matter.
    with open_small(directory, retention_hours=50) as broker:
        assert "settings.json" in broker.retention.held
        broker.retention.work()
        assert log_files(directory)[: len(files)] == files
        broker.retention.confirm()
        broker.retention.work()
        assert len(written(directory)) < len(files)


def test_settings_that_go_under_an_open_store_stop_retention(directory: Path) -> None:
    files = filled(directory, retention_hours=1000)
    age(directory, 100)
    alive(directory, 0)
    with open_small(directory, duties=False) as broker:
        for path in (directory / "mq").glob("settings.json*"):
            path.unlink()
        broker.retention.work()
        assert log_files(directory)[: len(files)] == files
        assert "settings.json" in broker.retention.held


def test_a_new_store_is_never_held(directory: Path) -> None:
    for options in ({"duties": False}, {}, {"retention_hours": 5}):
        with open_small(directory, **options) as broker:
            assert broker.retention.held == ""
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 20)
        broker.retention.change(hours=7)
    Peer(directory).kill()
    with open_small(directory) as broker:
        assert broker.retention.held == ""


# Not seconds after it is opened.


def test_the_time_in_which_no_process_had_it_open_does_not_count(
    directory: Path, told: Callable[[int], list[str]]
) -> None:
    files = filled(directory, retention_hours=72)
    with open_small(directory, duties=False) as broker:
        age(directory, 1000)  # Over months.
        broker.retention.work()
        assert [file for file in log_files(directory) if file in files] == files
        (warning,) = told(logging.WARNING)
        assert "no process had the store open from" in warning, warning
        begin, end = broker.retention.away or (0, 0)
        assert abs(end - begin - 1000 * HOUR_MS) < HOUR_MS
        broker.retention.work()
        assert len(told(logging.WARNING)) == 1
        # What was too old when it was left is so as well now.
        left = time.time() - 1000 * 3600
        os.utime(files[0], (left - 73 * 3600, left - 73 * 3600))
        assert broker.expire() == 1
        # A short while closed is another matter, and does not take the place of the long one.
        alive(directory, 1)
        broker.retention.work()
        assert broker.retention.away == (begin, end)
        broker.retention.confirm()
        broker.retention.work()
    assert len(after_work(directory)) == 1


def test_confirmed_the_time_counts(directory: Path) -> None:
    filled(directory, retention_hours=72)
    age(directory, 1000)
    with open_small(directory, duties=False) as broker:
        broker.retention.confirm()
    assert len(after_work(directory)) == 1


class Clock:
    """The clock of retention, and the times that are on disk with it: what rested has rested so long."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = directory / "mq" / "settings.lock"
        self.ms = time.time_ns() // 1_000_000
        monkeypatch.setattr("mq.broker.retention.wall_clock_ms", lambda: self.ms)

    def forward(self, hours: float) -> None:
        self.ms += int(hours * HOUR_MS)

    def lose(self) -> None:
        """As who takes it for a stale lock."""
        self._lock.unlink()

    def touch(self) -> None:
        os.utime(self._lock, (self.ms / 1000, self.ms / 1000))

    def leave(self) -> None:
        pass


@pytest.fixture
def clock(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(directory, monkeypatch)


def session(directory: Path, clock: Clock, hours: float = 0.0) -> int:
    """A process leads for a while and closes; how many messages there are."""
    with open_small(directory, duties=False) as broker:
        broker.retention.work()
        while hours > 0:
            clock.forward(min(hours, 1))
            broker.retention.work()
            hours -= 1
        queue = broker.topic("A").queues[0]
        return queue.max_offset - queue.min_offset


@pytest.mark.parametrize("harm", [Clock.leave, Clock.lose, Clock.touch], ids=["none", "lost", "touched"])
def test_the_lock_of_the_settings_does_not_tell_alone(
    directory: Path, clock: Clock, harm: Callable[[Clock], None]
) -> None:
    filled(directory, retention_hours=72)
    assert session(directory, clock, 2.5) == COUNT
    told_ms = SettingsFile(directory).read().alive
    assert told_ms == clock.ms
    clock.forward(30 * 24)
    harm(clock)
    with open_small(directory, duties=False) as broker:
        assert broker.retention.held == ""
    assert session(directory, clock) == COUNT
    assert SettingsFile(directory).read().away == (told_ms, clock.ms)
    clock.forward(1)
    assert session(directory, clock, 68) == COUNT
    assert session(directory, clock, 2) < COUNT


def test_while_it_is_open_the_settings_tell_of_the_last_hour(directory: Path, clock: Clock) -> None:
    filled(directory, retention_hours=72)
    with open_small(directory, duties=False) as broker:
        broker.retention.work()
        first = SettingsFile(directory).signature()
        for _ in range(5):
            clock.forward(0.2)
            broker.retention.work()
        assert SettingsFile(directory).signature() == first
        clock.forward(0.2)
        broker.retention.work()
        assert SettingsFile(directory).read().alive == clock.ms
        # With a short retention, a time away is shorter than an hour.
        broker.retention.change(hours=1)
        clock.forward(0.06)
        broker.retention.work()
        clock.forward(0.06)
        broker.retention.work()
        assert broker.retention.away is None


def test_who_never_led_tells_nothing_at_its_close(directory: Path, clock: Clock) -> None:
    filled(directory, retention_hours=72)
    session(directory, clock, 1)
    told_ms = SettingsFile(directory).read().alive
    clock.forward(30 * 24)
    with open_small(directory, duties=False):
        pass
    assert SettingsFile(directory).read().alive == told_ms
    assert session(directory, clock) == COUNT


def test_every_time_away_is_spared_that_lies_within_the_age(directory: Path, clock: Clock) -> None:
    """A month, and then nights after days of work, each longer than a tenth of the retention."""
    filled(directory, retention_hours=72)
    session(directory, clock, 1)
    clock.forward(30 * 24)
    for _ in range(7):
        assert session(directory, clock, 8) == COUNT
        clock.forward(16)
    assert len(SettingsFile(directory).read().absences) == 7
    assert session(directory, clock, 14) == COUNT  # 71 h in all
    assert session(directory, clock, 2) < COUNT


def test_eight_times_away_are_spared_and_not_more(directory: Path, clock: Clock) -> None:
    filled(directory, retention_hours=72)
    begins = []
    for _ in range(8):
        session(directory, clock)
        begins.append(clock.ms)
        clock.forward(7 * 24)
        assert session(directory, clock) == COUNT
    settings = SettingsFile(directory).read()
    assert [begin for begin, _ in settings.absences] == begins
    assert settings.away == settings.absences[-1]
    session(directory, clock)
    clock.forward(7 * 24)
    assert session(directory, clock) < COUNT
    assert [begin for begin, _ in SettingsFile(directory).read().absences[:-1]] == begins[1:]
    with open_small(directory, duties=False) as broker:
        broker.retention.confirm()
        assert SettingsFile(directory).read().absences == ()


def test_a_time_away_of_the_version_before_is_spared(directory: Path, clock: Clock) -> None:
    """Its settings have the latest one alone."""
    filled(directory, retention_hours=72)
    away = clock.ms, clock.ms + 30 * 24 * HOUR_MS
    path = directory / "mq" / "settings.json"
    table = {**json.loads(path.read_text()), "away": away}
    del table["former_away"], table["alive"]
    path.write_text(json.dumps(table))
    clock.forward(30 * 24)
    alive(directory, (time.time() * 1000 - clock.ms) / HOUR_MS)
    assert session(directory, clock) == COUNT
    clock.forward(12)
    assert session(directory, clock) == COUNT
    settings = SettingsFile(directory).read()
    assert (settings.held, settings.absences) == ("", (away, (away[1], clock.ms)))


def test_before_the_leader_has_looked_the_time_away_does_not_count_either(
    directory: Path, clock: Clock
) -> None:
    filled(directory, retention_hours=72)
    session(directory, clock, 1)
    told_ms = SettingsFile(directory).read().alive
    clock.forward(30 * 24)
    with open_small(directory, duties=False) as broker:
        assert broker.retention.away == (told_ms, clock.ms)
        assert broker.retention.expiring() == broker.retention.warned() == Expiring(0, 0, (), ())
        assert broker.retention.expire() == broker.expire() == 0
        assert broker.retention.expiring(within_hours=70).file_count == 0
        assert broker.retention.expiring(within_hours=72).file_count > 3
        assert broker.retention.expiring(hours=72).file_count > 3
        assert SettingsFile(directory).read().away is None, "who does no duties notes nothing"
        broker.retention.confirm()
        assert broker.retention.expire() > 3


def test_a_store_of_which_nobody_knows_how_long_it_was_closed_deletes_nothing(directory: Path) -> None:
    """A version of mq before this one has written it, and its lock is lost."""
    files = filled(directory, retention_hours=72)
    SettingsFile(directory).update(alive=None)
    age(directory, 1000)
    (directory / "mq" / "settings.lock").unlink()
    assert set(files) <= set(after_work(directory))
    with open_small(directory, duties=False) as broker:
        assert "settings.lock" in broker.retention.held
        broker.retention.confirm()
        assert broker.retention.held == ""
    assert len(after_work(directory)) == 1


def test_on_a_full_disk_what_is_too_old_goes_and_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[int], list[str]]
) -> None:
    files = filled(directory, retention_hours=72)
    age(directory, 1000)
    left = time.time() - 1073 * 3600
    os.utime(files[0], (left, left))
    with open_small(directory, duties=False) as broker:
        with monkeypatch.context() as patch:
            patch.setattr("mq.store.directory.settings.write_config", no_room)
            for _ in range(2):
                broker.retention.work()
                assert [file for file in log_files(directory) if file in files] == files[1:]
        assert any("no room" in line for line in told(logging.WARNING))
        broker.retention.work()
        assert SettingsFile(directory).read().away == broker.retention.away
    assert set(files[1:]) >= set(after_work(directory)) > set()


def test_the_time_away_ends_when_its_length_is_asked_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clock goes on by a millisecond before it is asked whether that time has ended."""
    files = filled(directory, retention_hours=72)
    age(directory, 1000)
    ticks = count(time.time_ns() // 1_000_000)
    monkeypatch.setattr("mq.broker.retention.wall_clock_ms", lambda: next(ticks))
    with open_small(directory, duties=False) as broker:
        assert broker.retention.expiring().file_count == 0
        assert broker.retention.expire() == 0
        monkeypatch.setattr("mq.store.directory.settings.write_config", no_room)
        broker.retention.work()
        assert log_files(directory)[: len(files)] == files
        monkeypatch.undo()


def no_room(path: Path, _text: object) -> None:
    raise mq.StoreFull("no room", path=str(path))


def test_a_clock_that_was_ahead_stops_nothing(directory: Path) -> None:
    filled(directory, retention_hours=72)
    age(directory, 73)
    now_ms = time.time_ns() // 1_000_000
    SettingsFile(directory).update(away=(now_ms - 73 * HOUR_MS, now_ms + 9000 * HOUR_MS))
    alive(directory, -9000)
    assert len(after_work(directory)) == 1
    assert (directory / "mq" / "settings.lock").stat().st_mtime < time.time() + 60


@pytest.mark.parametrize("hours", [0.001, 2, 23])
def test_a_clock_that_is_set_back_after_the_time_away_was_noted_deletes_nothing(
    directory: Path, hours: float
) -> None:
    """As where a machine starts with local time and is set to UTC then."""
    files = filled(directory, retention_hours=72)
    age(directory, 1000)
    now_ms = time.time_ns() // 1_000_000
    SettingsFile(directory).update(away=(now_ms - 1000 * HOUR_MS, now_ms + int(hours * HOUR_MS)))
    alive(directory, -hours)
    assert set(files) <= set(after_work(directory))


def test_a_clock_that_jumps_ahead_deletes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = filled(directory, retention_hours=72)
    with open_small(directory, duties=False) as broker:
        broker.retention.work()
        now_ms = time.time_ns() // 1_000_000
        monkeypatch.setattr("mq.broker.retention.wall_clock_ms", lambda: now_ms + 8766 * HOUR_MS)
        for _ in range(2):
            broker.retention.work()
        assert log_files(directory)[: len(files)] == files
        monkeypatch.undo()
        broker.retention.work()
        age(directory, 73)
        alive(directory, 0)
        assert broker.expire() > 3


@pytest.mark.parametrize("interval", [0.05, 3600.0], ids=["again and again", "for a moment"])
def test_the_leader_does_all_this(directory: Path, monkeypatch: pytest.MonkeyPatch, interval: float) -> None:
    """As soon as it leads: a program that runs for a moment each time deletes, too."""
    monkeypatch.setattr("mq.broker.leader.RETENTION_INTERVAL", interval)
    filled(directory, retention_hours=72)
    age(directory, 73)
    alive(directory, 0.001)
    with open_small(directory):
        deadline = time.monotonic() + 60
        while len(log_files(directory)) > 3:
            assert time.monotonic() < deadline, "nothing is deleted"
            time.sleep(0.02)
    file = SettingsFile(directory)
    alive_ms = file.alive_ms(file.read())
    assert alive_ms is not None
    assert time.time() * 1000 - alive_ms < 60_000
