"""Members are killed at any instruction: no queue has two owners, no offset falls, no dead member stays.

Judged from a trace that the members append to. MQ_GROUP_KILLS=1000 kills more of them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.broker.claimer import Claimer
from tests.support.store.small_store import open_small

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("MQ_GROUP_KILLS", "15"))
LIVING = 4


@pytest.mark.crash
def test_members_killed_at_random_leave_everything_in_order(tmp_path: Path) -> None:
    directory, trace = tmp_path / "store", tmp_path / "trace"
    trace.touch()
    chance = random.Random(7)
    with open_small(directory) as broker:
        broker.create_topic("orders", 6)
        living: list[subprocess.Popen[bytes]] = []

        def kill(victim: subprocess.Popen[bytes]) -> None:
            victim.kill()
            victim.wait()
            with trace.open("a") as file:
                file.write(f"{victim.pid} killed 0 0\n")

        try:
            for _ in range(KILLS):
                while len(living) < LIVING:
                    living.append(started(directory, chance.randrange(1 << 30), trace))
                time.sleep(chance.random() * 0.6)
                victim = living.pop(chance.randrange(len(living)))
                assert victim.poll() is None, "it failed before it was killed"
                kill(victim)
            deadline = time.monotonic() + 60
            while trace.read_text().count("\n") <= KILLS * 10:
                assert time.monotonic() < deadline, "the live members do nothing"
                time.sleep(0.05)
        finally:
            for process in living:
                kill(process)
        highest = judged(trace)
        group = broker.group("billing")
        assert group.members() == []
        assert {state.owner for state in group.states("orders")} == {None}
        committed = {queue.queue_id: offset for queue, offset in group.offsets("orders").items()}
        assert committed.keys() >= highest.keys()
        assert all(committed[queue_id] >= offset for queue_id, offset in highest.items())


def started(directory: Path, seed: int, trace: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", Claimer.__module__, str(directory), str(seed), str(trace)]
    return subprocess.Popen(command, cwd=ROOT)


def judged(trace: Path) -> dict[int, int]:
    """Queue id to the highest offset that any member saw. Fails at the first invalid line."""
    owner: dict[int, int] = {}
    highest: dict[int, int] = {}
    lines = [line.split() for line in trace.read_text().splitlines()]
    for at, (pid_text, what, queue_text, offset_text) in enumerate(lines):
        pid, queue_id, offset = int(pid_text), int(queue_text), int(offset_text)
        if what == "killed":
            continue
        if what == "enter" and owner.get(queue_id, pid) != pid:
            # The kill is written down after it happened, and the next owner may be quicker than that.
            former = owner[queue_id]
            assert [str(former), "killed", "0", "0"] in lines, f"line {at}: {former} still has {queue_id}"
            assert not any(int(line[0]) == former and line[1] != "killed" for line in lines[at:])
        elif what != "enter":
            assert owner.get(queue_id) == pid, f"line {at}: {pid} does not have {queue_id}"
        assert offset >= highest.get(queue_id, 0), f"line {at}: the offset of {queue_id} fell"
        highest[queue_id] = offset
        owner[queue_id] = pid
        if what == "exit":
            del owner[queue_id]
    assert len(lines) > KILLS * 10
    return highest
