"""The servers that the tests of clusters stand on: quick to start, small, and gone with who started them.

Servers that die, stop, come back, stand in for another and refuse: see test_trouble.py, where mq meets them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.shared import ROOT
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]


HOLDER = """
import sys, time
from tests.support.cluster.cluster import Cluster
with Cluster() as cluster:
    print(cluster.brokers["a"].pid, cluster.name_servers[0].pid, flush=True)
    time.sleep(600)
"""


def test_no_server_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    # It leaves its files behind.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=ROOT, text=True, env=environment
    )
    assert holder.stdout is not None
    pids = [int(pid) for pid in holder.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()

    eventually(lambda: not any(map(is_running, pids)), lambda: pids)


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # It was reaped before, or between open and read.
        return False


def test_starts_are_quick_and_small() -> None:
    """Generous bounds: the figures of a quiet machine are a tenth of them."""
    began = time.monotonic()
    with Cluster() as cluster:
        assert time.monotonic() - began < 120
        servers = [*cluster.name_servers, *cluster.brokers.values()]
        assert sum(server.rss_bytes for server in servers) < 1 << 30
