"""What another thread does for the main one does not wait for locks that the main thread has meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.fastpath import Guard
from mq.store.shared.lock_guards import file_lock, thread_locks
from mq.uninterrupted import handed_over, uninterrupted
from tests.support.interrupting import Interrupted, called_at
from tests.support.store.small_store import SMALL

Locked = Callable[[], Guard]

PATIENCE = 60.0
BYTE = 7


@contextmanager
def handled_by(handler: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """A function that has the main thread run this, as a signal handler."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        handler()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def of_threads(path: Path) -> Locked:
    """What locks something among threads."""
    return thread_locks(path, "reading or writing marks")


def of_a_file(path: Path) -> Locked:
    return lambda: file_lock(path, BYTE, "changing it")


class Work:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    @handed_over
    def close(self) -> None:
        self._work()


@pytest.mark.parametrize("made", [of_threads, of_a_file])
@pytest.mark.parametrize("is_method", [False, True])
def test_a_lock_of_the_thread_that_waits_is_refused_at_once(
    made: Callable[[Path], Locked], is_method: bool, tmp_path: Path
) -> None:
    locked, refused = made(tmp_path / "locked"), list[str]()

    def take() -> None:
        try:
            with locked():
                raise AssertionError
        except mq.StoreLocked as error:
            refused.append(str(error))

    with locked():
        if is_method:
            Work(take).close()
        else:
            uninterrupted(take)
    assert len(refused) == 1
    assert "signal handler" in refused[0]


def test_a_lock_that_its_handler_takes_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    locked, taken = of_threads(tmp_path / "locked"), list[bool]()
    has_lock, is_waited_for = threading.Event(), threading.Event()

    def handler() -> None:
        with locked():
            has_lock.set()
            is_waited_for.wait(PATIENCE)

    def take() -> None:
        interrupt()
        assert has_lock.wait(PATIENCE)
        threading.Timer(0.05, is_waited_for.set).start()
        with locked():
            taken.append(is_waited_for.is_set())

    with handled_by(handler) as interrupt:
        uninterrupted(take)
    assert taken == [True]


def test_a_lock_is_waited_for_once_nobody_waits_for_the_work(tmp_path: Path) -> None:
    """The thread that had the work done goes on then, and gives the lock back."""
    locked, goes_on, done = of_threads(tmp_path / "locked"), threading.Event(), threading.Event()

    def handler() -> None:
        raise Interrupted

    def take() -> None:
        interrupt()
        assert goes_on.wait(PATIENCE)
        with locked():
            done.set()

    with handled_by(handler) as interrupt:
        with locked():
            with pytest.raises(Interrupted):
                uninterrupted(take)
            goes_on.set()
            assert not done.wait(0.05)
        assert done.wait(PATIENCE)


def test_a_handler_that_deletes_the_group_whose_keys_its_thread_reads_is_refused(directory: Path) -> None:
    with mq.open(directory, **SMALL) as broker:
        handled = mq.Once(broker, "billing", size=20)
        refused = [error for at in range(200) if (error := deletion_within(broker, handled, at)) is not None]
    assert refused
    for error in refused:
        assert error.pid == os.getpid()
        assert "signal handler" in str(error)


def deletion_within(broker: LocalBroker, handled: mq.Once, at: int) -> mq.StoreLocked | None:
    """What a deletion raises that a signal handler makes at this instruction of handled.seen()."""
    refused: list[mq.StoreLocked] = []

    def delete() -> None:
        try:
            broker.group("billing").delete()
        except mq.StoreLocked as error:
            refused.append(error)

    called_at(lambda: handled.seen("1"), at, delete)
    return refused[0] if refused else None
