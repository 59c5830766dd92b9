"""A file cannot be opened while a store is recovered: it is not taken for one with nothing in it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import mq
from mq.broker.topics.config import Topics
from tests.support.store.small_store import contents, crash_of, fill, log_files, open_small, queue_files


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 30)
        return crash_of(broker, tmp_path / "store")


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_queue_file_is_kept(tmp_path: Path, crashed: Path, place: int) -> None:
    file = queue_files(crashed, "A")[place]
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")  # It is never opened.
    files = queue_files(crashed, "A")
    with pytest.raises(mq.StoreCorrupted):
        open_small(crashed)
    assert queue_files(crashed, "A") == files
    file.unlink()
    shutil.move(tmp_path / "elsewhere", file)
    with open_small(crashed) as broker:
        assert contents(broker)["A", 0] == (0, 30, [(at, b"message %d" % at) for at in range(30)])


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_file_of_the_log_is_kept(tmp_path: Path, crashed: Path, place: int) -> None:
    made_ahead = [file for file in log_files(crashed) if not any(file.read_bytes())]
    for file in made_ahead:
        file.unlink()  # The newest one left is the end of the log.
    file = log_files(crashed)[place]
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    files = log_files(crashed)
    with pytest.raises(mq.StoreCorrupted):
        open_small(crashed)
    assert log_files(crashed) == files
    file.unlink()
    shutil.move(tmp_path / "elsewhere", file)
    with open_small(crashed) as broker:
        assert contents(broker)["A", 0] == (0, 30, [(at, b"message %d" % at) for at in range(30)])


def test_topics_of_before_do_not_take_the_place_of_those_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path / "store") as broker:
        broker.create_topic("A", 1)
        broker.create_topic("B", 1)
    read_bytes = Path.read_bytes

    def without_descriptors(path: Path) -> bytes:
        if path.name == "topics.json":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read_bytes(path)

    topics = Topics(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", without_descriptors)
        with pytest.raises(OSError, match="Too many open files"):
            topics.load()
    assert {"A", "B"} <= topics.load().keys()
