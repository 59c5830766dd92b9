"""What errors say of the process that is waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.store.shared.process_state import ProcessKind, describe, process_state


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def wait_for(pid: int, kind: ProcessKind) -> None:
    deadline = time.monotonic() + 30
    while process_state(pid).kind is not kind:
        assert time.monotonic() < deadline, process_state(pid)
        time.sleep(0.005)


def test_a_running_process_is_told_with_the_time_of_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    state = process_state(sleeper.pid)
    assert state.kind is ProcessKind.RUNNING
    assert not state.is_stopped
    assert state.since_s is not None
    assert abs(state.since_s - time.time()) < 60
    assert f"process {sleeper.pid}" in describe(sleeper.pid)
    assert "running since 20" in describe(sleeper.pid)


def test_a_stopped_process_is_told_with_what_lets_it_go_on(sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_for(sleeper.pid, ProcessKind.STOPPED)
    assert process_state(sleeper.pid).is_stopped
    assert f"process {sleeper.pid} (sleep), which is stopped" in describe(sleeper.pid)
    assert f"kill -CONT {sleeper.pid}" in describe(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGCONT)
    wait_for(sleeper.pid, ProcessKind.RUNNING)


def test_a_process_that_ended_is_gone_also_before_its_parent_knows(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    wait_for(sleeper.pid, ProcessKind.GONE)
    sleeper.wait()
    assert process_state(sleeper.pid).kind is ProcessKind.GONE
    assert "is gone" in describe(sleeper.pid)


@pytest.mark.parametrize("pid", [None, 0, -1])
def test_no_pid_is_a_process_that_is_not_known(pid: int | None) -> None:
    assert "not known" in describe(pid)
    assert process_state(pid or 0).kind is ProcessKind.UNKNOWN


STAT = "7 (a (b) c) S 1" + " 0" * 17 + " 100" + " 0" * 30
V2, V1, HYBRID = "0::/app/x.scope\n", "5:cpu:/\n4:freezer:/app\n", "4:freezer:/\n0::/app\n"


@pytest.mark.parametrize(
    ("cgroup", "file", "held", "free"),
    [
        (V2, "app/x.scope/cgroup.events", "populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"),
        (V1, "freezer/app/freezer.state", "FROZEN\n", "THAWED\n"),
        (V1, "freezer/app/freezer.state", "FROZEN\n", "FREEZING\n"),
        (HYBRID, "unified/app/cgroup.events", "frozen 1\n", "frozen 0\n"),
    ],
)
def test_a_process_of_a_frozen_cgroup_is_stopped(
    tmp_path: Path, cgroup: str, file: str, held: str, free: str
) -> None:
    process, state = tmp_path / "proc/7", tmp_path / "sys/fs/cgroup" / file
    process.mkdir(parents=True)
    (process / "stat").write_text(STAT)
    assert process_state(7, tmp_path).kind is ProcessKind.RUNNING
    (process / "cgroup").write_text(cgroup)
    assert process_state(7, tmp_path).kind is ProcessKind.RUNNING
    state.parent.mkdir(parents=True)
    state.write_text(held)
    assert process_state(7, tmp_path).kind is ProcessKind.FROZEN
    assert process_state(7, tmp_path).is_stopped
    said = "process 7 (a (b) c), which is stopped by the freezer of its cgroup: thaw its container"
    assert said in describe(7, tmp_path)
    state.write_text(free)
    assert process_state(7, tmp_path).kind is ProcessKind.RUNNING
    (process / "stat").write_text(STAT.replace(" S ", " T "))
    state.write_text(held)
    assert process_state(7, tmp_path).kind is ProcessKind.STOPPED
