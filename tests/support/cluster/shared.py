"""One cluster of each kind for all processes of a test run, whichever of them needs it first.

A test that asks for the cluster takes a shared lock on a file for as long as its process lives. The first one
starts a keeper, which starts the servers, writes down their addresses, and ends when it gets that lock for
itself: no process of the run is left then, however it ended. A test that uses this cluster stops none of its
servers and names its topics and groups by unique_name().
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.programs import Version
from tests.support.cluster.settings import BrokerPlan

ROOT = Path(__file__).resolve().parents[3]
PROMPT_CHECKS = {"transactionTimeOut": 300, "transactionCheckInterval": 300}
PROMPT = {
    "timerMaxDelaySec": 7200,
    "timerPrecisionMs": 100,
    **PROMPT_CHECKS,
    "transactionOpBatchInterval": 100,
}
KINDS: Mapping[str, tuple[Version, tuple[BrokerPlan, ...]]] = {
    "5.3": ("5.3", (BrokerPlan("a"), BrokerPlan("b"))),
    "4.9": ("4.9", (BrokerPlan("a", "4.9"),)),
    # A topic has the queues it is made with, as in a directory.
    "5.3-single": ("5.3", (BrokerPlan("a", settings=PROMPT),)),
    "4.9-single": ("4.9", (BrokerPlan("a", "4.9", settings=PROMPT_CHECKS),)),
}
START_SECONDS = 600.0  # The first start ever waits for Maven as well.


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """Where a cluster is that others use, too."""

    version: Version
    name_server: str
    brokers: dict[str, str]  # label -> address

    def clients(self, *, version: Version | None = None) -> JavaClients:
        """RocketMQ's Java clients, by default of the servers' version."""
        return JavaClients(self.name_server, version=version or self.version)


def unique_name(what: str) -> str:
    """A name for a topic or a group that no other test has."""
    return f"{what}-{uuid.uuid4().hex[:12]}"


@cache
def attached(kind: str) -> SharedCluster:
    """The run's cluster of this kind, from now on for the life of the process. Kinds: see KINDS."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"pid-{os.getpid()}")
    place = Path(tempfile.gettempdir()) / f"mq-shared-{os.getuid()}-{run}-{kind}"
    place.mkdir(mode=0o700, exist_ok=True)
    users = (place / "users").open("a")
    fcntl.flock(users, fcntl.LOCK_SH)
    _held.append(users)
    with (place / "start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not (place / "cluster.json").exists():
            _start_keeper(place, kind)
    return SharedCluster(**json.loads((place / "cluster.json").read_text()))


_held: list[IO[str]] = []  # the locks, given up when the process ends


def _start_keeper(place: Path, kind: str) -> None:
    log = place / "keeper.log"
    with log.open("wb") as said:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(place), kind],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=ROOT,
            start_new_session=True,
        )
    until = time.monotonic() + START_SECONDS
    while not (place / "cluster.json").exists():
        if keeper.poll() is not None or time.monotonic() > until:
            keeper.kill()
            raise RuntimeError(f"the shared cluster does not start:\n{log.read_text()}")
        time.sleep(0.05)
    keeper.returncode = 0  # Not waited for: it outlives this process if others still use the cluster.


def keep(place: Path, kind: str) -> None:
    """Run the cluster until no process uses it any more."""
    version, plans = KINDS[kind]
    with (place / "users").open("a") as users, Cluster(plans, version=version) as cluster:
        where = SharedCluster(
            version,
            cluster.name_server,
            {label: broker.address for label, broker in cluster.brokers.items()},
        )
        written = place / "cluster.json.new"
        written.write_text(json.dumps(asdict(where)))
        written.rename(place / "cluster.json")
        while True:
            time.sleep(0.5)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            break
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])
