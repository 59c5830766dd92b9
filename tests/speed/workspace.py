"""build/speed/ of the checkout: where the benchmark keeps what it builds and, for a while, its data.

    build/speed/peers-<python>/       what pip installed; last on sys.path
    build/speed/reference-<digest>/   the compiled reference
    build/speed/data-<random>/        directories of one case, removed after it

The lock is outside of any checkout: one benchmark a machine.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.speed.progress import say

ROOT = Path(__file__).resolve().parents[2] / "build" / "speed"
LOCK = Path(tempfile.gettempdir()) / "mq-speed.lock"
IN_MEMORY = {"tmpfs", "ramfs"}


def peers_directory() -> Path:
    return ROOT / f"peers-{sys.implementation.cache_tag}"


@contextmanager
def locked() -> Iterator[None]:
    """Hold the machine's benchmark lock; waits for another benchmark to end."""
    descriptor = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another benchmark holds {LOCK}; waiting for it to end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def fresh(parent: Path, prefix: str = "turn-") -> Iterator[Path]:
    """A new directory, removed on the way out."""
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settle(memory_size: int) -> None:
    """Put the machine into the same state before every turn; called right before what is timed.

    What earlier turns left dirty is written out. Then `memory_size` of free memory is touched and freed: a
    virtual machine gives memory that was free for seconds back to its host, and the process that touches it
    next pays some 8 µs a page. By chance, that made memcpy into a fresh file ten times slower, or did not.
    """
    os.sync()
    if memory_size:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, memory_size, flags=flags).close()


def allocated_size(directory: Path) -> int:
    """The bytes of disk that the files below `directory` occupy; holes do not count."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def file_system(directory: Path) -> str:
    """The type of the file system that `directory` is on, "" where the kernel does not say."""
    longest, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        below = str(directory).startswith(mount.rstrip("/") + "/")
        if below and len(mount) >= len(longest):
            longest, kind = mount, name
    return kind
