"""Heartbeats: they tell each broker of a cluster the groups of a client.

A heartbeat goes to every broker in the known routes, every 30 s, at once after a change, and first on each
new connection, since a broker identifies a member by its connection. A closed client unregisters; a broker
drops a dead one when its connection breaks.

RocketMQ: client/impl/factory/MQClientInstance.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from mq.errors import MQError
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.connection import Connection
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.bodies.heartbeat import (
    INNER_PRODUCER_GROUP,
    ConsumerGroup,
    Heartbeat,
    ProducerGroup,
)
from mq.remoting.codec.bodies.route import MASTER_ID
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.groups import HeartBeat, UnregisterClient

__all__ = ["HEARTBEAT_SECONDS", "HeartbeatClient", "Heartbeats"]

log = logging.getLogger("mq.remoting")

HEARTBEAT_SECONDS = 30.0
CALL_SECONDS = 3.0


@dataclass(eq=False)
class HeartbeatClient:
    """A client with heartbeats: a consumer, or producers that answer transaction checks. Groups as on the
    wire."""

    client_id: str
    consumer: Callable[[], ConsumerGroup] | None = None
    producer_groups: Collection[str] = field(default_factory=tuple)
    under_way: set[asyncio.Future[None]] = field(default_factory=set)  # heartbeats that are not answered yet

    def heartbeat(self) -> Heartbeat:
        groups = (INNER_PRODUCER_GROUP, *self.producer_groups)
        return Heartbeat(
            client_id=self.client_id,
            producer_data_set=tuple(ProducerGroup(group) for group in groups),
            consumer_data_set=(self.consumer(),) if self.consumer is not None else (),
        )


class Heartbeats:
    """The heartbeats of the clients that share the connections of one Remoting. Thread-safe: the loop alone
    has the list of clients, and sends their heartbeats."""

    def __init__(self, remoting: Remoting, cluster: Cluster) -> None:
        self._remoting = remoting
        self._cluster = cluster
        self._clients: list[HeartbeatClient] = []
        remoting.opened.append(self._opened)
        remoting.events.post(self._tick)

    def add(self, client: HeartbeatClient) -> None:
        self._remoting.events.post(self._clients.append, client)

    def send_all(self) -> None:
        """Send heartbeats to all brokers now, without waiting."""
        self._remoting.events.post(self._send_all)

    def _send_all(self) -> None:
        for address, has_slaves in self._addresses():
            for client in self._clients:
                if client.consumer is not None or not has_slaves:
                    self._send(address, client)

    def send_and_wait(self, client: HeartbeatClient) -> None:
        """Send the heartbeat of one client to all brokers, and wait for the answers of the masters, and of a
        slave without a master. Raises the last error if no broker accepts it."""
        failure: MQError | None = None
        is_known = False
        for address, is_slave in list(self._addresses()):
            if is_slave and not self._is_first(address):
                self._remoting.events.post(self._send, address, client)
                continue
            try:
                checked(
                    self._remoting.call(address, framed(HeartBeat(), client.heartbeat()), CALL_SECONDS),
                    HeartBeat,
                    address,
                )
                is_known = True
            except MQError as error:
                failure = error
        if failure is not None and not is_known:
            raise failure

    def unregister(self, client: HeartbeatClient, *, consumer_group: str | None = None) -> None:
        """Unregister a client at all brokers. An unreachable one drops it when the connection breaks."""
        try:
            self._remoting.check_open()
            # A broker that handles a heartbeat after this would have a member that is gone.
            self._remoting.events.wait_for(self._remove(client), 2 * CALL_SECONDS, "the last heartbeats")
        except MQError as error:
            log.debug("client %s does not wait for the last heartbeats: %s", client.client_id, error)
        requests = [
            UnregisterClient(client.client_id, producer_group=group) for group in client.producer_groups
        ]
        if consumer_group is not None:
            requests.append(UnregisterClient(client.client_id, consumer_group=consumer_group))
        for address, _ in list(self._addresses()):
            for request in requests:
                try:
                    self._remoting.call(address, framed(request), CALL_SECONDS)
                except MQError as error:
                    log.debug("%s was not told that client %s is gone: %s", address, client.client_id, error)
                    break

    async def _remove(self, client: HeartbeatClient) -> None:
        """Send no more heartbeats of this client, and wait for the answers to those that are sent."""
        with suppress(ValueError):  # An interrupt may have come before add().
            self._clients.remove(client)
        if client.under_way:
            await asyncio.wait(client.under_way)

    def _addresses(self) -> Iterator[tuple[str, bool]]:
        """The addresses of all brokers, each with whether it is a slave's."""
        for broker in self._cluster.brokers.values():
            for broker_id, address in broker.broker_addrs.items():
                yield address, broker_id != MASTER_ID

    def _is_first(self, address: str) -> bool:
        """Whether it is the address that a broker without a master is asked at."""
        return any(address == self._cluster.any_address(name) for name in self._cluster.brokers)

    def _send(self, address: str, client: HeartbeatClient) -> None:
        """Called by the loop."""
        if client not in self._clients:
            return  # It has left since this was posted.
        sent: asyncio.Future[None] = self._remoting.events.loop.create_future()

        def answered(answer: Frame | MQError) -> None:
            client.under_way.discard(sent)
            sent.set_result(None)
            try:
                if isinstance(answer, MQError):
                    raise answer
                checked(answer, HeartBeat, address)
            except MQError as error:
                log.warning(
                    "%s did not accept the heartbeat of client %s: %s", address, client.client_id, error
                )

        try:
            request = framed(HeartBeat(), client.heartbeat())
            self._remoting.call_async(address, request, answered, CALL_SECONDS)
            client.under_way.add(sent)
        except MQError as error:
            log.debug("the heartbeat of client %s was not sent to %s: %s", client.client_id, address, error)

    def _opened(self, connection: Connection) -> None:
        address = connection.address
        for known, is_slave in self._addresses():
            if known == address:
                for client in self._clients:
                    if client.consumer is not None or not is_slave:
                        self._send(address, client)

    def _tick(self) -> None:
        self._remoting.events.loop.call_later(HEARTBEAT_SECONDS, self._tick)
        self._send_all()
