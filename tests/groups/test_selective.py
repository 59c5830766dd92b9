"""A tag that one message in a hundred has: the others are never read from the log."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

import pytest

import mq

COUNT = 10_000
SELECTED = 100  # one of so many
BODY_SIZE = 16 << 10
SHARE_MAX = 0.02

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def drop(path: Path) -> None:
    """Have nothing of a file in memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def resident(path: Path, size: int) -> int:
    """Pages of the first `size` bytes of a file that are in memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        assert libc.mincore(address, size, pages) == 0, os.strerror(ctypes.get_errno())
        libc.munmap(address, size)
    finally:
        os.close(fd)
    return sum(page & 1 for page in pages.raw)


@pytest.mark.timeout(120)
def test_a_rare_tag_reads_few_pages_of_the_log(directory: Path) -> None:
    with mq.open(directory, commitlog_file_size=32 << 20) as broker, mq.Producer(broker) as producer:
        topic = broker.create_topic("events", 1)
        body = os.urandom(BODY_SIZE)
        for begin in range(0, COUNT, SELECTED):
            rare = begin % 97 if begin % 97 < SELECTED else 0
            producer.send_batch(
                [
                    mq.Message("events", body, tags="rare" if begin + at == begin + rare else "usual")
                    for at in range(SELECTED)
                ],
                queue=topic.queues[0].message_queue,
            )
        end = topic.queues[0].read(COUNT - 1).messages[0].log_offset
    files = sorted((directory / "commitlog").iterdir())
    assert len(files) > 1
    sizes = [min(32 << 20, end - number * (32 << 20)) for number in range(len(files))]
    files, sizes = files[:-1], sizes[:-1]  # The end of the log is made ready to be written, and so in memory.
    for path in files:
        drop(path)
    if sum(map(resident, files, sizes)) > sum(sizes) // mmap.PAGESIZE // 100:
        pytest.skip("this file system keeps files in memory: nothing can be told")

    found: list[int] = []
    done = threading.Event()

    def listen(message: mq.MessageExt) -> None:
        found.append(message.queue_offset)
        if len(found) == COUNT // SELECTED:
            done.set()

    with mq.open(directory) as broker, mq.PushConsumer(broker, "rare") as consumer:
        consumer.subscribe("events", "rare", listener=listen)
        consumer.start()
        assert done.wait(60), len(found)
    read = sum(map(resident, files, sizes))
    total = sum(-(-size // mmap.PAGESIZE) for size in sizes)
    print(f"{len(found)} of {COUNT:,} messages read {read:,} of {total:,} pages: {read / total * 100:.2f} %")
    assert len(set(found)) == COUNT // SELECTED
    assert read < total * SHARE_MAX
