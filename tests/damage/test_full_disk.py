"""The disk fills up while several processes send and read.

Senders get StoreFull and no signal, readers go on, nothing that was acknowledged is lost, and once there is
space again every process sends on without having been opened anew. Small file systems are mounted
for this; without the right to mount, a limit on the size of files does the same.
"""

from __future__ import annotations

import ast
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.check import problems
from tests.damage import filling
from tests.support.processes.children import Child, call

MAY_MOUNT = os.geteuid() == 0
KINDS = ["tmpfs", pytest.param("ext4", marks=pytest.mark.rounds)] if MAY_MOUNT else []
SIZE = 12 << 20
# What is left when the broker opens. Of messages alone so many fit into it that the index of all of them fits
# into the whole disk.
LEFT = {"config": 1 << 20, "index": 2 << 20}
SMALL: dict[str, Any] = {
    "commitlog_file_size": 1 << 18,
    "queue_file_units": 2000,
    "index_slot_count": 500,
    "index_unit_count": 2000,
}


@dataclass(frozen=True)
class Disk:
    path: Path

    @property
    def root(self) -> str:
        return str(self.path / "store")

    @property
    def ballast(self) -> Path:
        return self.path / "ballast"

    def load(self, left: int) -> None:
        """Take away all space but so many bytes, in a way that it can be given back."""
        with self.ballast.open("wb", buffering=0) as file:
            os.fsync(file.fileno())
            while left:
                status = os.statvfs(self.path)
                taken = status.f_bavail * status.f_frsize - left
                try:
                    if taken > 0:
                        os.posix_fallocate(file.fileno(), 0, taken)
                    return
                except OSError:
                    file.truncate(0)  # The store makes files ahead, and has taken some of it meanwhile.
            for size in (1 << 20, 1 << 12, 1 << 10, 1):
                try:
                    while True:
                        file.write(b"b" * size)
                        os.fsync(file.fileno())
                except OSError:
                    continue

    def unload(self) -> None:
        self.ballast.unlink()


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A small file system, empty but for what the test puts there. A machine that cannot mount fails here."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "none", str(place)]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(SIZE + (6 << 20))
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(place)]
    subprocess.run(command, check=True)
    try:
        yield Disk(place)
    finally:
        # What a broker of this process had mapped it gives back with its memory; only then the disk can go.
        gc.collect()
        subprocess.run(["umount", str(place)], check=True)


def assert_sound(root: str) -> None:
    assert list(problems(root)) == []


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_senders_are_refused_and_readers_go_on(disk: Disk, flush: Any) -> None:
    options: dict[str, Any] = {**SMALL, "flush": flush}
    with mq.open(disk.root, **SMALL) as broker:
        broker.create_topic("orders", 3)
    disk.load(8 << 20)
    with (
        Child(filling.send, disk.root, "one", "orders", 3, 700, options) as one,
        Child(filling.send, disk.root, "two", "orders", 3, 90_000, options) as two,
        Child(filling.read, disk.root) as reader,
    ):
        for child in (one, two, reader):
            assert child.hear() == "open"
        one.say("fill")
        two.say("fill")
        full = [one.hear(), two.hear()]
        assert [line.split()[0] for line in full] == ["fill", "fill"]
        reader.say("look")
        read_when_full = int(reader.hear())
        assert read_when_full == sum(int(line.split()[1]) for line in full)

        disk.unload()
        for child in (two, one):
            child.say("more")
            assert child.hear().startswith("more")
        reader.say("look")
        assert int(reader.hear()) == read_when_full + 20

        # Full again: not only once.
        for child in (one, two):
            child.say("fill")
        for child in (one, two):
            child.hear()
        for child in (one, two, reader):
            child.say("close")
        stored = {**one.result(), **two.result()}
        reader.result()
    assert call(filling.all_of, disk.root) == stored
    assert_sound(disk.root)


