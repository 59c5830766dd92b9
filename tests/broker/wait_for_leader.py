"""Wait for the leader of a store, as the processes that share the store see it."""

from __future__ import annotations

import time
from pathlib import Path

import mq
from tests.support.insides import leader_pid
from tests.support.processes.nursery import Process

__all__ = ["wait_for_duties"]

PATIENCE = 60.0


def wait_for_duties(root: Path, process: Process) -> None:
    """Until this process has them."""
    deadline = time.monotonic() + PATIENCE
    while not (root / "mq" / "control").exists():
        assert time.monotonic() < deadline, "no process opens the store"
        time.sleep(0.002)
    with mq.open(root, read_only=True) as broker:
        while leader_pid(broker) != process.pid:
            assert time.monotonic() < deadline, "another process has the duties, or none"
            time.sleep(0.002)
