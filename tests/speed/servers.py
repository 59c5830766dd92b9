"""What a case has clients connect to: a broker of RocketMQ 5.3, and processes that serve a store of mq.

Both keep their data below the case's own directory. RocketMQ has the JVM's own compilers and collector, and
flushes as a case says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import mq
from tests.speed.consuming import QUEUE_COUNT
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.servers import Broker
from tests.support.cluster.settings import BrokerPlan
from tests.support.cluster.shared import unique_name
from tests.support.processes.cpu_time import cpu_seconds

__all__ = ["RealBroker", "StoreServer", "new_topic", "real_broker", "serving"]

TITLE = "RocketMQ 5.3.3"
TIMEOUT_SECONDS = 30.0
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RealBroker:
    """A broker of RocketMQ that runs, with its name server."""

    name_server: str
    broker: Broker

    @contextmanager
    def resting(self) -> Iterator[None]:
        """It gets no processor time meanwhile: an idle broker of 5.3 uses some."""
        self.broker.pause()
        try:
            yield
        finally:
            self.broker.resume()


@contextmanager
def real_broker(directory: Path, flush: str = "ASYNC_FLUSH") -> Iterator[RealBroker]:
    """A broker on an empty directory; ended and gone afterwards."""
    store = directory / "rocketmq"
    settings = {
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "flushDiskType": flush,
    }
    plan = BrokerPlan("a", settings=settings, at_full_speed=True)
    with Cluster([plan]) as cluster:
        yield RealBroker(cluster.name_server, cluster.brokers["a"])


class StoreServer:
    """A process that serves a directory of mq on ports of its own."""

    def __init__(self, directory: Path, ha_port: int | None = None) -> None:
        arguments = [str(directory.resolve()), *([] if ha_port is None else [str(ha_port)])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.speed.serve_store", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self._process.stdout is not None
        addresses = self._process.stdout.readline().split()
        if not addresses:
            self.close()
            raise RuntimeError(f"the process that serves ended with {self._process.returncode}")
        self.name_server, self.address = addresses[:2]
        self.ha_address = addresses[2] if len(addresses) > 2 else None
        self.pid = self._process.pid

    @property
    def pulled(self) -> int:
        """How many messages it has given to clients so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @property
    def cpu_seconds(self) -> float:
        """The processor time that its threads have used so far."""
        return cpu_seconds(self.pid)

    @property
    def rss_bytes(self) -> int:
        """The memory that it holds now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """End it, and wait."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(
    directory: Path, processes: int = 1, ha_port: int | None = None
) -> Iterator[Sequence[StoreServer]]:
    """So many processes that serve one directory, each on ports of its own."""
    with ExitStack() as open_ones:
        servers = []
        for _ in range(processes):
            servers.append(StoreServer(directory, ha_port))
            open_ones.callback(servers[-1].close)
        yield servers


def new_topic(name_server: str, queue_count: int = QUEUE_COUNT) -> str:
    """The name of a topic that is made for the caller."""
    name = unique_name("speed")
    with mq.open(f"rocketmq://{name_server}", timeout=TIMEOUT_SECONDS) as broker:
        broker.create_topic(name, queue_count)
    return name
