"""The check runs beside processes that keep working: their changes are no problems.

Each of these has them do it in the very moment that matters.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import xxhash

import mq
from mq.broker.check import problems
from mq.broker.groups.offsets import Offsets, Table
from mq.broker.once import dedup_check, handled_keys
from mq.store.directory.file_locks import lock_byte, open_own_file, unlock_byte
from mq.store.shared import group_file
from mq.store.timer import check as timerverify
from mq.store.timer import timer_log
from tests.support import assigned
from tests.support.store.small_store import open_small, send
from tests.support.store.timers import BEGIN_MS, Bench

HOUR_MS = 3_600_000
FILE_SIZE = 1 << 20


def test_a_group_consumes_what_is_sent_meanwhile(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a topic that there was not before, and of one that is deleted."""
    current = Offsets.current

    def late(offsets: Offsets, *arguments: Any) -> Table:
        monkeypatch.undo()
        for topic in ("orders", "new"):
            sent = send(broker, topic, 0, b"later")
            assigned.commit(broker, "billing", mq.MessageQueue(topic, "mq", 0), sent.queue_offset + 1)
        found = current(offsets, *arguments)
        broker.delete_topic("old")
        return found

    with open_small(directory, duties=False) as broker:
        for topic in ("orders", "old"):
            broker.create_topic(topic, 1)
            sent = send(broker, topic, 0, b"first")
            assigned.commit(broker, "billing", mq.MessageQueue(topic, "mq", 0), sent.queue_offset + 1)
        monkeypatch.setattr(Offsets, "current", late)
        assert list(problems(directory)) == []


def test_the_file_of_a_group_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "billing"
    fd = open_own_file(path)
    os.ftruncate(fd, group_file.MAPPED_SIZE)
    assert lock_byte(fd, 0)
    assert group_file.damage_of(path) is None
    unlock_byte(fd, 0)
    assert group_file.damage_of(path) == "its header is damaged, or another version's"

    def made_by_now(asking: int, byte: int) -> None:
        head = group_file.LAYOUT_STAMP, group_file.LAYOUT, 1, bytes(16), 0, 0, 0, 0
        os.pwrite(fd, group_file.HEADER.pack(*head), 0)

    monkeypatch.setattr(group_file, "byte_owner", made_by_now)
    assert group_file.damage_of(path) is None
    os.close(fd)


def test_the_file_of_handled_keys_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room, then words, then the header: seen before the room was there, and before the header was."""
    path = tmp_path / "mq" / "once" / "billing"
    path.parent.mkdir(parents=True)
    head = handled_keys.HEAD.pack(handled_keys.STAMP, 50)
    whole = head + xxhash.xxh3_64_digest(head)
    whole += b"".join((word % (1 << 64)).to_bytes(8, "little") for word in (1, ~1, 1, ~1))
    path.write_bytes(b"")
    opened, look = dedup_check._opened, dedup_check._not_zero

    def make(*arguments: Any) -> Any:
        path.write_bytes(whole.ljust(handled_keys.MARKS_AT + 50 * handled_keys.MARK_SIZE, b"\0"))
        return look(*arguments)

    def make_after(file: Path) -> Any:
        context = opened(file)

        class Late:
            def __enter__(self) -> Any:
                found = context.__enter__()
                make(0, 0, 0, 1)
                return found

            def __exit__(self, *error: object) -> None:
                context.__exit__(None, None, None)

        return Late()

    with monkeypatch.context() as patch:
        patch.setattr(dedup_check, "_opened", make_after)
        assert list(dedup_check.problems(tmp_path)) == []
    path.write_bytes(bytes(handled_keys.HEAD_SIZE) + whole[handled_keys.HEAD_SIZE :])
    assert len(list(dedup_check.problems(tmp_path))) == 1
    monkeypatch.setattr(dedup_check, "_not_zero", lambda *arguments: [look(*arguments), make(*arguments)][0])
    assert list(dedup_check.problems(tmp_path)) == []


class TestTimers:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A wheel with something in it, and a leader at work on it."""
        with Bench(tmp_path / "store") as bench:
            for delay_ms in (0, 10, 3_000):
                bench.put_aside(BEGIN_MS + HOUR_MS + delay_ms)
            bench.turn()
            bench.close()
        assert self.found(bench.root) == []
        return bench.root

    def found(self, root: Path) -> list[str]:
        return list(timerverify.problems(root, is_used=True, file_size=FILE_SIZE))

    def test_files_that_are_being_made_are_empty(self, root: Path) -> None:
        (timer_log.directory_of(root) / f"{FILE_SIZE:020}").touch()
        (root / "config" / "timercheck").write_bytes(b"")
        assert self.found(root) == []
        assert len(list(timerverify.problems(root, file_size=FILE_SIZE))) == 2

    def test_files_of_the_log_go_after_their_names_were_read(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name of a file that was deleted since the directory was listed."""
        directory, files = timer_log.directory_of(root), timer_log.files
        (first,) = files(root)
        first.rename(directory / f"{3 * FILE_SIZE:020}")
        monkeypatch.setattr(timer_log, "files", lambda root: [first, *files(root)])
        assert self.found(root) == []

    def test_a_file_between_two_is_missing(self, root: Path) -> None:
        (first,) = timer_log.files(root)
        with (first.parent / f"{2 * FILE_SIZE:020}").open("wb") as file:
            file.truncate(FILE_SIZE)
        assert any("no file between" in problem for problem in self.found(root))

    def test_a_queue_file_goes_after_its_name_was_read(self, root: Path) -> None:
        (file,) = (root / "consumequeue" / timerverify.TOPIC / "0").iterdir()
        file.with_name("0").symlink_to(file.with_name("gone"))
        assert self.found(root) == []
