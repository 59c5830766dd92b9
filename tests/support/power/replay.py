"""What a disk may hold after the power failed, from the journal of recorder.c alone. Pure but for `load`.

A life is the journal from one power cut to the next, with what the processes had changed in memory when they
died. The power may fail between any two lines of it, and while pages are written. What is found then:

    pages     Of a sync that has returned, as it wrote them, or newer. Of one that has not, any of them.
              Unsynced data may have come to disk all the same; what that was is known at the end.
    lengths   As at the last sync, or a later one.
    names     In order, as ext4 and XFS journal them: of all changes a prefix is found. fsync of anything
              brings to disk all that were made before it; fdatasync and msync bring those up to the last one
              of the file itself, its making or its length.
              Strict: an fsync of a directory, and nothing else, makes its entries certain. Of the changes
              since, each directory keeps a prefix of its own. (Lengths are as they were set last.)
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tests.support.power.sectors import different

__all__ = [
    "DIRECTORY",
    "Change",
    "Found",
    "Image",
    "Life",
    "Names",
    "changes_of",
    "images",
    "load",
    "replayed",
]

DIRECTORY = -1  # In the place of an inode.
NAMES = {"create", "mkdir", "rename", "link", "unlink", "rmdir"}
SYNCS = {"synced", "written"}
PAGE, SECTOR = 4096, 512

Pages = dict[int, dict[int, bytes]]  # inode to offset to what is there


class Change(NamedTuple):
    """One line of the journal; what its kind has not is empty."""

    kind: str
    inode: int = 0
    path: str = ""
    to: str = ""
    size: int = 0
    at: int = 0  # of a page in its file
    place: int = 0  # of its bytes in the data


@dataclass
class Found:
    """What of the journal is found after the cut."""

    names: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)  # inodes of which no change of length is lost


@dataclass
class Life:
    """One journal with the pages it names, and how memory differed from the disk in the end."""

    root: str
    strict: bool
    changes: list[Change]
    ends: list[int]  # how long the journal was after each change
    data: bytes
    live: Pages
    lengths: dict[int, int]  # in memory, in the end
    mtimes_ns: dict[int, int]


@dataclass
class Image:
    """What the disk holds after one cut."""

    what: str
    end: int  # how long the journal was at the cut
    names: dict[str, int]
    lengths: dict[int, int]
    pages: Pages


def changes_of(journal: str) -> Iterator[Change]:
    for line in journal.splitlines():
        kind, first, *rest = line.split("\t")
        if kind == "create":
            yield Change(kind, int(first), rest[0])
        elif kind == "page":
            yield Change(kind, int(first), at=int(rest[0]), size=int(rest[1]), place=int(rest[2]))
        elif kind == "size" or kind in SYNCS:
            yield Change(kind, int(first), size=int(rest[0]))
        else:
            yield Change(kind, path=first, to=rest[0] if rest else "")


def load(root: Path, state: Path, *, strict: bool) -> Life:
    """The life that has just ended: all processes are dead."""
    journal = (state / "journal").read_text()
    live: Pages = {}
    lengths, mtimes_ns = {}, {}
    for path in (state / "inodes").iterdir():
        inode, status = int(path.name), path.stat()
        lengths[inode], mtimes_ns[inode] = status.st_size, status.st_mtime_ns
        with path.open("rb") as now, (state / "disk" / path.name).open("rb") as disk:
            live[inode] = {at: data for at, data, _ in different(now.fileno(), disk.fileno(), PAGE)}
    return Life(
        str(root),
        strict,
        list(changes_of(journal)),
        list(accumulate(len(line.encode()) for line in journal.splitlines(keepends=True))),
        (state / "data").read_bytes(),
        live,
        lengths,
        mtimes_ns,
    )


def replayed(root: str, changes: Sequence[Change], lost: Collection[int]) -> Found:
    """Do the changes but for the lost ones. Each is of the file that it was of, whatever was lost before."""
    found = Found()
    names: dict[str, int] = {}  # as if nothing was lost
    for place, change in enumerate(changes):
        kind, inode = change.kind, change.inode
        if kind == "create":
            names[change.path] = inode
            found.complete.add(inode)
        elif kind == "mkdir":
            names[change.path] = inode = DIRECTORY
        elif kind == "rename":
            inode = names[change.to] = names.pop(change.path)
        elif kind == "link":
            inode = names[change.to] = names[change.path]
        elif kind in ("unlink", "rmdir"):
            names.pop(change.path)
        if kind in SYNCS:
            found.lengths[inode] = change.size
            found.complete.add(inode)
        elif kind == "size" and place not in lost:
            found.lengths[inode] = change.size
        elif kind == "size":
            found.complete.discard(inode)
        elif kind in NAMES and place not in lost:
            _do(change, inode, found.names)
    reachable: dict[str, int] = {}
    for path, inode in sorted(found.names.items()):
        if _parent(path) == root or _parent(path) in reachable:
            reachable[path] = inode
    found.names = reachable
    return found


def _do(change: Change, inode: int, names: dict[str, int]) -> None:
    if change.kind in ("unlink", "rmdir"):
        names.pop(change.path, None)
    else:
        names[change.to or change.path] = inode
    if change.kind == "rename" and names.get(change.path) == inode:
        del names[change.path]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class Names:
    """Which changes of names and lengths may be lost at a cut behind `count` changes: each choice is a set of
    places in the journal, the first one everything that may, the last one nothing."""

    def __init__(self, changes: Sequence[Change], count: int, *, strict: bool) -> None:
        self._places: list[list[int]] = []  # of each directory, or of all; a prefix of each is kept
        if strict:
            by_directory: dict[str, list[int]] = {}
            for place, change in enumerate(changes[:count]):
                if change.kind == "named":
                    by_directory.pop(change.path, None)
                elif change.kind in NAMES:
                    by_directory.setdefault(_parent(change.to or change.path), []).append(place)
            self._places = list(by_directory.values())
            return
        certain = 0
        latest: dict[int, int] = {}
        for place, change in enumerate(changes[:count], 1):
            if change.kind in ("create", "size"):
                latest[change.inode] = place
            elif change.kind == "written":
                certain = max(certain, latest.get(change.inode, 0))
            elif change.kind in ("synced", "named"):
                certain = place
        uncertain = [
            place
            for place in range(certain, count)
            if changes[place].kind in NAMES or changes[place].kind == "size"
        ]
        self._places = [uncertain] if uncertain else []

    def all(self) -> list[set[int]]:
        """Every prefix of what one directory may lose while the others lose all of it, or nothing."""
        everything = {place for places in self._places for place in places}
        choices = [everything]
        for places in self._places:
            for kept in range(1, len(places)):
                choices.append(set(places[kept:]))
                if len(self._places) > 1:
                    choices.append(everything - set(places[:kept]))
            if len(self._places) > 1:
                choices += [set(places), everything - set(places)]
        if everything:
            choices.append(set())
        return choices

    def some(self, chance: random.Random) -> set[int]:
        """By the dice: each directory everything, nothing or something."""
        lost: set[int] = set()
        for places in self._places:
            lost.update(places[chance.choice((0, chance.randint(0, len(places)), len(places))) :])
        return lost


def _halves(data: dict[int, bytes], before: dict[int, bytes]) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Parts of these pages, as a cut leaves them that comes while they are written in whatever order."""
    at = sorted(data)
    if len(at) > 1:
        yield "the first page", {at[0]: data[at[0]]}
        yield "the last page", {at[-1]: data[at[-1]]}
        yield "all but the first page", {page: data[page] for page in at[1:]}
        yield "all but the last page", {page: data[page] for page in at[:-1]}
        yield "each other page", {page: data[page] for page in at[::2]}
        return
    for page, now in data.items():
        was = before.get(page, b"").ljust(len(now), b"\0")
        sectors = [
            start
            for start in range(0, len(now), SECTOR)
            if now[start : start + SECTOR] != was[start : start + SECTOR]
        ]
        for middle in sectors[1:]:
            yield f"sectors below {middle}", {page: now[:middle] + was[middle:]}
            yield f"sectors from {middle} on", {page: was[:middle] + now[middle:]}


