"""Queues of a cluster that a consumer is told to have: see mq.api.group.Assigned.

It is no member of the group and sends no heartbeat, so each pull says what it filters by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.api.group import Subscription
from mq.api.results import MessageQueue
from mq.names import check_group
from mq.remoting.client.groups.claims import RemoteClaim
from mq.remoting.client.groups.lane import Lane

__all__ = ["RemoteAssigned"]


class RemoteAssigned:
    """route_version grows when any topic changes."""

    def __init__(self, lane: Lane, group: str, route_version: Callable[[], int]) -> None:
        check_group(group)
        self.brokers: Final = lane.brokers
        self.namespace: Final = lane.namespace
        self.wire_group: Final = lane.namespace.wire(group)
        self._lane = lane
        self._route_version = route_version
        self._claims: set[RemoteClaim] = set()

    def version(self) -> int:
        """See Assigned.version. That an operator set an offset is not told to one that is no member."""
        self._lane.check_open()
        return self._route_version()

    def claim(self, queue: MessageQueue) -> RemoteClaim:
        """See Assigned.claim."""
        claim = RemoteClaim(self, queue)
        self._claims.add(claim)
        self._lane.arrivals.expect(queue)
        return claim

    def write_offsets(self) -> None:
        for claim in tuple(self._claims):
            claim.write_offset()

    # What its claims ask: see ClaimOwner.

    def beginning(self, queue: MessageQueue) -> int | None:
        return None

    def is_made_up(self, queue: MessageQueue) -> bool:
        return False

    def own_subscription(self, queue: MessageQueue) -> Subscription | None:
        return Subscription(self.namespace.wire(queue.topic))

    def sub_version(self, queue: MessageQueue) -> int:
        return 0

    def not_known(self) -> None:
        pass

    def arrived(self, queue: MessageQueue) -> None:
        self._lane.arrivals.arrived(queue)

    def released(self, claim: RemoteClaim) -> None:
        self._claims.discard(claim)

    def is_silent(self, broker_name: str) -> bool:
        return False

    def was_silent(self, broker_name: str) -> None:
        pass
