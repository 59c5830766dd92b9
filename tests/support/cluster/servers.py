"""A name server and a broker as processes, each run by RocketMQ's own start-up class."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.cluster.access import Access
from tests.support.cluster.asking import GET_CLUSTER, ask
from tests.support.cluster.certificates import Certificates
from tests.support.cluster.java_process import JavaProcess
from tests.support.cluster.ports import free_port
from tests.support.cluster.programs import FULL_SPEED, QUICK_START, Program, Version, program
from tests.support.cluster.settings import ONLY_FOR_TESTS, SETTINGS, BrokerPlan

HOST = "127.0.0.1"
READY = "boot success"
JVM_OPTIONS = (
    # A machine with little left on its disk is none of the broker's business here.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
    # For how long the queue locks of a killed member stay; the members themselves believe in theirs for 30 s.
    "-Drocketmq.broker.rebalance.lockMaxLiveTime=35000",
)


class RocketMQServer(JavaProcess):
    """What name servers and brokers have in common. It keeps its ports and its directory over restarts."""

    MAIN: str
    tuning: Iterable[str] = QUICK_START

    def __init__(
        self, name: str, directory: Path, port: int, version: Version, certificates: Certificates | None
    ) -> None:
        super().__init__(name, directory)
        self.version = version
        self.address = f"{HOST}:{port}"
        self._port = port
        self._certificates = certificates

    def launch_server(self) -> None:
        """Start it; ready() says when it can be used."""
        configuration = self.directory / "server.conf"
        logging = self.directory / "conf"
        logging.mkdir(parents=True, exist_ok=True)
        servers = program("servers", self.version)
        self._place_logging(servers, logging)
        lines = {"listenPort": self._port, **self.configuration()}
        configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        # Without certificates of ours it would make some at each start, which takes longer than all the rest.
        tls = self._certificates.server_options() if self._certificates else ["-Dtls.server.mode=disabled"]
        self.launch(
            servers,
            self.__class__.__name__,
            self.MAIN,
            ["-c", str(configuration)],
            [*JVM_OPTIONS, *tls],
            tuning=self.tuning,
        )

    def start(self) -> None:
        """Start it and wait until it can be used."""
        self.launch_server()
        self.wait_until(self.ready)

    def restart(self) -> None:
        """Start it again after stop() or kill(), on the same ports and data."""
        self.start()

    def configuration(self) -> Mapping[str, object]:
        """The lines of its configuration file, beside its port."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether it can be used."""
        return READY in self.said(None)

    @staticmethod
    def _place_logging(servers: Program, place: Path) -> None:
        # The start-up classes of 4.9 read no other file than these.
        for kind in ("broker", "namesrv"):
            shutil.copyfile(servers.logging(), place / f"logback_{kind}.xml")


class NameServer(RocketMQServer):
    """A name server."""

    MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"

    def __init__(
        self,
        name: str,
        directory: Path,
        version: Version = "5.3",
        certificates: Certificates | None = None,
    ) -> None:
        super().__init__(name, directory, free_port(), version, certificates)

    def configuration(self) -> Mapping[str, object]:
        return {"kvConfigPath": self.directory / "kvConfig.json"}

    def knows(self, address: str) -> bool:
        """Whether a broker at this address is registered."""
        if not self.running:
            return False
        tls: ssl.SSLContext | None = self._certificates.client_context() if self._certificates else None
        try:
            answer = ask(self.address, GET_CLUSTER, tls=tls)
        except OSError:
            return False
        return f'"{address}"'.encode() in answer.body


class Broker(RocketMQServer):
    """A broker, master or slave."""

    MAIN = "org.apache.rocketmq.broker.BrokerStartup"

    def __init__(
        self,
        plan: BrokerPlan,
        directory: Path,
        name_servers: Iterable[NameServer],
        certificates: Certificates | None = None,
        access: Access | None = None,
    ) -> None:
        super().__init__(plan.label, directory, free_port((-2, 1)), plan.version, certificates)
        self.plan = plan
        if plan.at_full_speed:
            self.tuning = FULL_SPEED
        self._name_servers = list(name_servers)
        self._access = access

    @property
    def store(self) -> Path:
        """The broker's store."""
        return self.directory / "store"

    def configuration(self) -> Mapping[str, object]:
        access: Mapping[str, object] = {}
        if self._access is not None:
            access = self._access.configure(self.directory, self.version)
        settings = dict(SETTINGS)
        if self.plan.at_full_speed:
            for name in ONLY_FOR_TESTS:
                del settings[name]
        return {
            "brokerName": self.plan.name,
            "brokerId": self.plan.broker_id,
            "brokerRole": self.plan.role,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "haListenPort": self._port + 1,
            "bindAddress": HOST,
            "namesrvAddr": ";".join(server.address for server in self._name_servers),
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **settings,
            **access,
            **self.plan.settings,
        }

    def ready(self) -> bool:
        return super().ready() and self.is_registered()

    def is_registered(self) -> bool:
        """Whether every name server that runs knows the broker."""
        return all(server.knows(self.address) for server in self._name_servers if server.running)