class _Cuts:
    """The disk as it is at each cut of one life, from the first on."""

    def __init__(self, life: Life) -> None:
        self._life = life
        changes = life.changes
        # Before the pages of a sync, or behind them: what lies between is a part of them.
        self.places = [
            place
            for place in range(len(changes) + 1)
            if place == len(changes)
            or changes[place].kind != "page"
            or (place and changes[place - 1].kind != "page")
            # The kernel's own writing comes without a sync behind it, one file after the other.
            or (place and changes[place - 1].inode != changes[place].inode)
        ]
        self._pages: Pages = {}
        self._done = 0

    def pages(self, count: int) -> Pages:
        """What was synced before; asked for in rising order."""
        assert count >= self._done
        for change in self._life.changes[self._done : count]:
            if change.kind == "page":
                self._pages.setdefault(change.inode, {})[change.at] = self._bytes(change)
        self._done = count
        return self._pages

    def _bytes(self, change: Change) -> bytes:
        return self._life.data[change.place : change.place + change.size].ljust(PAGE, b"\0")

    def parts(self, count: int) -> list[tuple[str, Pages, bool]]:
        """What else may be there: in words, pages over those of pages(count), and whether their lengths are
        those in memory."""
        found: list[tuple[str, Pages, bool]] = [("what was synced", {}, False)]
        life = self._life
        if count == len(life.changes):
            live = {inode: pages for inode, pages in life.live.items() if pages}
            found.append(("all that was in memory", live, True))
            for inode, data in live.items():
                others = {other: pages for other, pages in live.items() if other != inode}
                found.append((f"inode {inode} as in memory", {inode: data}, True))
                if others:
                    found.append((f"all but inode {inode} as in memory", others, True))
                for words, part in _halves(data, self._pages.get(inode, {})):
                    found.append((f"of inode {inode} {words}", {inode: part}, True))
                    found.append(
                        (f"of inode {inode} {words}, all of the others", {**others, inode: part}, True)
                    )
            return found
        group: dict[int, bytes] = {}
        for change in life.changes[count:]:
            if (change.kind, change.inode) != ("page", life.changes[count].inode):
                break
            group[change.at] = self._bytes(change)
        if group:
            inode = life.changes[count].inode
            for words, part in _halves(group, self._pages.get(inode, {})):
                found.append((f"of a sync of inode {inode} {words}", {inode: part}, False))
        return found


