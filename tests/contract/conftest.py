"""One suite for every Broker: what a test here asks for as `broker`, it gets once as each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.remoting import serve
from tests.contract.differences import LACKING
from tests.support.cluster.settled import SettledBroker
from tests.support.cluster.shared import unique_name
from tests.support.memory.broker import MemoryBroker

# Files so small that a test of a few dozen messages goes through several of each kind.
SMALL: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 32,
    "index_slot_count": 64,
    "index_unit_count": 128,
}
MESSAGE_SIZE_MAX = 256 << 10
CLUSTERS = {"cluster": "5.3-single", "cluster-4.9": "4.9-single"}
# A real broker is asked for by its mark, as everything that takes minutes.
KINDS = [
    "memory",
    "local",
    "local-sync",
    pytest.param("served", marks=pytest.mark.rounds),
    *(pytest.param(kind, marks=pytest.mark.rounds) for kind in CLUSTERS),
]

Open = Callable[..., mq.Broker]


def open_broker(kind: str, directory: Path, world: str = "", **options: Any) -> mq.Broker:
    if kind in CLUSTERS:
        return SettledBroker(CLUSTERS[kind], world)
    if kind == "served":  # Its client cannot ask what the limit is.
        return mq.open(directory, **{**SMALL, "commitlog_file_size": 8 << 20}, **options)
    options.setdefault("message_size_max", MESSAGE_SIZE_MAX)
    if kind == "memory":
        return MemoryBroker(**options)
    return mq.open(directory, flush="sync" if kind == "local-sync" else "async", **SMALL, **options)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a kind of broker cannot do: see differences.py."""
    left_out = [item for item in items if _lacks(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _lacks(item)]


def _lacks(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    lacking = LACKING.get(callspec.params.get("kind", ""), {}) if callspec is not None else {}
    return any(ability in lacking for mark in item.iter_markers("needs") for ability in mark.args)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(kind: str, directory: Path) -> Iterator[Open]:
    """Opens a broker with these options; it is closed, and what it wrote verified, after the test. Those of a
    cluster have a namespace in common, which no other test has. What is served is a directory, by a server
    for each broker that is opened."""
    world = unique_name("w")
    with ExitStack() as stack:

        def enter(**options: Any) -> mq.Broker:
            opened = stack.enter_context(open_broker(kind, directory, world, **options))
            if kind != "served":
                return opened
            server = stack.enter_context(serve(opened, port=0, namesrv_port=0))
            return stack.enter_context(mq.open("rocketmq://" + server.name_server, timeout=30.0))

        yield enter


@pytest.fixture
def broker(opened: Open) -> mq.Broker:
    return opened()


@pytest.fixture
def brokers(kind: str, opened: Open) -> tuple[mq.Broker, mq.Broker]:
    """Two brokers of one store with a topic of two queues; in memory, one twice."""
    first = opened()
    first.create_topic("orders", 2)
    return (first, first) if kind == "memory" else (first, opened())
