"""The log is older than the files that say what was delivered: what waits in it comes, and comes once."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.shared.due_event import ALWAYS, AT_WAKE
from tests.broker.fake_delay_store import bodies
from tests.support.arrivals import wait_for
from tests.support.eventually import eventually
from tests.support.insides import schedule_of
from tests.support.store.restored import DERIVED, put_log_back
from tests.support.store.small_store import SMALL


@pytest.mark.parametrize("deleted", DERIVED.values(), ids=DERIVED)
@pytest.mark.parametrize("times", [1, 3])
def test_a_level_delivers_what_waits_in_a_log_that_was_restored(
    tmp_path: Path, directory: Path, deleted: tuple[str, ...], times: int
) -> None:
    with mq.open(directory, **SMALL, message_delay_level="1h 1ms") as broker:
        topic = broker.create_topic("orders", 1)
        topic.send(b"before", delay_level=2)
        wait_for(topic.queues[0], 1)
        for _ in range(times):
            topic.send(b"waits", delay_level=1)
    shutil.copytree(directory, tmp_path / "backup")
    want = [b"before"] + [b"waits"] * times
    # By the delay of today it is due.
    now: dict[str, Any] = {**SMALL, "message_delay_level": "1ms 1ms", "change_settings": True}
    with mq.open(directory, **now) as broker:
        assert bodies(wait_for(broker.topic("orders").queues[0], len(want))) == want
    put_log_back(directory, tmp_path / "backup", deleted)
    with mq.open(directory, **now) as broker:
        topic = broker.topic("orders")
        assert bodies(wait_for(topic.queues[0], len(want))) == want
        topic.send(b"after", delay_level=1)  # A level is in order: this one is the last.
        assert bodies(wait_for(topic.queues[0], len(want) + 1)) == [*want, b"after"]
    shutil.rmtree(directory)  # Its checkpoint knows of later messages.


@pytest.mark.parametrize("deleted", DERIVED.values(), ids=DERIVED)
def test_a_time_delivers_what_waits_in_a_log_that_was_restored(
    tmp_path: Path, directory: Path, deleted: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {**SMALL, "timer_precision_ms": 1}
    with mq.open(directory, **options) as broker:
        topic = broker.create_topic("orders", 1)
        topic.send(b"before", delay_ms=1)
        wait_for(topic.queues[0], 1)
        due_ms = int(time.time() * 1000) + 1000
        topic.send(b"waits", deliver_at_ms=due_ms)
    shutil.copytree(directory, tmp_path / "backup")
    with mq.open(directory, **options) as broker:
        wait_for(broker.topic("orders").queues[0], 2)
    put_log_back(directory, tmp_path / "backup", deleted)
    with mq.open(directory, **options) as broker:
        topic = broker.topic("orders")
        assert bodies(wait_for(topic.queues[0], 2)) == [b"before", b"waits"]
        topic.send(b"after", delay_ms=1)
        assert bodies(wait_for(topic.queues[0], 3)) == [b"before", b"waits", b"after"]
    shutil.rmtree(directory)  # Its checkpoint knows of later messages.


@pytest.mark.parametrize("copied", [False, True], ids=["in place", "copied"])
def test_a_file_that_counts_more_as_delivered_than_was_skips_nothing(
    tmp_path: Path, directory: Path, copied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of another store."""
    before = tmp_path / "before"
    want = [b"%d" % number for number in range(5)]
    with mq.open(before, **SMALL, message_delay_level="1ms 1h") as broker:
        topic = broker.create_topic("orders", 1)
        for body in want:
            topic.send(body, delay_level=2)
        topic.send(b"soon", delay_level=1)
        wait_for(topic.queues[0], 1)
    path = before / "config" / "delayOffset.json"
    content: dict[str, Any] = json.loads(path.read_text())
    content["offsetTable"]["2"] = 3
    path.write_text(json.dumps(content))
    if copied:
        shutil.copytree(before, directory)
    else:
        before.rename(directory)
    with mq.open(directory, **SMALL, message_delay_level="1ms 1ms", change_settings=True) as broker:
        topic = broker.topic("orders")
        assert bodies(wait_for(topic.queues[0], 6)) == [b"soon", *want]
        topic.send(b"after", delay_level=2)
        assert bodies(wait_for(topic.queues[0], 7)) == [b"soon", *want, b"after"]
    assert ("says more than mq/delay of delay levels 2" in caplog.text) == (not copied)
    shutil.rmtree(directory)


def test_a_message_does_not_come_early_where_the_settings_are_lost(directory: Path) -> None:
    """Nobody knows the levels that it was put aside by, but its unit says when it is due."""
    with mq.open(directory, **SMALL, message_delay_level="1h") as broker:
        broker.create_topic("orders", 1).send(b"in an hour", delay_level=1)  # By RocketMQ's own, 1 s.
    for path in (directory / "mq").glob("settings.json*"):
        path.unlink()
    (directory / "mq" / "delay").unlink()  # It says when the next look is.
    with mq.open(directory, **SMALL) as broker:
        looks = schedule_of(broker).progress().words
        in_half_an_hour = int(time.time() * 1000) + 1_800_000
        eventually(lambda: in_half_an_hour < looks[AT_WAKE] < ALWAYS, lambda: "it is waited for", 20.0)
        assert broker.topic("orders").queues[0].max_offset == 0
