"""A directory was restored in part, or parts of different times: every message in the log comes back.

The parts are copies of small stores, so nothing that was shared in memory is believed, unless a test says so.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mq
from mq.broker.check import problems
from mq.broker.local import LocalBroker
from tests.support.insides import log_end
from tests.support.store.small_store import (
    LOG_FILE_SIZE,
    bodies,
    contents,
    crash_of,
    fill,
    log_offset_of,
    numbered,
    open_small,
    overwrite_log,
    send,
    zero_log_from,
)


def roll(broker: LocalBroker, topic: str) -> None:
    """Send a message to this topic that is the first one of a file of the log."""
    while LOG_FILE_SIZE - log_end(broker) % LOG_FILE_SIZE > 1500:
        fill(broker, "A", 1, prefix="filler")
    assert log_offset_of(send(broker, topic, 0, b"x" * 1500)) % LOG_FILE_SIZE == 0


def parts_of(root: Path, target: Path, *names: str) -> Path:
    """A directory with these parts of a store and no others."""
    target.mkdir(exist_ok=True)
    for name in names:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name)
        else:
            shutil.copy2(root / name, target / name)
    return target


def test_the_log_alone_brings_every_queue_back(tmp_path: Path, directory: Path) -> None:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        broker.create_topic("B", 1)
        fill(broker, "A", 24)
        # The last file of the log says nothing of A, and B begins in it.
        roll(broker, "B")
        want = contents(broker)
    with open_small(parts_of(tmp_path / "before", directory, "commitlog")) as after:
        assert contents(after) == want


@pytest.mark.parametrize(
    "parts", [("commitlog",), ("commitlog", "checkpoint")], ids=["log", "with checkpoint"]
)
def test_queues_that_are_older_than_the_log_are_brought_up_to_it(
    tmp_path: Path, directory: Path, parts: tuple[str, ...]
) -> None:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 5)
    parts_of(tmp_path / "before", directory, "consumequeue")
    with open_small(tmp_path / "before") as broker:
        fill(broker, "A", 30, prefix="later")
        broker.create_topic("B", 1)
        roll(broker, "B")
        want = contents(broker)
    parts_of(tmp_path / "before", directory, *parts)
    with open_small(directory) as after:
        assert contents(after) == want


def test_a_damaged_record_does_not_end_the_queues_that_are_made_anew(tmp_path: Path) -> None:
    """It lies before what is verified after a clean end."""
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        offsets = fill(broker, "A", 60)
    parts_of(tmp_path / "before", tmp_path / "after", "commitlog", "config", "checkpoint")
    overwrite_log(tmp_path / "after", offsets[3] + 92, b"?")
    with open_small(tmp_path / "after") as after:
        queue = after.topic("A").queues[0]
        assert queue.max_offset == 60
        assert [message.body for message in queue.read(0, count_max=3).messages] == numbered(3)
        assert [message.body for message in queue.read(4, count_max=99).messages] == numbered(60, start=4)
        assert send(after, "A", 0, b"next").queue_offset == 60


@pytest.mark.parametrize("state", ["closed", "copied"])
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
def test_a_missing_index_file_is_made_again(tmp_path: Path, directory: Path, which: int, state: str) -> None:
    before = tmp_path / "before"
    with open_small(before) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 120)
        broker.query("A", "message0")
    files = sorted((before / "index").iterdir())
    assert len(files) > 3
    files[which].unlink()
    if state == "copied":
        shutil.copytree(before, directory)
    else:
        before.rename(directory)
    with open_small(directory) as after:
        assert [len(after.query("A", f"message{number}")) for number in range(120)] == [1] * 120


def test_an_older_log_in_the_place_of_a_newer_is_noticed(directory: Path) -> None:
    """What was shared in memory still speaks of the newer one."""
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 3)
    older = (directory / "commitlog" / f"{0:020}").read_bytes()
    with open_small(directory) as broker:
        fill(broker, "A", 5, prefix="later")
    (directory / "commitlog" / f"{0:020}").write_bytes(older)
    with open_small(directory) as after:
        queue = after.topic("A").queues[0]
        assert [message.body for message in queue.read(0, count_max=3).messages] == numbered(3)
        for lost in range(3, 8):
            with pytest.raises(
                mq.StoreCorrupted, match=f"it is lost, and reading goes on at queue offset {lost + 1}"
            ):
                queue.read(lost)
        assert send(after, "A", 0, b"next").queue_offset == 8
        assert [message.body for message in queue.read(8).messages] == [b"next"]
    assert any("A/0 queue offsets 3 to 7" in problem for problem in problems(directory))
    shutil.rmtree(directory)


def test_a_closed_store_keeps_what_follows_a_damaged_record_whatever_its_checkpoint_says(
    directory: Path,
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        offsets = fill(broker, "A", 60)
    # Both may be deleted, the guide says; with the damage in the last file they were the end of the log.
    shutil.rmtree(directory / "consumequeue")
    (directory / "checkpoint").unlink()
    overwrite_log(directory, offsets[-4] + 92, b"?")
    with open_small(directory) as after:
        queue = after.topic("A").queues[0]
        assert queue.max_offset == 60
        assert [message.body for message in queue.read(57, count_max=9).messages] == numbered(60, start=57)
    shutil.rmtree(directory)


def test_a_topic_that_was_made_behind_the_end_of_the_log_has_its_messages(
    tmp_path: Path, directory: Path
) -> None:
    """The power was cut before the log was on disk up to where the topic was made; topics.json was."""
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("B", 1)
        offsets = fill(broker, "B", 20)
        broker.create_topic("A", 1)
        crash_of(broker, tmp_path / "cut")
    zero_log_from(tmp_path / "cut", offsets[10])
    with open_small(tmp_path / "cut") as broker:
        fill(broker, "A", 4)
        assert [len(broker.query("A", f"message{number}")) for number in range(4)] == [1] * 4
        crash_of(broker, directory)
    shutil.rmtree(directory / "consumequeue")
    with open_small(directory) as after:
        assert bodies(after) == numbered(4)