@pytest.mark.parametrize("what", ["queue files", "config", "queue table", "index"])
def test_each_file_that_grows_may_be_the_one_that_does_not_fit(disk: Disk, what: str) -> None:
    options: dict[str, Any] = dict(SMALL)
    if what == "index":
        options |= {"index_slot_count": 50_000, "index_unit_count": 10_000}
    disk.load(LEFT.get(what, 4 << 20))
    with Child(filling.act_until_full, disk.root, what, options) as child:
        assert child.hear().startswith("full")
        disk.unload()
        child.say("again")
        assert child.hear() == "done"
        child.say("close")
        child.result()
    assert_sound(disk.root)


def test_what_was_sent_is_found_where_there_is_no_space_to_index_it(disk: Disk) -> None:
    call(filling.find_when_full, disk, {**SMALL, "index_slot_count": 50_000, "index_unit_count": 40})
    assert_sound(disk.root)


def test_opening_where_there_is_no_space(disk: Disk) -> None:
    """A first opening, one of a closed store, and one beside others."""
    disk.load(0)
    assert call(filling.open_on_full_disk, disk.root).startswith("StoreFull")
    disk.unload()
    with mq.open(disk.root, **SMALL) as broker:
        broker.create_topic("orders", 1)
        for number in range(50):
            broker.topic("orders").send(b"body %d" % number, keys="k")
    disk.load(0)
    said = call(filling.open_on_full_disk, disk.root)
    assert said.split(",")[0] == "50" or said.startswith("StoreFull")
    disk.unload()
    with mq.open(disk.root, **SMALL) as broker:
        disk.load(0)
        said = call(filling.open_on_full_disk, disk.root)
        assert said.split(",")[0] == "50" or said.startswith("StoreFull")
        assert len(filling.everything(broker)) == 50
        disk.unload()
    assert len(call(filling.all_of, disk.root)) == 50
    assert_sound(disk.root)


@pytest.mark.parametrize("recover", [False, True], ids=["attach", "recover"])
def test_killed_on_a_full_disk(disk: Disk, recover: bool) -> None:
    """All processes die on a full disk; with `recover` nothing is left of the shared memory either."""
    disk.load(8 << 20)
    with Child(filling.send_and_be_killed, disk.root, SMALL) as child:
        stored = ast.literal_eval(child.hear())
        child.kill()
    if recover:
        disk.path.joinpath("store", "mq", "control").unlink()
    # No room at all; room for the shared memory and not for the pages of holes that someone looks into.
    for left in (0, 100 << 10, 300 << 10):
        disk.load(left)
        said = call(filling.open_on_full_disk, disk.root)
        assert said.split(",")[0] == str(len(stored)) or said.startswith("StoreFull")
    disk.unload()
    found = call(filling.all_of, disk.root)
    if not recover:
        assert found == stored
    else:
        # After a crash of the machine what was never flushed may be cut, and nothing in between.
        assert found.items() <= stored.items()
        assert sorted(offset for _, _, offset in found) == list(range(len(found)))
    assert_sound(disk.root)


def test_a_limit_of_file_sizes_is_a_full_disk_too(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    stored = call(filling.send_up_to_a_limit, root, {**SMALL, "commitlog_file_size": 64 << 20}, 48 << 20)
    assert call(filling.all_of, root) == stored
    assert_sound(root)


def test_a_first_send_that_has_no_room_leaves_no_topic_behind(disk: Disk) -> None:
    """Whatever it is that does not fit: the topic's name, its queue, the message."""
    assert call(filling.send_to_fresh_topics, disk, SMALL) == set()
    assert_sound(disk.root)


def test_the_very_first_send_that_has_no_room_leaves_no_topic_behind(disk: Disk) -> None:
    refused = 0
    for pages in range(1, 14):
        refused += call(filling.is_first_send_refused, disk, pages << 12, SMALL)
        shutil.rmtree(disk.root)
    assert refused
