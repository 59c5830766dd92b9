"""One suite for every Broker: what a test here asks for as `broker`, it gets once as each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.support.memory.broker import MemoryBroker

# Files so small that a test of a few dozen messages goes through several of each kind.
SMALL: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 32,
    "index_slot_count": 64,
    "index_unit_count": 128,
}
MESSAGE_SIZE_MAX = 256 << 10
KINDS = ["memory", "local", "local-sync"]

Open = Callable[..., mq.Broker]


def open_broker(kind: str, directory: Path, **options: Any) -> mq.Broker:
    options.setdefault("message_size_max", MESSAGE_SIZE_MAX)
    if kind == "memory":
        return MemoryBroker(**options)
    return mq.open(directory, flush="sync" if kind == "local-sync" else "async", **SMALL, **options)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(kind: str, directory: Path) -> Iterator[Open]:
    """Opens a broker with these options; it is closed, and what it wrote verified, after the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(open_broker(kind, directory, **options))


@pytest.fixture
def broker(opened: Open) -> mq.Broker:
    return opened()


@pytest.fixture
def brokers(kind: str, opened: Open) -> tuple[mq.Broker, mq.Broker]:
    """Two brokers of one store with a topic of two queues; in memory, one twice."""
    first = opened()
    first.create_topic("orders", 2)
    return (first, first) if kind == "memory" else (first, opened())
