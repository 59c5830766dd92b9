"""The disk is full while the wheel is made, or written to, or its log grows: an error, and never a signal.

What is in the wheel comes all the same, and nothing is lost: what could not be put in is put in later. A
small file system is mounted for this, if the user may.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.errors import StoreFull
from mq.store.timer import timer_log
from tests.support.store.sleeping import asleep
from tests.support.store.timers import BEGIN_MS, Bench
from tests.support.threads import threads_named

HOUR = 3_600_000
KINDS = ["tmpfs"] if os.geteuid() == 0 else []


@contextmanager
def no_room(bench: Bench) -> Iterator[None]:
    """All the space that is left is another's."""
    # A search for room ahead of the log's end that is under way gives some back where it finds too little.
    for thread in threads_named("mq-prepare"):
        asleep(os.getpid(), thread.native_id)
    ballast = bench.root.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"b" * size)
            except OSError:
                continue
    yield
    ballast.unlink()


@pytest.fixture(params=KINDS)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", request.param, "-o", "size=48m", "none", place], check=True)
    try:
        with Bench(place / "store") as bench:
            yield bench
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def finish(bench: Bench, sent: set[str], waiting: int | None = None) -> None:
    bench.turn()
    assert bench.progress.pending() == (len(sent) if waiting is None else waiting)
    bench.now_ms += 100_000
    bench.turn()
    assert {message.msg_id for message in bench.delivered()} == sent


def test_no_wheel_can_be_made(bench: Bench) -> None:
    sent = {bench.put_aside(BEGIN_MS + 100)}
    with no_room(bench):
        for _ in range(3):
            with pytest.raises(StoreFull):
                bench.turn()
    finish(bench, sent)


def test_no_slot_can_be_written_to(bench: Bench) -> None:
    sent = {bench.put_aside(BEGIN_MS + 50_000)}
    bench.turn()
    later = bench.put_aside(BEGIN_MS + 3 * HOUR)
    with no_room(bench):
        for _ in range(3):
            with pytest.raises(StoreFull):
                bench.turn()
        assert (bench.progress.enqueued(), bench.progress.pending()) == (1, 1)
    bench.turn()
    assert (bench.progress.enqueued(), bench.progress.pending()) == (2, 2)
    bench.now_ms += 4 * HOUR
    finish(bench, sent | {later}, waiting=0)


def test_what_is_in_the_wheel_comes_though_its_log_cannot_grow(bench: Bench) -> None:
    first = bench.put_aside(BEGIN_MS + 500)
    bench.turn()
    bench.copies.number("orders", 0, add=True)
    sent = {bench.put_aside(BEGIN_MS + 30_000) for _ in range(bench.file_size // timer_log.UNIT_SIZE + 100)}
    with no_room(bench):
        bench.now_ms += 600
        with pytest.raises(StoreFull):
            bench.turn()
        assert 0 < bench.progress.pending() < len(sent)
    bench.turn()
    assert first in {message.msg_id for message in bench.delivered()}
    finish(bench, sent)
