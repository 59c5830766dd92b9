"""A wait for a lock of staged files does not last forever if the holder is stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from mq.spark.sink import commit, stage_lock, staging
from mq.spark.sink.ledger import Step, key_of
from mq.spark.sink.stage_lock import take_lock, touch_lock
from mq.spark.sink.staging import commit_lock, sink_directory
from mq.store.directory.owner import open_made
from tests.spark.committers import TOPIC, TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.spark.epochs import SEVERAL, commit_one, half_done, staged_files
from tests.support.store.small_store import open_small

HOLDER = """
import sys
from pathlib import Path
from mq.spark.sink.staging import commit_lock
with commit_lock(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.readline()
"""
ROOT = Path(__file__).parents[3]


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic(TOPIC, 2)
        yield broker


@pytest.fixture
def holder(broker: LocalBroker) -> Iterator[subprocess.Popen[bytes]]:
    """A process that commits, and is stopped meanwhile."""
    place = sink_directory(broker.path, key_of(TXN))
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"mine\n"
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LOCK_TIMEOUT", 0.05)


def goes_on(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGCONT)
    child.communicate(b"\n")


def dies(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way_out", [goes_on, dies])
@pytest.mark.parametrize("is_half_done", [False, True])
def test_a_commit_does_not_wait_for_one_that_is_stopped(
    broker: LocalBroker,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_half_done: bool,
    way_out: Callable[[subprocess.Popen[bytes]], None],
    request: pytest.FixtureRequest,
) -> None:
    if is_half_done:
        half_done(broker)
    before = bodies_of(broker)
    holder: subprocess.Popen[bytes] = request.getfixturevalue("holder")
    staged = stage_epoch(broker.path, 0, rows_of(0, 1))
    with pytest.raises(SparkError) as caught:
        commit.commit_epoch(broker, TXN, TXN, 0, staged, chunk_bytes=SEVERAL)
    assert caught.value.code == "MQ_STAGING_LOCKED"
    lock = sink_directory(directory, TXN) / "lock"
    said = f"{lock} is locked by process {holder.pid}, which is stopped, and for "
    assert said in str(caught.value)
    for advice in (f"kill -CONT {holder.pid}", f"kill -9 {holder.pid}", "then run this again"):
        assert advice in str(caught.value)
    with pytest.raises(SparkError, match=r"\[MQ_STAGING_LOCKED\]"):
        commit.discard_epoch(broker, TXN, staged)
    assert bodies_of(broker) == before
    way_out(holder)
    # What was staged is there still, and so another try does it: the same, or with a query that began again.
    steps = commit.commit_epoch(broker, TXN, TXN, 0, staged, chunk_bytes=SEVERAL)
    assert steps == [Step.FINISH if is_half_done else Step.APPEND]
    assert commit_one(broker, 0, 2) == [Step.SKIP]
    assert commit_one(broker, 1) == [Step.APPEND]
    assert wrong_with(bodies_of(broker), 2) == []
    assert staged_files(broker) == []


def test_others_are_planned_while_one_is_stopped(
    broker: LocalBroker, holder: subprocess.Popen[bytes]
) -> None:
    (sink_directory(broker.path, TXN) / "unfinished").touch()
    commit.tidy(broker.path, lambda: broker)
    assert commit_one(broker, 0, txn="another") == [Step.APPEND]
    assert holder.poll() is None


class Silence:
    """A clock that advances while a process waits for a lock, with events in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.now = 1000.0
        self.happens: list[Callable[[], object]] = []
        self._file = file

    def take_lock(self, timeout: float) -> bool:
        return take_lock(self._file, timeout, clock=lambda: self.now, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        assert 0 < seconds <= stage_lock.PAUSE_MAX
        self.now += 10
        if self.happens:
            self.happens.pop(0)()


def test_a_lock_holder_with_heartbeats_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    times = iter(range(1, 100))

    def lives() -> None:
        touch_lock(path)
        os.utime(path, ns=(0, next(times)))  # However coarse the times of this file system are.

    with path.open("ab") as mine, path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        silence = Silence(mine)
        assert not silence.take_lock(60)
        assert silence.now == 1060
        silence.happens = [lives] * 20
        assert not silence.take_lock(60)
        assert silence.now == 1060 + 20 * 10 + 60
        silence.happens = [*[lives] * 20, lambda: fcntl.flock(other, fcntl.LOCK_UN)]
        assert silence.take_lock(60)
        assert not Silence(other).take_lock(0)


def test_each_step_of_a_commit_shows_life(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(staging, "touch_lock", shown.append)
    commit_one(broker, 0)
    steps = len(bodies_of(broker)) // 3 + len(rows_of(0, 0))  # chunks, and files that are forced
    assert len(shown) > steps
    assert set(shown) == {sink_directory(broker.path, TXN) / "lock"}


def test_another_waiter_is_no_heartbeat(tmp_path: Path) -> None:
    place = tmp_path / "app"
    with commit_lock(place):
        os.utime(place / "lock", ns=(0, 5))
        with commit_lock(place, wait=False) as is_mine:
            assert not is_mine
        assert (place / "lock").stat().st_mtime_ns == 5


def test_a_lock_ends_with_its_commit_though_the_open_file_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a process was forked meanwhile, which has it too."""
    copies: list[int] = []

    def opened(*arguments: Any) -> int:
        fd = open_made(*arguments)
        copies.append(os.dup(fd))
        return fd

    monkeypatch.setattr(staging, "open_made", opened)
    with commit_lock(tmp_path / "app"):
        pass
    with commit_lock(tmp_path / "app", wait=False) as is_mine:
        assert is_mine
    assert copies
    for copy in copies:
        os.close(copy)


@pytest.mark.usefixtures("impatient")
def test_a_task_does_not_wait_for_a_looker_that_is_stopped(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check whether a file is being written locks it for that moment."""
    lookers = list[IO[bytes]]()

    def opened(path: str, *arguments: Any) -> int:
        fd = open_made(path, *arguments)
        if path.endswith(staging.SUFFIX):
            lookers.append(os.fdopen(os.open(path, os.O_RDONLY), "rb"))
            fcntl.flock(lookers[-1], fcntl.LOCK_SH)
        return fd

    with monkeypatch.context() as patch:
        patch.setattr(staging, "open_made", opened)
        with pytest.raises(SparkError, match=r"\[MQ_STAGING_LOCKED\] .*\.arrow is locked by process"):
            stage_epoch(broker.path, 0, rows_of(0, 0))
    assert staged_files(broker) == []
    for looker in lookers:
        looker.close()
    assert commit_one(broker, 0) == [Step.APPEND]
    assert wrong_with(bodies_of(broker), 1) == []


def test_a_holder_that_the_kernel_does_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of another container."""
    path = tmp_path / "lock"
    monkeypatch.setattr(stage_lock, "LOCKS", tmp_path / "none")
    with path.open("ab") as file:
        said = str(stage_lock.lock_timeout_error(path, file))
    assert said.startswith(f"[MQ_STAGING_LOCKED] {path} is locked by another process")
    assert "let it go on, or end it" in said
