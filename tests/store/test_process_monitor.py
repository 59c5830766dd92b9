"""The process monitor reports the death of a process at once, and never reports a live one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mq.errors import BrokerClosed
from mq.store.shared.members import start_time_of
from mq.store.shared.process_monitor import Watch

SOON = 60.0  # stands for at once on a machine under load


def watching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mq-watch"}


@pytest.fixture
def watch() -> Iterator[Watch]:
    before = watching()
    watch = Watch()
    yield watch
    watch.close()
    assert watching() <= before


class Sleeper:
    """A process that does nothing until it is killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.pid = self.process.pid

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    sleeper = Sleeper()
    yield sleeper
    sleeper.kill()


def test_the_death_of_a_process_is_told(watch: Watch, sleeper: Sleeper) -> None:
    told = threading.Event()
    watch.watch(sleeper.pid, told.set, start_time=start_time_of(sleeper.pid))
    assert not told.is_set()
    sleeper.process.send_signal(signal.SIGKILL)  # Not waited for: a zombie is dead.
    assert told.wait(SOON)
    sleeper.process.wait()


def test_every_watcher_is_told_once(watch: Watch, sleeper: Sleeper) -> None:
    told: list[int] = []
    all_told = threading.Event()

    def tell(number: int) -> None:
        told.append(number)
        if len(told) == 10:
            all_told.set()

    for number in range(10):
        watch.watch(sleeper.pid, lambda number=number: tell(number))  # type: ignore[misc]  # bound to its number
    sleeper.kill()
    assert all_told.wait(SOON)
    assert sorted(told) == list(range(10))


def test_a_watcher_that_stopped_is_not_told(watch: Watch, sleeper: Sleeper) -> None:
    stopped, told = threading.Event(), threading.Event()
    stop = watch.watch(sleeper.pid, stopped.set)
    watch.watch(sleeper.pid, told.set)
    stop()
    stop()
    sleeper.kill()
    assert told.wait(SOON)
    assert not stopped.is_set()


def test_a_process_that_is_dead_already_is_told_of(watch: Watch) -> None:
    sleeper = Sleeper()
    sleeper.kill()
    told = threading.Event()
    watch.watch(sleeper.pid, told.set)
    assert told.wait(SOON)


def test_a_number_that_is_another_process_by_now_is_told_of(watch: Watch) -> None:
    told, alive = threading.Event(), threading.Event()
    watch.watch(os.getpid(), alive.set, start_time=start_time_of(os.getpid()))
    start_time = start_time_of(os.getpid())
    assert start_time is not None
    watch.watch(os.getpid(), told.set, start_time=start_time - 1)
    assert told.wait(SOON)
    assert not alive.is_set()


def test_what_has_no_number_here_is_looked_at(watch: Watch) -> None:
    told, looked = threading.Event(), threading.Event()
    lives = [True]

    def is_gone() -> bool:
        looked.set()
        return not lives[0]

    watch.watch(0, told.set, is_gone=is_gone)
    assert looked.wait(SOON)
    assert not told.is_set()
    lives[0] = False
    assert told.wait(SOON)


# A memoryview of a file that was closed meanwhile raises the latter two.
@pytest.mark.parametrize("kind", [BrokerClosed, IndexError, ValueError])
def test_an_error_of_one_does_not_keep_it_from_the_others(
    watch: Watch, sleeper: Sleeper, kind: type[Exception]
) -> None:
    told = threading.Event()

    def refuse() -> bool:
        raise kind("closed meanwhile")

    watch.watch(sleeper.pid, refuse)
    watch.watch(0, told.clear, is_gone=refuse)
    second = Sleeper()
    watch.watch(second.pid, told.set)
    sleeper.kill()
    second.kill()
    assert told.wait(SOON)
    assert isinstance(watch.last_error, kind)


def descriptor_count() -> int:
    """Of what a watch has: pidfds, and what it sleeps on. What others had, and left, is collected before."""
    gc.collect()
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(path.readlink()).startswith("anon_inode:")
    return count


def test_a_closed_monitor_calls_no_watcher(sleeper: Sleeper) -> None:
    before = descriptor_count()
    watch = Watch()
    told = threading.Event()
    watch.watch(sleeper.pid, told.set)
    watch.close()
    watch.close()
    watch.watch(sleeper.pid, told.set)()
    sleeper.kill()
    assert not told.is_set()
    assert descriptor_count() <= before


def test_a_watcher_may_watch_another_process_and_close(sleeper: Sleeper) -> None:
    watch, done = Watch(), threading.Event()

    def told() -> None:
        watch.watch(os.getpid(), done.clear)
        watch.close()
        done.set()

    watch.watch(sleeper.pid, told)
    sleeper.kill()
    assert done.wait(SOON)
