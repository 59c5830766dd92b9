"""RocketMQ's proxy of 5.3, through which its gRPC clients come to a cluster."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cluster.java_process import JavaProcess
from tests.support.cluster.ports import free_port
from tests.support.cluster.programs import FULL_SPEED, QUICK_START, program
from tests.support.cluster.servers import HOST
from tests.support.cluster.settings import SETTINGS

MAIN = "org.apache.rocketmq.proxy.ProxyStartup"
READY = "startup successfully"


class Proxy(JavaProcess):
    """A proxy before a cluster's name servers."""

    def __init__(self, directory: Path, name_server: str, *, at_full_speed: bool = False) -> None:
        super().__init__("proxy", directory)
        self._name_server = name_server
        self._tuning = FULL_SPEED if at_full_speed else QUICK_START
        self._port, self._remoting_port = free_port(), free_port()
        self.address = f"{HOST}:{self._port}"

    def start(self) -> None:
        """Start it and wait until it serves."""
        configuration = self.directory / "conf" / "rmq-proxy.json"
        configuration.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "rocketMQClusterName": SETTINGS["brokerClusterName"],
            "proxyMode": "CLUSTER",
            "namesrvAddr": self._name_server,
            "grpcServerPort": self._port,
            "remotingListenPort": self._remoting_port,
        }
        configuration.write_text(json.dumps(settings))
        self.launch(
            program("proxy", "5.3"),
            "Proxy",
            MAIN,
            ["-n", self._name_server, "-pm", "CLUSTER"],
            [f"-Dcom.rocketmq.proxy.configPath={configuration}"],
            tuning=self._tuning,
        )
        self.wait_until(lambda: READY in self.said(None))
