"""The disks that replay.py makes of a journal, and that the journal has what they are made of."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.conftest import Crew
from tests.support.power.disk import Disk
from tests.support.power.replay import Change, Image, Life, Names, changes_of, images, load

PAGE = 4096
ROOT = "/r"


def life_of(
    journal: str, data: bytes = b"", *, strict: bool = False, live: dict[int, bytes] | None = None
) -> Life:
    lines = journal.splitlines(keepends=True)
    ends = [len("".join(lines[: count + 1])) for count in range(len(lines))]
    memory = {inode: {0: held.ljust(PAGE, b"\0")} for inode, held in (live or {}).items()}
    changes = list(changes_of(journal))
    return Life(ROOT, strict, changes, ends, data, memory, dict.fromkeys(memory, PAGE), {})


def lines(*changes: str) -> str:
    return "".join(f"{change.replace(' ', chr(9))}\n" for change in changes)


def held(image: Image, path: str) -> bytes | None:
    """What a file begins with in an image; None if it is not there."""
    inode = image.names.get(f"{ROOT}/{path}")
    return None if inode is None else image.pages[inode].get(0, b"")[: image.lengths[inode]].rstrip(b"\0")


def test_what_was_synced_is_in_every_image_behind() -> None:
    journal = lines("create 7 /r/a", "size 7 4096", "page 7 0 3 0", "written 7 4096", "create 8 /r/b")
    after = sum(len(line) + 1 for line in journal.splitlines()[:4])
    found = list(images(life_of(journal, b"one")))
    assert {held(image, "a") for image in found if image.end >= after} == {b"one"}
    assert {held(image, "a") for image in found if image.end < after} == {None, b"", b"one"}
    # The name of b may be there or not, which no sync told of.
    assert {held(image, "b") for image in found if image.end == len(journal)} == {None, b""}


def test_a_sync_that_is_cut_short_leaves_any_of_its_pages() -> None:
    journal = lines("create 7 /r/a", "synced 7 12288", "named /r") + lines(
        "page 7 0 4096 0", "page 7 4096 4096 4096", "page 7 8192 4096 8192", "written 7 12288"
    )
    life = life_of(journal, b"a" * PAGE + b"b" * PAGE + b"c" * PAGE)
    behind = life.ends[2]
    found = {
        tuple(sorted(image.pages[7]))
        for image in images(life)
        if image.end == behind and f"{ROOT}/a" in image.names
    }
    assert found == {(), (0,), (8192,), (4096, 8192), (0, 4096), (0, 8192)}


def test_what_the_kernel_writes_back_is_of_the_file_that_it_is_of() -> None:
    """It writes pages of several files without a sync, and a sync of yet another one may follow."""
    journal = lines("create 7 /r/a", "synced 7 8192", "create 8 /r/b", "synced 8 4096", "named /r") + lines(
        "page 7 4096 4096 0", "page 8 0 4096 4096", "written 8 4096"
    )
    life = life_of(journal, b"a" * PAGE + b"b" * PAGE)
    found = {tuple(sorted(image.pages[7])) for image in images(life) if f"{ROOT}/b" in image.names}
    assert found == {(), (4096,)}


def test_unsynced_data_may_or_may_not_survive() -> None:
    journal = lines("create 7 /r/a", "synced 7 4096", "create 8 /r/b", "synced 8 4096", "named /r")
    found = {
        (held(image, "a"), held(image, "b"))
        for image in images(life_of(journal, live={7: b"one", 8: b"two"}))
        if image.end == len(journal)
    }
    assert found == {(b"", b""), (b"one", b""), (b"", b"two"), (b"one", b"two")}


def test_in_order_a_prefix_of_the_names_is_lost_and_strictly_one_of_each_directory() -> None:
    changes = list(
        changes_of(lines("mkdir /r/d", "named /r", "create 7 /r/a", "create 8 /r/d/b", "create 9 /r/c"))
    )
    in_order = Names(changes, len(changes), strict=False).all()
    assert {frozenset(lost) for lost in in_order} == {
        frozenset(lost) for lost in ([], [4], [3, 4], [2, 3, 4])
    }
    strictly = Names(changes, len(changes), strict=True).all()
    assert {frozenset(lost) for lost in strictly} == {
        frozenset(lost) for lost in ([], [4], [2, 4], [3], [3, 4], [2, 3, 4])
    }
    chance = random.Random(1)
    dice = [Names(changes, len(changes), strict=True).some(chance) for _ in range(200)]
    assert all(lost in strictly for lost in dice)


def test_a_sync_of_a_file_brings_its_making_to_disk_and_a_lost_rename_keeps_the_old_name() -> None:
    changes = [
        Change("create", 7, f"{ROOT}/new"),
        Change("written", 7, size=3),
        Change("rename", path=f"{ROOT}/new", to=f"{ROOT}/a"),
    ]
    journal = lines("create 7 /r/new", "written 7 3", "rename /r/new /r/a")
    assert list(changes_of(journal)) == changes
    found = {tuple(image.names) for image in images(life_of(journal, b"")) if image.end == len(journal)}
    assert found == {(f"{ROOT}/new",), (f"{ROOT}/a",)}


def test_a_budget_is_kept_and_the_end_of_the_life_has_its_share() -> None:
    journal = lines(*(f"create {number} /r/{number}" for number in range(100, 150)))
    life = life_of(journal, live={100: b"one"})
    found = list(images(life, 10, random.Random(3)))
    assert len(found) == 10
    assert sum(image.end == len(journal) for image in found) == 5
    assert found[5].names == {}  # The least, first of all.


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, random.Random(1))


@pytest.mark.crash
def test_the_recorder_keeps_each_page_that_a_sync_writes(recorded_crew: Crew, disk: Disk) -> None:
    """msync of a part of a map, fdatasync through another descriptor, pages that are the same once more."""
    record = {
        "state": str(disk.state),
        "delay_max_us": 0,
        "syncs_lie": False,
        "clock_begin_ns": 0,
        "clock_factor": 1,
    }
    process = recorded_crew.nursery.start("powered", scenario="pager", record=record, root=disk.root)
    assert process.wait(60)
    recorded_crew.nursery.forget(process)
    assert recorded_crew.nursery.failures() == ""
    life = load(disk.root, disk.state, strict=False)
    assert [change.kind for change in life.changes if change.kind != "size"] == [
        "create",
        *("page", "written"),  # msync of the second page
        "written",  # once more
        *("page", "page", "written"),  # fdatasync of all, of which the second page is there
        *("page", "synced"),  # a hole where the last page was
    ]
    last = list(images(life))[-1]
    (pages,) = last.pages.values()
    assert {at: bytes(set(held)) for at, held in sorted(pages.items())} == {
        0: b"a", PAGE: b"b", 2 * PAGE: b"\0",
    }  # fmt: skip
