"""Heartbeats: what tells each broker of a cluster which groups a client belongs to.

They go to every broker of the known routes, every 30 s, at once when something changed, and over each new
connection before anything else does: to a broker, the connection is the member. A client that is gone says
so; one that died is dropped when its connection breaks.

RocketMQ: client/impl/factory/MQClientInstance.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
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

__all__ = ["BEAT_SECONDS", "Beating", "Heartbeats"]

log = logging.getLogger("mq.remoting")

BEAT_SECONDS = 30.0
CALL_SECONDS = 3.0


@dataclass(eq=False)
class Beating:
    """One client: a consumer, or producers that are asked about transactions. Groups as on the wire."""

    client_id: str
    consumer: Callable[[], ConsumerGroup] | None = None
    producer_groups: Collection[str] = field(default_factory=tuple)

    def heartbeat(self) -> Heartbeat:
        groups = (INNER_PRODUCER_GROUP, *self.producer_groups)
        return Heartbeat(
            client_id=self.client_id,
            producer_data_set=tuple(ProducerGroup(group) for group in groups),
            consumer_data_set=(self.consumer(),) if self.consumer is not None else (),
        )


class Heartbeats:
    """Those of the clients that share the connections of one Remoting. From any thread."""

    def __init__(self, remoting: Remoting, cluster: Cluster) -> None:
        self._remoting = remoting
        self._cluster = cluster
        self._clients: tuple[Beating, ...] = ()
        remoting.opened.append(self._opened)
        remoting.events.post(self._tick)

    def add(self, client: Beating) -> None:
        self._clients = (*self._clients, client)

    def remove(self, client: Beating) -> None:
        self._clients = tuple(each for each in self._clients if each is not client)

    def beat(self) -> None:
        """Tell all brokers now, without waiting."""
        for address, has_slaves in self._addresses():
            for client in self._clients:
                if client.consumer is not None or not has_slaves:
                    self._send(address, client)

    def beat_and_wait(self, client: Beating) -> None:
        """Tell all brokers of one client, and wait until each knows. Raises what the last one did where none
        knows."""
        failure: MQError | None = None
        is_known = False
        for address, is_slave in list(self._addresses()):
            if is_slave:
                self._send(address, client)
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

    def unregister(self, client: Beating, *, consumer_group: str | None = None) -> None:
        """Tell all brokers that a client is gone. What cannot be reached finds out by itself."""
        self.remove(client)
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

    def _addresses(self) -> Iterator[tuple[str, bool]]:
        """Of all brokers, each with whether it is a slave."""
        for broker in self._cluster.brokers.values():
            for broker_id, address in broker.broker_addrs.items():
                yield address, broker_id != MASTER_ID

    def _send(self, address: str, client: Beating) -> None:
        def answered(answer: Frame | MQError) -> None:
            try:
                if isinstance(answer, MQError):
                    raise answer
                checked(answer, HeartBeat, address)
            except MQError as error:
                log.warning(
                    "%s did not take the heartbeat of client %s: %s", address, client.client_id, error
                )

        try:
            self._remoting.call_async(
                address, framed(HeartBeat(), client.heartbeat()), answered, CALL_SECONDS
            )
        except MQError as error:
            log.debug("no heartbeat of client %s went to %s: %s", client.client_id, address, error)

    def _opened(self, connection: Connection) -> None:
        address = connection.address
        for known, is_slave in self._addresses():
            if known == address:
                for client in self._clients:
                    if client.consumer is not None or not is_slave:
                        self._send(address, client)

    def _tick(self) -> None:
        self._remoting.events.loop.call_later(BEAT_SECONDS, self._tick)
        if self._clients:
            self.beat()
