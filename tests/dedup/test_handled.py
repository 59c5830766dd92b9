"""The file of a group's handled keys.

Damage costs the keys that it hits and makes no key handled; marks are on disk before the offsets of their
messages; a full disk is an error with a name.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import mq
from mq.broker.groups import offsets
from mq.broker.once.handled_keys import MARK_SIZE, MARKS_AT
from mq.store.check import problems
from mq.store.dedup.table import BUCKET_COUNT
from mq.store.directory.config_file import write_config
from tests.dedup import dedup_actors
from tests.dedup.dedup_actors import SMALL
from tests.support import assigned
from tests.support.insides import duties_of, groups_of
from tests.support.processes.children import Child

SIZE = 50
FILE_SIZE = MARKS_AT + SIZE * MARK_SIZE


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """A store in which 120 keys were handled, of which the last 50 are kept."""
    root = tmp_path / "marked"
    with mq.open(root, **SMALL) as broker:
        once = mq.Once(broker, "billing", size=SIZE)
        for number in range(120):
            with once(f"key-{number}"):
                pass
    assert file_of(root).stat().st_size == FILE_SIZE
    return root


def file_of(root: Path) -> Path:
    return root / "mq" / "once" / "billing"


def known(once: mq.Once) -> set[int]:
    """The keys that it takes for handled; never one that was not."""
    assert not any(once.seen(f"key-{number}") for number in range(120, 400))
    return {number for number in range(120) if once.seen(f"key-{number}")}


def keys_at(begin: int, end: int) -> set[int]:
    """Numbers of the keys whose marks lie in these bytes."""
    places = range(max(begin - MARKS_AT, 0) // MARK_SIZE, max(end - MARKS_AT + MARK_SIZE - 1, 0) // MARK_SIZE)
    return {number - 1 for number in range(71, 121) if number % SIZE in places}


LAST = set(range(70, 120))


def test_all_come_and_go_and_the_last_are_known(marked: Path) -> None:
    with mq.open(marked, **SMALL) as broker:
        assert known(mq.Once(broker, "billing")) == LAST


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(
        st.tuples(st.integers(0, 63) | st.integers(MARKS_AT, FILE_SIZE - 1), st.integers(1, 255)),
        min_size=1,
        max_size=6,
        unique_by=lambda flip: flip[0],
    ),
    is_open=st.booleans(),
)
def test_flipped_bytes_cost_the_keys_that_they_hit(
    marked: Path, flips: list[tuple[int, int]], is_open: bool
) -> None:
    path = file_of(marked)
    whole = path.read_bytes()
    try:
        with mq.open(marked, **SMALL) as broker:
            once = mq.Once(broker, "billing")

            def flip() -> None:
                with path.open("r+b") as file:
                    for at, bits in flips:
                        file.seek(at)
                        file.write(bytes([whole[at] ^ bits]))

            hit = set[int]().union(*(keys_at(at, at + 1) for at, _ in flips if at >= MARKS_AT))
            # Where it is doubtful from which mark on they count, fewer do.
            least = set() if any(40 <= at < 56 for at, _ in flips) else LAST - hit
            if is_open:
                # What it has in memory it knows; what it has to read again, it reads as it is.
                flip()
                assert least <= known(once) <= LAST
                handle(once, "another")
            else:
                broker.close()
                flip()
                with mq.open(marked, **SMALL) as again:
                    once = mq.Once(again, "billing")
                    assert least <= known(once) <= LAST - hit
                    handle(once, "another")
                with mq.open(marked, **SMALL) as again:
                    assert mq.Once(again, "billing").seen("another")
    finally:
        path.write_bytes(whole)


def test_a_number_that_is_wrong_forgets_no_others(marked: Path) -> None:
    """Also one that would be right in its place."""
    with file_of(marked).open("r+b") as file:
        file.seek(MARKS_AT + 7 * MARK_SIZE + 16)
        file.write((7 + 1_000_000 * SIZE).to_bytes(8, sys.byteorder))
    with mq.open(marked, **SMALL) as broker:
        assert known(mq.Once(broker, "billing")) == LAST - {106}


def handle(once: mq.Once, key: str) -> None:
    with once(key) as is_fresh:
        assert is_fresh
    assert once.seen(key)


@pytest.mark.parametrize("size", [0, 10, 24, 60, 4095, 4096, 4097, 4096 + 32 * 10, 4096 + 32 * 10 + 7])
def test_a_file_that_is_cut_keeps_what_is_left(marked: Path, size: int) -> None:
    os.truncate(file_of(marked), size)
    with mq.open(marked, **SMALL) as broker:
        once = mq.Once(broker, "billing", size=SIZE)
        assert known(once) == LAST - keys_at(min(size, FILE_SIZE), FILE_SIZE)
        assert once.size == SIZE
        for number in range(200):
            handle(once, f"new-{number}")
        assert known(once) == set()


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"mqonce01"])
@pytest.mark.parametrize("begin", [0, MARKS_AT])
def test_garbage_is_never_handled(marked: Path, fill: bytes, begin: int) -> None:
    with file_of(marked).open("r+b") as file:
        file.seek(begin)
        file.write((fill * FILE_SIZE)[: FILE_SIZE - begin])
    with mq.open(marked, **SMALL) as broker:
        once = mq.Once(broker, "billing")
        assert known(once) == set()
        handle(once, "key-1")


def test_a_header_that_is_gone_is_made_of_the_marks(marked: Path, caplog: pytest.LogCaptureFixture) -> None:
    with file_of(marked).open("r+b") as file:
        file.write(b"\xaa" * 64)
    with mq.open(marked, **SMALL) as broker:
        once = mq.Once(broker, "billing")
        assert once.size == SIZE
        assert known(once) == LAST
        handle(once, "another")
        assert known(once) == LAST - {70}
    assert "damaged" in caplog.text


def test_another_thing_in_its_place_is_named(marked: Path) -> None:
    path = file_of(marked)
    path.unlink()
    path.mkdir()
    with mq.open(marked, **SMALL) as broker:
        with pytest.raises(mq.StoreCorrupted, match="billing"):
            mq.Once(broker, "billing")
        broker.create_topic("orders", 1).send(b"one")
        assigned.commit(broker, "billing", broker.topic("orders").queues[0].message_queue, 1)
        assert groups_of(broker).save(), "what others commit is written all the same"
    path.rmdir()
    path.symlink_to("/dev/null")
    with mq.open(marked, **SMALL) as broker, pytest.raises(mq.StoreCorrupted, match="billing"):
        mq.Once(broker, "billing")


# A power cut.


def test_marks_are_on_disk_before_the_offsets_of_their_messages(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the offsets are written, the marks as they were last forced to disk have all messages below
    them."""
    on_disk = tmp_path / "on-disk"
    fdatasync = os.fdatasync
    saves = 0

    def syncing(fd: int) -> None:
        fdatasync(fd)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.parent.name == "once":
            on_disk.write_bytes(path.read_bytes())
            # One more is consumed between the two.
            consume()

    def writing(path: Path, text: str) -> None:
        nonlocal saves
        write_config(path, text)
        after = tmp_path / f"after-{saves}"
        (after / "config").mkdir(parents=True)
        for name in ("consumerOffset.json", "topics.json"):
            shutil.copy(directory / "config" / name, after / "config" / name)
        (after / "mq" / "once").mkdir(parents=True)
        shutil.copy(on_disk, file_of(after))
        saves += 1

    monkeypatch.setattr(os, "fdatasync", syncing)
    monkeypatch.setattr("mq.broker.groups.offsets.write_config", writing)
    with mq.open(directory, **SMALL) as broker:
        duties_of(broker).close()  # They save as well, whenever it pleases them.
        queue = broker.create_topic("orders", 1).queues[0]
        keys: list[str] = []
        once = mq.Once(broker, "billing")
        for number in range(60):
            broker.topic("orders").send(b"%d" % number)
        messages = [*queue.read(0, count_max=60).messages]

        def consume() -> None:
            message = messages[len(keys)]
            with once(message) as is_fresh:
                assert is_fresh
            keys.append(once.key(message))
            assigned.commit(broker, "billing", queue.message_queue, message.queue_offset + 1)

        while len(keys) < 50:
            for _ in range(1 + len(keys) % 3):
                consume()
            groups_of(broker).save()
    monkeypatch.undo()
    assert saves >= 10
    for number in range(saves):
        after = tmp_path / f"after-{number}"
        consumed = offsets.Offsets(after).load()["billing"]["orders"][0]
        with mq.open(after, **SMALL) as broker:
            left = mq.Once(broker, "billing")
            assert consumed > 0
            assert all(left.seen(key) for key in keys[:consumed])


