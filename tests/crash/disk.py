"""A disk that forgets, in a power cut, what nobody forced it to keep.

Processes under recorder.c work in `root` as ever; what they synced is copied aside. When all of them have
been killed, `cut` makes of `root` what the disk might hold after the power failed at that moment:

    bytes     A range that was synced is as it was then, or newer. Each sector that was changed since is as
              it was at the last sync, or as it is now, by the dice: the kernel writes back when it pleases.
    lengths   As at the last sync, or a later one, with the same said of it.
    names     In order, as ext4 and XFS journal them: of all changes a prefix is found. fsync of anything
              brings to disk all that were made before it; fdatasync and msync bring those up to the last one
              of the file itself, its making or its length.
              Strict: an fsync of a directory, and nothing else, makes its entries certain. Of the changes
              since, each directory keeps a prefix of its own. (Lengths are as they were set last.)

Inodes stay the same, as on a disk, so a control file finds itself again. There is a new boot id.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Disk"]

DIRECTORY = -1  # In the place of an inode.
NAMES = {"create", "mkdir", "rename", "link", "unlink", "rmdir"}
SYNCS = {"synced", "written"}


class Change(NamedTuple):
    """One line of the journal; inode or path are empty where the kind has none."""

    kind: str
    inode: int
    path: str
    to: str
    size: int


@dataclass
class Found:
    """What of the journal is found after the cut."""

    names: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)  # inodes of which no change of length is lost


class Disk:
    """One store directory with what is recorded of it."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.root = directory / "store"
        self.state = directory / "state"
        self._chance = chance
        self._journal = self.state / "journal"
        for path in (self.root, self.state, self.state / "inodes", self.state / "disk"):
            path.mkdir()
        self._journal.touch()
        self._boot()

    @contextmanager
    def standstill(self) -> Iterator[None]:
        """Nobody is in the middle of a sync or a change of names, and nobody gets beyond the next one."""
        with self._journal.open() as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            yield

    def on_disk(self, path: Path) -> Path:
        """Where that is which a file of the store holds on disk."""
        return self.state / "disk" / str(path.stat().st_ino)

    def write_back(self) -> None:
        """What the kernel does now and then: some of what was written comes to disk unasked."""
        with self.standstill():
            for path in (self.state / "inodes").iterdir():
                part = self._chance.choice((0.0, 0.5, 1.0))
                with path.open("rb") as live, self._disk(path).open("r+b") as disk:
                    for at, now, _ in _different(live.fileno(), disk.fileno(), 4096):
                        if self._chance.random() < part:
                            os.pwrite(disk.fileno(), now, at)

    def remove(self, name: str) -> None:
        """Delete a directory of the store, by hand."""
        with self.standstill(), self._journal.open("a") as journal:
            for directory, _, files in os.walk(self.root / name, topdown=False):
                for file in files:
                    (Path(directory) / file).unlink()
                    journal.write(f"unlink\t{directory}/{file}\n")
                Path(directory).rmdir()
                journal.write(f"rmdir\t{directory}\n")

    def cut(self, *, sector: int, strict: bool) -> None:
        """The power failed, and is back. All processes are dead."""
        changes = list(self._changes())
        everything = self._replayed(changes, [True] * len(changes))
        assert everything.names == self._tree(), "the recorder missed a change of names"
        kept = self._kept_strictly(changes) if strict else self._kept_in_order(changes)
        found = self._replayed(changes, kept)
        inodes = set(found.names.values()) - {DIRECTORY}
        for inode in inodes:
            self._compose(inode, found, sector)
        shutil.rmtree(self.root)
        self.root.mkdir(mode=0o700)
        for path, inode in sorted(found.names.items()):
            if inode == DIRECTORY:
                Path(path).mkdir(mode=0o700)
            else:
                os.link(self._inode(inode), path)
        for file in list((self.state / "inodes").iterdir()):
            if int(file.name) not in inodes:
                file.unlink()
                self._disk(file).unlink()
        self._start_over(found)
        self._boot()

    def _compose(self, inode: int, found: Found, sector: int) -> None:
        """Give a file what it may hold now, and the disk the same."""
        path = self._inode(inode)
        status = path.stat()
        length = found.lengths.get(inode, 0)
        if inode in found.complete and self._chance.random() < 0.5:
            length = status.st_size
        part = self._chance.choice((0.0, 0.0, 0.5, 0.9, 1.0))
        with path.open("r+b") as live, self._disk(path).open("r+b") as disk:
            for at, now, synced in _different(live.fileno(), disk.fileno(), sector):
                if self._chance.random() < part:
                    os.pwrite(disk.fileno(), now, at)
                else:
                    os.pwrite(live.fileno(), synced, at)
            os.ftruncate(live.fileno(), length)
            os.ftruncate(disk.fileno(), length)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found.lengths[inode] = length

    def _kept_in_order(self, changes: list[Change]) -> list[bool]:
        certain = 0
        latest: dict[int, int] = {}
        for count, change in enumerate(changes, 1):
            if change.kind in ("create", "size"):
                latest[change.inode] = count
            elif change.kind == "written":
                certain = max(certain, latest.get(change.inode, 0))
            elif change.kind in ("synced", "named"):
                certain = count
        kept = self._chance.choice((certain, self._chance.randint(certain, len(changes)), len(changes)))
        return [place < kept for place in range(len(changes))]

    def _kept_strictly(self, changes: list[Change]) -> list[bool]:
        places: dict[str, list[int]] = {}  # of the changes in each directory
        certain: dict[str, int] = {}  # how many of them are
        for place, change in enumerate(changes):
            if change.kind == "named":
                certain[change.path] = len(places.get(change.path, ()))
            elif change.kind in NAMES:
                places.setdefault(_parent(change.to or change.path), []).append(place)
        lost = set()
        for directory, its_places in places.items():
            least = certain.get(directory, 0)
            lost.update(
                its_places[self._chance.choice((least, self._chance.randint(least, len(its_places)))) :]
            )
        return [place not in lost for place in range(len(changes))]

    def _replayed(self, changes: list[Change], kept: list[bool]) -> Found:
        """Do the changes that are kept. Each is of the file that it was of, whatever was lost before it."""
        found = Found()
        names: dict[str, int] = {}  # as if nothing was lost
        for change, is_kept in zip(changes, kept, strict=True):
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
            elif kind == "size" and is_kept:
                found.lengths[inode] = change.size
            elif kind == "size":
                found.complete.discard(inode)
            elif is_kept and kind in NAMES:
                _do(change, inode, found.names)
        reachable: dict[str, int] = {}
        for path, inode in sorted(found.names.items()):
            if _parent(path) == str(self.root) or _parent(path) in reachable:
                reachable[path] = inode
        found.names = reachable
        return found

    def _changes(self) -> Iterator[Change]:
        for line in self._journal.read_text().splitlines():
            kind, first, *rest = line.split("\t")
            if kind == "create":
                yield Change(kind, int(first), rest[0], "", 0)
            elif kind in ("size", *SYNCS):
                yield Change(kind, int(first), "", "", int(rest[0]))
            else:
                yield Change(kind, 0, first, rest[0] if rest else "", 0)

    def _tree(self) -> dict[str, int]:
        found = {}
        for directory, directories, files in os.walk(self.root):
            found.update({f"{directory}/{name}": DIRECTORY for name in directories})
            found.update({f"{directory}/{name}": (Path(directory) / name).stat().st_ino for name in files})
        return found

    def _start_over(self, found: Found) -> None:
        """A journal in which all that is there now is certain."""
        with self._journal.open("w") as journal:
            for path, inode in sorted(found.names.items()):
                if inode == DIRECTORY:
                    journal.write(f"mkdir\t{path}\nnamed\t{path}\n")
                else:
                    journal.write(f"create\t{inode}\t{path}\nsynced\t{inode}\t{found.lengths[inode]}\n")
            for path, inode in found.names.items():
                if inode == DIRECTORY:
                    journal.write(f"named\t{path}\n")
            journal.write(f"named\t{self.root}\n")

    def _boot(self) -> None:
        (self.state / "boot_id").write_text(f"{uuid.UUID(int=self._chance.getrandbits(128))}\n")

    def _inode(self, inode: int) -> Path:
        return self.state / "inodes" / str(inode)

    def _disk(self, path: Path) -> Path:
        return self.state / "disk" / path.name


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _do(change: Change, inode: int, names: dict[str, int]) -> None:
    if change.kind in ("unlink", "rmdir"):
        names.pop(change.path, None)
    else:
        names[change.to or change.path] = inode
    if change.kind == "rename" and names.get(change.path) == inode:
        del names[change.path]


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """Where a file holds bytes."""
    at, size = 0, os.fstat(fd).st_size
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole follows.
            return
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, at


def _different(live: int, disk: int, sector: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(offset, live bytes, disk bytes) of each sector that differs."""
    starts = {
        start
        for fd in (live, disk)
        for begin, end in _extents(fd)
        for start in range(begin // sector * sector, end, sector)
    }
    for start in sorted(starts):
        now, synced = (os.pread(fd, sector, start).ljust(sector, b"\0") for fd in (live, disk))
        if now != synced:
            yield start, now, synced
