"""A whole cluster for tests: name servers, masters and slaves, and the way to reach them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from tests.support.cluster.access import Access, Account
from tests.support.cluster.certificates import Certificates, Mode
from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.programs import Version
from tests.support.cluster.servers import Broker, NameServer, RocketMQServer
from tests.support.cluster.settings import BrokerPlan


class Cluster:
    """Name servers and brokers, each a process; all are ended, and what they wrote is deleted, at the end.

    `version` is the name servers'. With `tls` all connections are encrypted ("enforcing") or may be
    ("permissive"). `progress` is called with a line whenever something has begun.
    """

    def __init__(
        self,
        brokers: Iterable[BrokerPlan] = (BrokerPlan(),),
        *,
        name_servers: int = 1,
        version: Version = "5.3",
        tls: Mode | None = None,
        access: Access | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="mq-cluster-"))
        self._progress = progress
        self.certificates = Certificates(self._root / "tls", tls) if tls is not None else None
        self.access = access
        names = [f"name-server-{number}" for number in range(1, name_servers + 1)]
        self.name_servers = [
            NameServer(name, self._root / name, version, self.certificates) for name in names
        ]
        self.brokers: dict[str, Broker] = {}
        for plan in brokers:
            place = self._root / plan.label
            self.brokers[plan.label] = Broker(plan, place, self.name_servers, self.certificates, access)

    @property
    def name_server(self) -> str:
        """The addresses of the name servers, as RocketMQ's clients take them: HOST:PORT;HOST:PORT."""
        return ";".join(server.address for server in self.name_servers)

    def clients(self, *, version: Version = "5.3", account: Account | None = None) -> JavaClients:
        """RocketMQ's Java clients in a process of their own; with access control, by default the admin's."""
        if account is None and self.access is not None:
            account = self.access.admin
        return JavaClients(self.name_server, version=version, certificates=self.certificates, account=account)

    def start(self) -> None:
        """Start every server and wait until the name servers know all brokers."""
        masters = [broker for broker in self.brokers.values() if broker.plan.role != "SLAVE"]
        # A slave that registers before its master learns only ten seconds later where that one sends from.
        slaves = [broker for broker in self.brokers.values() if broker.plan.role == "SLAVE"]
        self._start(self.name_servers)
        self._start(masters)
        self._start(slaves)

    def _start(self, servers: Iterable[RocketMQServer]) -> None:
        begun = list(servers)
        for server in begun:
            self._progress(f"starting {server.name} (RocketMQ {server.version}) at {server.address}")
            server.launch_server()
        for server in begun:
            server.wait_until(server.ready)

    def close(self) -> None:
        """End every process and delete all files."""
        for server in (*self.brokers.values(), *self.name_servers):
            server.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
