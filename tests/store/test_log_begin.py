"""mq/log_begin: with it a lost first file of the log is told from one that retention deleted, also where the
control file is lost."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.broker.check import problems
from tests.support.store.peer import Peer
from tests.support.store.small_store import LOG_FILE_SIZE, fill, log_files, open_small

COUNT = 120


def filled(directory: Path, *, is_killed: bool = False) -> None:
    """A store of which retention has deleted the first files."""
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", COUNT)
    with open_small(directory, duties=False) as broker:
        for file in log_files(directory)[:2]:
            os.utime(file, (0, 0))
        assert broker.expire() == 2
    if is_killed:
        Peer(directory).kill()
    assert int(log_files(directory)[0].name) == 2 * LOG_FILE_SIZE


@pytest.fixture
def told(directory: Path, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What opening the store says of lost messages."""

    def opened() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "mq.store"), open_small(directory):
            pass
        return "\n".join(line for line in caplog.text.splitlines() if "lost: log offsets" in line)

    return opened


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_lost_first_file_is_named_without_a_control_file(
    directory: Path, told: Callable[[], str], is_killed: bool
) -> None:
    filled(directory, is_killed=is_killed)
    first = log_files(directory)[0]
    first.unlink()
    (directory / "mq" / "control").unlink()
    assert f"commitlog/{first.name} is missing; messages: A/0 queue offsets " in told()
    assert any("A/0 queue offsets" in problem for problem in problems(directory))
    with open_small(directory) as broker:
        queue = broker.topic("A").queues[0]
        with pytest.raises(mq.StoreCorrupted, match="it is lost"):
            queue.read(queue.min_offset)
        assert queue.max_offset == COUNT
    shutil.rmtree(directory)  # It stays damaged.


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_retention_deleted_is_not_lost(
    directory: Path, told: Callable[[], str], is_killed: bool
) -> None:
    filled(directory, is_killed=is_killed)
    (directory / "mq" / "control").unlink()
    assert told() == ""
    assert list(problems(directory)) == []


def test_files_that_a_rocketmq_broker_deleted_are_not_lost(directory: Path, told: Callable[[], str]) -> None:
    """It touches the file `lock`, and knows nothing of mq/log_begin."""
    filled(directory)
    os.utime(directory / "lock", (1, 1))
    log_files(directory)[0].unlink()
    (directory / "mq" / "control").unlink()
    assert told() == ""


def test_a_log_without_any_file_is_refused(directory: Path) -> None:
    filled(directory)
    for file in log_files(directory):
        file.unlink()
    (directory / "mq" / "control").unlink()
    with pytest.raises(mq.StoreCorrupted, match="no file at all, though the log began at 8,192"):
        open_small(directory)
    (directory / "mq" / "log_begin").unlink()
    open_small(directory).close()


@pytest.mark.parametrize("data", [b"", b"\0" * 20, b"\xff" * 20, b"\0" * 500])
def test_a_damaged_file_says_nothing_and_is_made_anew(
    directory: Path, told: Callable[[], str], data: bytes
) -> None:
    filled(directory)
    path = directory / "mq" / "log_begin"
    before = path.read_bytes()
    path.write_bytes(data)
    (directory / "mq" / "control").unlink()
    assert told() == ""
    assert path.read_bytes() == before


def test_retention_goes_on_where_it_cannot_be_written(
    directory: Path, told: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier offset than that of the first file must not stay: it would tell of a loss."""
    filled(directory)
    with open_small(directory, duties=False) as broker, monkeypatch.context() as patch:
        os.utime(log_files(directory)[0], (0, 0))
        patch.setattr("mq.store.directory.log_begin.file_lock", no_room)
        assert broker.expire() == 1
    assert not (directory / "mq" / "log_begin").exists()
    (directory / "mq" / "control").unlink()
    assert told() == ""


def no_room(*_: object) -> None:
    raise OSError(28, "no room")
