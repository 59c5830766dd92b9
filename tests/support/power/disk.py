"""A disk that loses unsynced data in a power cut.

Processes under recorder.c work in `root` as ever; what they synced is copied aside. When all of them have
been killed, `cut` makes of `root` what the disk might hold after the power failed at that moment: one of the
images that replay.py tells of, by the dice, and in sectors instead of pages.

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
from pathlib import Path

from tests.support.power.replay import DIRECTORY, Found, Names, changes_of, replayed
from tests.support.power.sectors import different, extents

__all__ = ["Disk"]

PAGE = 4096


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
        (self.state / "data").touch()
        self._boot()

    @contextmanager
    def standstill(self) -> Iterator[None]:
        """Hold all processes: none is inside a sync or a rename, and none gets beyond the next one."""
        with self._journal.open() as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            yield

    def on_disk(self, path: Path) -> Path:
        """Where that is which a file of the store holds on disk."""
        return self.state / "disk" / str(path.stat().st_ino)

    def write_back(self, share: float | None = None) -> None:
        """What the kernel does now and then: some of what was written comes to disk unasked."""
        with self.standstill(), self._journal.open("a") as journal, (self.state / "data").open("ab") as data:
            for path in (self.state / "inodes").iterdir():
                part = self._chance.choice((0.0, 0.5, 1.0)) if share is None else share
                with path.open("rb") as live, self._disk(path).open("r+b") as disk:
                    for at, now, _ in different(live.fileno(), disk.fileno(), PAGE):
                        if self._chance.random() < part:
                            os.pwrite(disk.fileno(), now, at)
                            journal.write(f"page\t{path.name}\t{at}\t{len(now)}\t{data.tell()}\n")
                            data.write(now)

    def sync(self) -> None:
        """Have all on disk, as sync(1) does."""
        self.write_back(1.0)
        with self.standstill(), self._journal.open("a") as journal:
            for inode in (self.state / "inodes").iterdir():
                journal.write(f"synced\t{inode.name}\t{inode.stat().st_size}\n")
            for directory, _, _ in os.walk(self.root):
                journal.write(f"named\t{directory}\n")

    def touch(self, name: str) -> None:
        """Create an empty file, as a process does that dies before it syncs the directory."""
        path = self.root / name
        with self.standstill(), self._journal.open("a") as journal:
            path.touch(mode=0o600)
            inode = path.stat().st_ino
            os.link(path, self._inode(inode))
            self._disk(self._inode(inode)).touch()
            journal.write(f"create\t{inode}\t{path}\n")

    def remove(self, name: str) -> None:
        """Delete a file or a directory of the store, by hand."""
        with self.standstill(), self._journal.open("a") as journal:
            if (self.root / name).is_file():
                (self.root / name).unlink()
                journal.write(f"unlink\t{self.root / name}\n")
                return
            for directory, _, files in os.walk(self.root / name, topdown=False):
                for file in files:
                    (Path(directory) / file).unlink()
                    journal.write(f"unlink\t{directory}/{file}\n")
                Path(directory).rmdir()
                journal.write(f"rmdir\t{directory}\n")

    def cut(self, *, sector: int, strict: bool) -> None:
        """The power failed, and is back. All processes are dead."""
        changes = list(changes_of(self._journal.read_text()))
        everything = replayed(str(self.root), changes, ())
        assert everything.names == self._tree(), "the recorder missed a change of names"
        lost = Names(changes, len(changes), strict=strict).some(self._chance)
        found = replayed(str(self.root), changes, lost)
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
            for at, now, synced in different(live.fileno(), disk.fileno(), sector):
                if self._chance.random() < part:
                    os.pwrite(disk.fileno(), now, at)
                else:
                    os.pwrite(live.fileno(), synced, at)
            os.ftruncate(live.fileno(), length)
            os.ftruncate(disk.fileno(), length)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found.lengths[inode] = length

    def _tree(self) -> dict[str, int]:
        found = {}
        for directory, directories, files in os.walk(self.root):
            found.update({f"{directory}/{name}": DIRECTORY for name in directories})
            found.update({f"{directory}/{name}": (Path(directory) / name).stat().st_ino for name in files})
        return found

    def _start_over(self, found: Found) -> None:
        """A journal in which all that is there now is certain."""
        with self._journal.open("w") as journal, (self.state / "data").open("wb") as data:
            for path, inode in sorted(found.names.items()):
                if inode == DIRECTORY:
                    journal.write(f"mkdir\t{path}\nnamed\t{path}\n")
                else:
                    journal.write(f"create\t{inode}\t{path}\nsynced\t{inode}\t{found.lengths[inode]}\n")
            for inode in sorted(set(found.names.values()) - {DIRECTORY}):
                with self._inode(inode).open("rb") as file:
                    for begin, end in extents(file.fileno()):
                        for at in range(begin // PAGE * PAGE, end, PAGE):
                            if any(now := os.pread(file.fileno(), PAGE, at)):
                                journal.write(f"page\t{inode}\t{at}\t{len(now)}\t{data.tell()}\n")
                                data.write(now)
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
