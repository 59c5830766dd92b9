"""Files of a queue that go missing while a store is open: the log has the messages, so readers get them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.check import problems
from mq.store.native import ffi, lib
from tests.damage.readable import readable
from tests.support.insides import control_of, store_of
from tests.support.store.peer import Peer
from tests.support.store.small_store import LOG_FILE_SIZE, SMALL, fill, messages_of, queue_files

SIZES: dict[str, Any] = {**SMALL, "queue_file_units": 16}
COUNT = 40
WHOLE = [b"message %d" % number for number in range(COUNT)]
UNIT = 20


def open_store(path: Path, *, read_only: bool = False) -> mq.LocalBroker:
    return mq.open(path, read_only=read_only, duties=False, **SIZES)


@pytest.fixture
def path(quick_path: Path) -> Path:
    """A closed store with a queue of three files."""
    path = quick_path / "store"
    with open_store(path) as broker:
        broker.create_topic("orders", 1)
        fill(broker, "orders", COUNT)
    assert len(queue_files(path, "orders")) == 3
    return path


def read(broker: mq.LocalBroker) -> list[bytes]:
    return [message.body for message in messages_of(broker.topic("orders").queues[0])]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_reader_gets_the_messages_of_a_missing_file(
    path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = queue_files(path, "orders")[number]
    units = file.read_bytes()
    with open_store(path) as broker, caplog.at_level(logging.WARNING, "mq.store"):
        file.unlink()
        assert read(broker) == WHOLE
        assert file.read_bytes() == units
        assert caplog.text.count("orders/0 was missing") == 1
        fill(broker, "orders", 5, prefix="later")
        assert read(broker) == WHOLE + [b"later %d" % each for each in range(5)]
    assert list(problems(path)) == []
    with open_store(path) as broker:
        assert len(read(broker)) == COUNT + 5


def test_all_files_of_a_queue_and_its_directory(path: Path) -> None:
    with open_store(path) as broker:
        shutil.rmtree(path / "consumequeue" / "orders")
        assert read(broker) == WHOLE
    assert list(problems(path)) == []


def test_a_process_goes_on_that_has_the_deleted_file_mapped(path: Path) -> None:
    with Peer(path, **SIZES, duties=False) as sender, open_store(path) as broker:
        sender.do("fill(broker, 'orders', 1, prefix='first')")
        queue_files(path, "orders")[-1].unlink()
        for number in range(3):
            sender.do(f"fill(broker, 'orders', 12, prefix='later{number}')")
            assert len(read(broker)) == COUNT + 1 + 12 * (number + 1)
        bodies = read(broker)
        assert bodies[:COUNT] == WHOLE
        assert sender.ask("[m.body for m in messages_of(broker.topic('orders').queues[0])]") == bodies
    assert list(problems(path)) == []
    with open_store(path) as broker:
        assert read(broker) == bodies


def test_a_store_that_is_read_only_names_the_missing_file(path: Path) -> None:
    file = queue_files(path, "orders")[1]
    with open_store(path) as writer, open_store(path, read_only=True) as reader:
        file.unlink()
        queue = reader.topic("orders").queues[0]
        with pytest.raises(mq.StoreCorrupted) as caught:
            queue.read(16)
        assert f"its queue's file {file} is missing" in str(caught.value)
        assert "read it in a process that opens the store to write" in str(caught.value)
        assert caught.value.queue_offset == 16
        assert not file.exists()
        assert read(writer) == WHOLE
        assert read(reader) == WHOLE


def test_no_file_is_made_for_messages_that_there_never_were(path: Path) -> None:
    """A damaged word says that the queue is longer than it is."""
    with open_store(path) as broker:
        log = store_of(broker).live()
        damaged = ffi.new("mq_damaged_units *")
        (number,) = [each for each, topic, _ in control_of(broker).queues() if topic == "orders"]
        end = 1000
        damaged.first, damaged.end, damaged.hole = 500, end, -1
        damaged.log_end = store_of(broker).end()
        found = ffi.new("mq_found_unit[]", end - 500)
        assert lib.mq_units_search(log, number, damaged, 0, damaged.log_end, found) > 0
        assert lib.mq_units_rewrite(log, number, damaged, found) == 0
        assert len(queue_files(path, "orders")) == 3


# What retention takes for the oldest message.


@pytest.mark.parametrize("span", [(0, 16), (0, 40), (16, 40), (20, 30), (3, 39)])
@pytest.mark.parametrize("way", ["of another queue", "missing"])
def test_stale_units_hide_no_message_from_retention(
    quick_path: Path, way: str, span: tuple[int, int]
) -> None:
    path = quick_path / "store"
    with open_store(path) as broker:
        broker.create_topic("older", 1)
        broker.create_topic("orders", 1)
        fill(broker, "older", COUNT)
        at = fill(broker, "orders", COUNT)
        kept_from = at[-1] // LOG_FILE_SIZE * LOG_FILE_SIZE
        kept = [number for number in range(COUNT) if at[number] >= kept_from]
        units = {file.name: file.read_bytes() for file in queue_files(path, "older")}
        for file in queue_files(path, "orders"):
            first = int(file.name) // UNIT
            begin, end = max(span[0] - first, 0), min(span[1] - first, 16, COUNT - first)
            if begin >= end:
                continue
            if way == "missing":
                file.unlink()
                continue
            with file.open("r+b") as opened:
                opened.seek(begin * UNIT)
                opened.write(units[file.name][begin * UNIT : end * UNIT])
        for _ in range(2):
            broker.expire(retention_hours=0)
            queue = broker.topic("orders").queues[0]
            assert queue.min_offset <= kept[0]
            found = [message.queue_offset for message in readable(queue)]
            assert found[-len(kept) :] == kept


def misplace(path: Path) -> bool:
    """A directory for a file, or a file for a directory; whether a file is wanted."""
    is_file_wanted = path.is_file()
    if is_file_wanted:
        path.unlink()
        path.mkdir()
    else:
        shutil.rmtree(path)
        path.write_bytes(b"not a directory")
    return is_file_wanted


@pytest.mark.parametrize("place", ["", "orders", "orders/0", f"orders/0/{0:020}"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_stands_in_the_place_of_a_queue_is_moved_away(
    path: Path, place: str, is_killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = path / "consumequeue" / place
    is_file_wanted = misplace(in_the_way)
    if is_killed:
        (path / "mq" / "control").unlink()
    with caplog.at_level(logging.WARNING, "mq.store"), open_store(path) as broker:
        assert read(broker) == WHOLE
        fill(broker, "orders", 5, prefix="later")
        assert len(read(broker)) == COUNT + 5
    assert f"{in_the_way} is no file or directory of a queue" in caplog.text
    [kept] = (path / "mq" / "damaged").iterdir()
    assert kept.is_dir() if is_file_wanted else kept.read_bytes() == b"not a directory"
    assert list(problems(path)) == []


@pytest.mark.parametrize("place", ["", "orders", "orders/0", f"orders/0/{0:020}"])
def test_what_cannot_be_moved_to_another_file_system_stays_beside(
    path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where consumequeue, or the directory of a topic, is a link."""
    move = Path.rename

    def rename(source: Path, target: Path) -> Path:
        if "damaged" in target.parts:
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(source), None, str(target))
        return move(source, target)

    monkeypatch.setattr(Path, "rename", rename)
    in_the_way = path / "consumequeue" / place
    for number in range(2):
        is_file_wanted = misplace(in_the_way)
        kept = in_the_way.with_name(f"damaged.{in_the_way.name}" + (".1" if number else ""))
        with caplog.at_level(logging.WARNING, "mq.store"), open_store(path) as broker:
            assert read(broker) == WHOLE
            assert kept.is_dir() if is_file_wanted else kept.read_bytes() == b"not a directory"
            assert broker.topics() == ["orders"]
        assert f"{in_the_way} is no file or directory of a queue, and was moved to {kept}" in caplog.text
        # Verifying names it, until somebody removes it.
        assert all(f"{in_the_way.with_name('damaged.')}" in each for each in problems(path))
    with open_store(path) as broker:
        assert read(broker) == WHOLE


@pytest.mark.parametrize("name", ["config/topics.json", "mq/groups/billing"])
def test_a_directory_in_the_place_of_a_file_is_named(path: Path, name: str) -> None:
    def use() -> None:
        with open_store(path) as broker:
            broker.group("billing").reset("orders", to="earliest")

    use()
    in_the_way = path / name
    in_the_way.unlink()
    in_the_way.mkdir()
    with pytest.raises(mq.StoreCorrupted, match=f"{in_the_way}: .*Is a directory"):
        use()
    assert any(name in problem for problem in problems(path))
    in_the_way.rmdir()
    with open_store(path) as broker:
        assert read(broker) == WHOLE


def test_a_group_that_there_is_no_space_for_leaves_nothing_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_store(path) as broker, monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        with pytest.raises(mq.StoreFull):
            broker.group("billing").reset("orders", to="earliest")
    assert (path / "mq" / "groups" / "billing").stat().st_size == 0
    assert list(problems(path)) == []
