"""A served store and replicas of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mq
from mq.broker.local import LocalBroker
from mq.remoting.replica.replica import Replica
from mq.remoting.server.server import Server
from tests.support.cluster.ports import free_port
from tests.support.eventually import eventually as eventually_or

__all__ = ["eventually", "follow", "level", "served"]


def eventually(what: Callable[[], bool], why: Callable[[], object] = lambda: "") -> None:
    eventually_or(what, why, 60.0, 0.02)


@contextmanager
def served(broker: LocalBroker, port: int | None = None, ha_port: int = 0) -> Iterator[Server]:
    port = port or free_port((-2, 1))
    with mq.remoting.serve(broker, port=port, namesrv_port=0, ha_port=ha_port) as server:
        yield server


def follow(server: Server, path: Path, **options: Any) -> Replica:
    assert server.ha_address is not None
    return mq.remoting.replicate(server.ha_address, path, **{"broker": server.address, **options})


def level(replica: Replica, broker: LocalBroker) -> None:
    """Wait until the replica has all that the master has."""
    eventually(lambda: replica.offset == broker.replication.log_range[1], lambda: str(replica.error))