def images(life: Life, budget: int | None = None, chance: random.Random | None = None) -> Iterator[Image]:
    """What the disk may hold: with every choice at every cut, or about `budget` of them, half of them at the
    end of the life, where it is known what was in memory."""
    cuts = _Cuts(life)
    last = len(life.changes)
    first = next((place for place in cuts.places if place >= _given(life)), last)
    places = [place for place in cuts.places if place >= first]
    if budget is not None:
        assert chance is not None
        amid = sorted(chance.sample(places[:-1], min(budget // 2, len(places) - 1)))
        places = [*amid, last]
    for count in places:
        names = Names(life.changes, count, strict=life.strict)
        pages, parts = cuts.pages(count), cuts.parts(count)
        lost = names.all()
        choices = [(one, part) for one in lost for part in parts]
        if budget is not None:
            assert chance is not None
            wanted = 1 if count < last else budget - budget // 2
            # The least that there may be, first of all.
            chosen = choices[:1] if count == last else []
            choices = chosen + chance.sample(choices, min(max(wanted - len(chosen), 0), len(choices)))
        for one, (words, part, is_live) in choices:
            found = replayed(life.root, life.changes[:count], one)
            lengths = dict(found.lengths)
            if is_live:
                lengths.update((inode, life.lengths[inode]) for inode in part if inode in found.complete)
            what = f"behind change {count} of {last}, {len(one)} changes of names lost, {words}"
            inodes = set(found.names.values()) - {DIRECTORY}
            merged = {inode: {**pages.get(inode, {}), **part.get(inode, {})} for inode in inodes}
            end = life.ends[count - 1] if count else 0
            yield Image(what, end, found.names, {inode: lengths.get(inode, 0) for inode in inodes}, merged)


def _given(life: Life) -> int:
    """How many changes say what the life began with: see Disk._start_over."""
    root = Change("named", path=life.root)
    return life.changes.index(root) + 1 if root in life.changes else 0