def test_offsets_are_not_written_where_marks_cannot_be(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [True]
    fdatasync = os.fdatasync

    def sync(fd: int) -> None:
        if failing[0] and Path(f"/proc/self/fd/{fd}").readlink().name == "billing":
            raise OSError(errno.EIO, "it is broken")
        fdatasync(fd)

    with mq.open(directory, **SMALL) as broker:
        duties_of(broker).close()  # They would save, and write the marks before it is broken.
        queue = broker.create_topic("orders", 1).queues[0].message_queue
        broker.topic("orders").send(b"one")
        handle(mq.Once(broker, "billing"), "key")
        monkeypatch.setattr(os, "fdatasync", sync)
        assigned.commit(broker, "billing", queue, 1)
        for _ in range(2):
            with pytest.raises(mq.StorePoisoned, match="billing"):
                groups_of(broker).save()
            failing[0] = False  # What failed once is not taken for done because it does not fail twice.
        assert "billing" not in offsets.Offsets(directory).load()


# A full disk.


def refuse(size: int) -> Callable[..., None]:
    allocate = os.posix_fallocate

    def full(fd: int, at: int, length: int) -> None:
        if at + length >= size:
            raise OSError(errno.ENOSPC, "full")
        allocate(fd, at, length)

    return full


def test_a_full_disk_is_named_and_passes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mq.open(directory, **SMALL) as broker, mq.Producer(broker, dedup_window=60) as producer:
        broker.create_topic("orders", 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", refuse(1 << 20))
            with pytest.raises(mq.StoreFull, match="billing"):
                mq.Once(broker, "billing")
            with pytest.raises(mq.StoreFull, match="dedup"):
                producer.send(dedup_actors.order(b"one"), dedup_key="key-1")
        handle(mq.Once(broker, "billing"), "key")
        producer.send(dedup_actors.order(b"one"), dedup_key="key-1")
        producer.send(dedup_actors.order(b"one"), dedup_key="key-1")
        assert broker.topic("orders").queues[0].max_offset == 1


def test_what_a_copy_left_out_is_allocated_before_it_is_written(marked: Path) -> None:
    """As by cp --sparse: else a full disk would be a signal."""
    size = MARKS_AT + 100_000 * MARK_SIZE
    with file_of(marked).open("r+b") as file:
        file.truncate(0)
    with mq.open(marked) as broker, mq.Once(broker, "billing", size=100_000)("key"):
        pass
    content = file_of(marked).read_bytes()
    assert len(content) == size
    with file_of(marked).open("wb") as file:
        for at in range(0, size, 4096):
            if content[at : at + 4096].strip(b"\0"):
                file.seek(at)
                file.write(content[at : at + 4096])
        file.truncate(size)
    assert file_of(marked).stat().st_blocks * 512 < size
    with mq.open(marked) as broker:
        assert mq.Once(broker, "billing").seen("key")
        assert file_of(marked).stat().st_blocks * 512 >= size


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system, if the user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        yield place
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_raises_no_signal(disk: Path) -> None:
    root = disk / "store"
    with Child(dedup_actors.until_full, str(root), str(disk / "ballast")) as child:
        assert child.result() == ["StoreFull", "StoreFull", "StoreFull", "sent", "handled"]
    assert [str(problem) for problem in problems(root)] == []
    assert (root / "mq" / "dedup").stat().st_size == 4096 + BUCKET_COUNT * (256 + 8)
