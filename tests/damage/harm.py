"""Ways to damage a store's files, and to put them back.

A seed stands for one damage, so that a failure can be had again. Files are put back into the very inodes that
they had, since a store believes its control file only where it was made: a link to each is kept outside.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

TIMES_KEPT = {"lock"}  # Whether a RocketMQ broker was here is told by this file's mtime.


@dataclass(frozen=True)
class _File:
    pieces: tuple[tuple[int, bytes], ...]  # what is between holes: most of a timer wheel was never touched
    size: int
    times_ns: tuple[int, int]

    @property
    def data(self) -> bytes:
        """Without the zeros at its end."""
        data = bytearray(self.pieces[-1][0] + len(self.pieces[-1][1]) if self.pieces else 0)
        for at, piece in self.pieces:
            data[at : at + len(piece)] = piece
        return bytes(data).rstrip(b"\0")


def _read(path: Path) -> _File:
    status = path.stat()
    pieces = []
    with path.open("rb") as file:
        try:
            at = os.lseek(file.fileno(), 0, os.SEEK_DATA)
            while True:
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                pieces.append((at, os.pread(file.fileno(), end - at, at)))
                at = os.lseek(file.fileno(), end, os.SEEK_DATA)
        except OSError:
            pass  # No data from here on.
    used = ((at, piece.rstrip(b"\0")) for at, piece in pieces)
    times_ns = status.st_atime_ns, status.st_mtime_ns
    return _File(tuple((at, piece) for at, piece in used if piece), status.st_size, times_ns)


class Snapshot:
    """The files of a directory as they are now, and the way back to them."""

    def __init__(self, root: Path, aside: Path) -> None:
        self.root = root
        self._aside = aside
        aside.mkdir()
        self.files = {
            str(path.relative_to(root)): _read(path) for path in sorted(root.rglob("*")) if path.is_file()
        }
        self._directories = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_dir()]
        self._links = {name: aside / str(number) for number, name in enumerate(self.files)}
        for name, link in self._links.items():
            os.link(root / name, link)

    def restore(self, *, copied: bool = False) -> None:
        """copied: into new inodes, as `cp -a` does."""
        shutil.rmtree(self.root)
        self.root.mkdir(mode=0o700)
        for name in self._directories:
            (self.root / name).mkdir(mode=0o700)
        for name, file in self.files.items():
            link = self.root / name if copied else self._links[name]
            fd = os.open(link, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                for at, piece in file.pieces:
                    os.pwrite(fd, piece, at)
                os.ftruncate(fd, file.size)
            finally:
                os.close(fd)
            if copied or name in TIMES_KEPT:
                os.utime(link, ns=file.times_ns)
            if not copied:
                os.link(link, self.root / name)


def choose(random_: random.Random, snapshot: Snapshot, *, but: str = "") -> str:
    """A file: the log, the queues and the control file more often than the others."""
    names = [name for name in snapshot.files if not but or not name.startswith(but)]
    weights = [4 if name.split("/")[0] in ("commitlog", "mq") else 2 for name in names]
    return random_.choices(names, weights)[0]


def flip(random_: random.Random, path: Path, used: int, size: int) -> str:
    """Some bits or bytes, mostly where something is."""
    if size == 0:
        path.write_bytes(random_.randbytes(random_.randrange(1, 50)))
        return "bytes in an empty file"
    at = random_.randrange(min(size, used + 64)) if random_.random() < 0.95 else random_.randrange(size)
    kind = random_.randrange(8)
    with path.open("r+b") as file:
        if kind < 4:
            for _ in range(random_.choice((1, 1, 1, 2, 8))):
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << random_.randrange(8)]))
                at = random_.randrange(min(size, used + 64))
            return f"bits flipped, the last near {at}"
        length = min(random_.choice((1, 2, 4, 8, 16, 100, 4096)), size - at)
        file.seek(at)
        if kind == 4:
            new = random_.randbytes(length)
        elif kind == 5:
            new = bytes(length)
        elif kind == 6:
            new = b"\xff" * length
        else:
            # Well-formed bytes in a wrong place: what a misdirected write leaves.
            file.seek(random_.randrange(max(1, used)))
            new = file.read(length)
        file.seek(at)
        file.write(new)
    return f"{length} bytes at {at} overwritten ({kind})"


NAMES = (
    "0" * 20, f"{1 << 14:020}", f"{3 << 14:020}", f"{640:020}", f"{1 << 40:020}",
    "9" * 20, "\u0660" * 20, "²" * 20,
    "a", ".hidden", "topics.json", "20261121094500123", "99999999999999999", "new\nline", "ä" * 100,
)  # fmt: skip


def unmake(random_: random.Random, root: Path, name: str, outside: Path) -> str:
    """Do to a whole file what people and file systems do."""
    path = root / name
    data = path.read_bytes()[: 1 << 20]
    kind = random_.randrange(9)
    if kind == 0:
        size = random_.randrange(path.stat().st_size + 1)
        os.truncate(path, size)
        return f"cut to {size}"
    if kind == 1:
        os.truncate(path, path.stat().st_size + random_.choice((1, 20, 4096, 1 << 14)))
        return "longer"
    if kind == 2:
        os.truncate(path, 0)
        return "empty"
    if kind == 3:
        path.unlink()
        return "deleted"
    if kind == 4:
        path.unlink()
        path.mkdir()
        return "a directory"
    if kind == 5:
        path.unlink()
        path.symlink_to(outside)
        return "a link out of the directory"
    if kind == 6:
        path.unlink()
        path.symlink_to(path)
        return "a link to itself"
    if kind == 7:
        # In the order of their names: the order in which a directory is listed is another one elsewhere.
        directories = sorted(p for p in [root, *root.rglob("*")] if p.is_dir())
        stranger = random_.choice(directories) / random_.choice(NAMES)
        if stranger.is_dir():
            return "nothing"
        stranger.write_bytes(random_.choice((b"", b"\0" * 640, random_.randbytes(100), data)))
        return f"beside it: {stranger.relative_to(root)!s}"
    if path.parent == root:
        path.unlink()
        return "deleted"
    parent = path.parent
    shutil.rmtree(parent)
    if random_.random() < 0.5:
        parent.write_bytes(b"a file")
        return "its directory a file"
    return "its directory deleted"
