"""A peer that does what a test scripts, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from mq.remoting import event_loop
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from tests.support.remoting_peer import Peer, echo

ECHO = 9001
SILENT = 9002


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        peer.on(ECHO, echo)
        yield peer


# The extra `remoting` has uvloop, as has the extra `test`.
@pytest.fixture(params=["asyncio", *(["uvloop"] if find_spec("uvloop") else [])])
def remoting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remoting]:
    """On either event loop."""
    if request.param == "asyncio":
        monkeypatch.setattr(event_loop, "new_loop", asyncio.new_event_loop)
    remoting = Remoting("rocketmq://tests", RemotingOptions(timeout=30.0))
    yield remoting
    remoting.close()
