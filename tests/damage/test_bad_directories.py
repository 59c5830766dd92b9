"""Directories that will not do: one clear error each, which says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.damage import directories, known
from tests.support.processes.children import Child, call
from tests.support.store.small_store import copy_beside_others

NOBODY = 65534


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A place that every user may reach. Not below pytest's own, which another pytest that starts closes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


def make_store(path: Path) -> Path:
    with mq.open(path, **known.SIZES) as broker:
        broker.create_topic("orders", 1)
        broker.topic("orders").send(b"body")
    return path


def give(path: Path, uid: int) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, uid)


def test_a_directory_of_other_things_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("not a store")
    with pytest.raises(mq.MQError, match=r"letter\.txt") as caught:
        mq.open(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_the_root_of_a_file_system_is_a_place_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    make_store(tmp_path)


def test_a_log_file_that_is_a_link_is_named(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    file = root / "commitlog" / f"{0:020}"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(mq.StoreCorrupted, match="is a symbolic link: put the file itself there") as caught:
        mq.open(root)
    assert caught.value.path == str(file)
    # A directory may be one.
    file.unlink()
    (tmp_path / "elsewhere").rename(file)
    (root / "commitlog").rename(tmp_path / "log")
    (root / "commitlog").symlink_to(tmp_path / "log")
    with mq.open(root) as broker:
        assert [message.body for message in broker.topic("orders").queues[0].read(0).messages] == [b"body"]


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("not a directory")
    with pytest.raises(NotADirectoryError, match="is not a directory"):
        mq.open(path)
    with pytest.raises((NotADirectoryError, mq.MQError)):
        mq.open(path / "below")
    assert path.read_text() == "not a directory"


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_a_missing_directory_is_not_made_unasked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError, match="store does not exist"):
        mq.open(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_all_that_is_made_is_the_owner_s_alone(tmp_path: Path) -> None:
    modes = call(directories.modes_of, str(tmp_path / "store"))
    assert modes["."] == 0o700
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("commitlog_file_size", 1 << 15),
        ("queue_file_units", 33),
        ("index_slot_count", 17),
        ("index_unit_count", 65),
    ],
)
def test_other_sizes_than_the_store_s(tmp_path: Path, option: str, value: Any) -> None:
    root = make_store(tmp_path / "store")
    for inside in (False, True):
        broker = mq.open(root) if inside else None
        with pytest.raises(mq.ConfigMismatch) as caught:
            mq.open(root, **{option: value})
        error = caught.value
        assert (error.option, error.stored, error.asked) == (option, known.SIZES[option], value)
        assert isinstance(error, ValueError)
        for fact in (str(root), option, f"{value:,}", f"{known.SIZES[option]:,}", "leave the option out"):
            assert fact in str(error)
        if broker:
            broker.close()
    mq.open(root, **known.SIZES).close()


def test_a_directory_of_another_user(open_to_all: Path) -> None:
    root = make_store(open_to_all / "store")
    root.chmod(0o755)
    name, text = call(directories.failure_of_opening, str(root), {}, uid=NOBODY)
    assert name == "NotPermitted"
    for fact in (str(root), "belongs to user id 0", f"user id {NOBODY}"):
        assert fact in text


def test_a_directory_that_may_not_even_be_listed(open_to_all: Path) -> None:
    root = make_store(open_to_all / "store")
    for mode in (0o700, 0o711, 0o744):
        root.chmod(mode)
        name, text = call(directories.failure_of_opening, str(root), {}, uid=NOBODY)
        assert name == "NotPermitted", oct(mode)
        assert str(root) in text


def test_a_read_only_directory_of_one_s_own(open_to_all: Path) -> None:
    root = make_store(open_to_all / "store")
    give(root, NOBODY)
    assert call(directories.failure_of_opening, str(root), {}, uid=NOBODY) == ("", "")
    give(root, NOBODY)
    root.chmod(0o500)
    name, text = call(directories.failure_of_opening, str(root), {}, uid=NOBODY)
    assert name == "NotPermitted"
    for fact in (str(root), "dr-x------", "cannot be written"):
        assert fact in text


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "config", "mq"])
def test_a_part_that_may_not_be_written(open_to_all: Path, part: str) -> None:
    root = make_store(open_to_all / "store")
    give(root, NOBODY)
    (root / part).chmod(0o500)
    for path in (root / part).rglob("*"):
        os.chown(path, 0, 0)
        path.chmod(0o755 if path.is_dir() else 0o644)
    name, text = call(directories.failure_of_opening, str(root), {}, uid=NOBODY)
    assert name in ("NotPermitted", "")
    assert not name or str(root) in text


def test_a_read_only_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the directory's mode and owner are, these are not what is to be changed."""
    root = make_store(tmp_path / "store")
    status = os.statvfs(root)
    mounted = os.statvfs_result((*status[:8], status.f_flag | os.ST_RDONLY, *status[9:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: mounted)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    for read_only in (False, True):
        with pytest.raises(mq.NotPermitted, match="lies on a read-only file system"):
            mq.open(root, read_only=read_only)


@pytest.mark.parametrize("target", ["redis://localhost", "RocketMQ://here:9876", "rocketmq:/here:9876"])
def test_an_address_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    for each in (target, Path(target)):
        with pytest.raises(ValueError, match="rocketmq://host:port"):
            mq.open(each)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_directory_may_be_made(open_to_all: Path) -> None:
    name, text = call(directories.failure_of_opening, str(open_to_all / "a" / "store"), {}, uid=NOBODY)
    assert name == "NotPermitted"
    assert str(open_to_all) in text


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"])
def test_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("mq.store.directory.root.file_system", lambda _path: kind)
    with pytest.raises(mq.NotPermitted, match=kind) as caught:
        mq.open(tmp_path / "store")
    for fact in (str(tmp_path / "store"), "network file system", "local directory"):
        assert fact in str(caught.value)


def test_a_store_that_a_rocketmq_broker_has(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    with Child(directories.hold_as_rocketmq_does, str(root)) as broker:
        assert broker.hear() == "held"
        with pytest.raises(mq.StoreLocked) as caught:
            mq.open(root)
        assert caught.value.path == str(root)
        assert caught.value.pid == broker.pid
        for fact in (str(root), "RocketMQ broker", str(broker.pid), "stop"):
            assert fact in str(caught.value)
        broker.say("let go")
        broker.result()
    with mq.open(root) as ours:
        assert len(ours.topic("orders").queues[0].read(0).messages) == 1
        # And the other way round, however many of ours are in.
        with mq.open(root):
            assert call(directories.take_as_rocketmq_does, str(root)) is False
        assert call(directories.take_as_rocketmq_does, str(root)) is False
    assert call(directories.take_as_rocketmq_does, str(root)) is True


def test_a_copied_directory_is_a_store_of_its_own(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    with mq.open(root) as broker:
        copy_beside_others(root, tmp_path / "copy")
        broker.topic("orders").send(b"only in the first")
    with mq.open(tmp_path / "copy") as copy:
        queue = copy.topic("orders").queues[0]
        assert [message.body for message in queue.read(0).messages] == [b"body"]
        copy.topic("orders").send(b"only in the copy")
    with mq.open(root) as broker:
        bodies = [message.body for message in broker.topic("orders").queues[0].read(0).messages]
        assert bodies == [b"body", b"only in the first"]


@pytest.mark.parametrize("target", ["rocketmq://", "rocketmq://:9876", "rocketmq://a:1;b:x"])
def test_what_names_no_name_server_is_one_clear_error(target: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        mq.open(target)
