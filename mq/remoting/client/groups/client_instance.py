"""A client instance (RocketMQ's MQClientInstance): a set of connections with at most one member of each
group.

A broker identifies a member by its connection, so a second consumer of a group needs its own connections. The
first consumer of each group uses the shared ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mq.remoting.client.arrivals import Arrivals
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.heartbeats import Heartbeats
from mq.remoting.client.namespace import Namespace

__all__ = ["ClientInstance"]


@dataclass(eq=False)
class ClientInstance:
    """The state that its members share. `left` is called when a member has left."""

    brokers: Brokers
    heartbeats: Heartbeats
    arrivals: Arrivals
    namespace: Namespace
    check_open: Callable[[], object]
    left: Callable[[Any], object]
    groups: set[str] = field(default_factory=set)  # the groups with a member here
