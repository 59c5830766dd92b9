"""A broker of each kind, a server of it, and a client of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from mq.remoting.server.server import Server
from tests.support.memory.broker import MemoryBroker


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, directory: Path) -> Iterator[mq.Broker]:
    opened = MemoryBroker() if request.param == "memory" else mq.open(directory)
    with opened:
        yield opened


@pytest.fixture
def server(store: mq.Broker) -> Iterator[Server]:
    with serve(store, port=0, namesrv_port=0) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[mq.Broker]:
    with mq.open("rocketmq://" + server.name_server, timeout=30.0) as opened:
        yield opened
