"""Manually assigned queues of a cluster: see mq.api.group.Assigned.

The consumer is not a member of the group and sends no heartbeat, so each pull carries its subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.api.group import Resets, Subscription
from mq.api.results import MessageQueue
from mq.names import check_group
from mq.remoting.client.groups.claims import RemoteClaim
from mq.remoting.client.groups.client_instance import ClientInstance

__all__ = ["RemoteAssigned"]


class RemoteAssigned:
    """route_version grows when any topic changes."""

    def __init__(self, instance: ClientInstance, group: str, route_version: Callable[[], int]) -> None:
        check_group(group)
        self.brokers: Final = instance.brokers
        self.namespace: Final = instance.namespace
        self.wire_group: Final = instance.namespace.wire(group)
        self._instance = instance
        self._route_version = route_version
        self._claims: set[RemoteClaim] = set()
        self._missing_count = 0  # pulls of a topic that was deleted

    def version(self) -> int:
        """See Assigned.version. A reset of offsets is not reported: brokers tell members only."""
        self._instance.check_open()
        return self._route_version() + self._missing_count

    def claim(self, queue: MessageQueue) -> RemoteClaim:
        """See Assigned.claim."""
        claim = RemoteClaim(self, queue)
        self._claims.add(claim)
        self._instance.arrivals.expect(queue)
        return claim

    def resets(self, queue: MessageQueue) -> Resets:
        """See Assigned.resets. None: brokers do not tell."""
        return Resets(0, 0, is_pending=False)

    def write_offsets(self) -> None:
        for claim in tuple(self._claims):
            claim.write_offset()

    # Called by its claims: see ClaimOwner.

    def beginning(self, queue: MessageQueue) -> int | None:
        return None

    def is_placeholder(self, queue: MessageQueue) -> bool:
        return False

    def own_subscription(self, queue: MessageQueue) -> Subscription | None:
        return Subscription(self.namespace.wire(queue.topic))

    def sub_version(self, queue: MessageQueue) -> int:
        return 0

    def on_unknown_member(self) -> None:
        pass

    def on_missing_topic(self, claim: RemoteClaim) -> None:
        claim.begin_anew()
        self._missing_count += 1

    def arrived(self, queue: MessageQueue) -> None:
        self._instance.arrivals.arrived(queue)

    def released(self, claim: RemoteClaim) -> None:
        self._claims.discard(claim)

    def is_unresponsive(self, broker_name: str) -> bool:
        return False

    def set_unresponsive(self, broker_name: str) -> None:
        pass
