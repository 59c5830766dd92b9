"""A lane: connections on which at most one member of each group is.

To a broker a connection is the member, so a second consumer of one group needs connections of its own. The
first of each group share those of everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mq.remoting.client.arrivals import Arrivals
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.heartbeats import Heartbeats
from mq.remoting.client.namespace import Namespace

__all__ = ["Lane"]


@dataclass(eq=False)
class Lane:
    """What the members on it share. `left` is told of one that is gone."""

    brokers: Brokers
    heartbeats: Heartbeats
    arrivals: Arrivals
    namespace: Namespace
    check_open: Callable[[], object]
    left: Callable[[Any], object]
    groups: set[str] = field(default_factory=set)  # that have a member here
