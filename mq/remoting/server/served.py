"""The state that all handlers share: the broker, the connections, the remote members, the held pulls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from mq.api.broker import Broker
from mq.api.queues import Appender, Puller
from mq.api.results import MessageQueue
from mq.api.transactions import Ender
from mq.errors import MQError
from mq.remoting.event_loop import EventLoop
from mq.remoting.server.access import Access
from mq.remoting.server.checks import Checks
from mq.remoting.server.figures import Figures
from mq.remoting.server.groups.members import RemoteMembers
from mq.remoting.server.holding import Holding
from mq.remoting.server.options import Limits
from mq.remoting.server.reply_relay import ReplyRelay
from mq.remoting.server.store_hosts import StoreHosts, packed
from mq.remoting.server.transport.connection import Connection
from mq.remoting.server.transport.workers import Workers

__all__ = ["WILDCARDS", "Served", "Traffic"]

WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})

KEPT_MAX = 10_000  # queues


@dataclass(slots=True)
class Traffic:
    """Counters since the server's start, for operators. Updates are not atomic, so they are approximate."""

    requests: int = 0
    refused: int = 0
    """requests answered with an error"""
    stored: int = 0
    """messages that clients sent"""
    pulled: int = 0
    """messages that clients were given"""


class Served:
    """The shared state of one server. host and port: the address that clients get for the broker."""

    def __init__(
        self,
        broker: Broker,
        events: EventLoop,
        limits: Limits,
        access: Access | None,
        *,
        pool: Workers,
        control: Workers,
    ) -> None:
        self.broker: Final = broker
        self.events: Final = events
        self.pool: Final = pool  # for sends and pulls that may wait
        self.control: Final = control  # for all other requests
        self.limits: Final = limits
        self.access: Final = access
        self.host = ""
        self.port = 0
        self.ha_address: str | None = None
        self.traffic: Final = Traffic()
        self.store_hosts: Final = StoreHosts(broker)
        self.counts: Final[dict[str, tuple[Counter[str], Counter[str]]]] = {}
        """By topic: the last known numbers of read and write queues of each broker."""
        self._packed: dict[str, bytes | None] = {}
        self._enders: dict[str, Ender] = {}
        self._appenders: dict[MessageQueue, Appender] = {}
        self._oneway_appenders: dict[MessageQueue, Appender] = {}
        self._pullers: dict[MessageQueue, Puller] = {}
        self.connections: Final[set[Connection]] = set()
        self.members: Final = RemoteMembers(broker, self._wake)
        self.holding: Final = Holding(broker, events, self.members.versions, limits.held_pulls_total)
        self.relay: Final = ReplyRelay(broker, events, self.holding, self.members, control)
        self.checks: Final = Checks(broker, self.members, access)
        self.figures: Final = Figures(broker)

    def _wake(self) -> None:
        self.holding.wake()

    def address(self, connection: Connection) -> str:
        """The broker's address for this client."""
        return self._address(connection, self.port)

    def ha_address_for(self, connection: Connection) -> str | None:
        """The address of the HA port for this slave; None without one."""
        if self.ha_address is None:
            return None
        return self._address(connection, int(self.ha_address.rpartition(":")[2]))

    def _address(self, connection: Connection, port: int) -> str:
        host = connection.local_host if self.host in WILDCARDS else self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def store_host(self, connection: Connection) -> bytes | None:
        """The broker's address in the format of a record; None if it has no such format."""
        local = connection.local_host
        if local not in self._packed:
            self._packed[local] = packed(local, self.port)
        return self._packed[local]

    def queue(self, topic: str, queue_id: int, broker_name: str | None) -> MessageQueue:
        """The queue that a request names. If the client gives no broker name, it is the first broker with
        such a queue."""
        if broker_name is None or broker_name == self.broker.name:
            return self._own(topic, queue_id)
        return MessageQueue(topic, broker_name, queue_id)

    def _own(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self.broker.name, queue_id)

    def appender(self, queue: MessageQueue) -> Appender:
        """The appender of a queue, cached."""
        found = self._appenders.get(queue)
        if found is None:
            found = self.broker.appender(queue)
            if len(self._appenders) >= KEPT_MAX:
                self.forget_appenders()
            self._appenders[queue] = found
        return found

    def oneway_appender(self, queue: MessageQueue) -> Appender:
        """The same of one that does not wait for the disk."""
        found = self._oneway_appenders.get(queue)
        if found is None:
            found = self.broker.oneway_appender(queue)
            if len(self._oneway_appenders) >= KEPT_MAX:
                self.forget_appenders()
            self._oneway_appenders[queue] = found
        return found

    def forget_appenders(self) -> None:
        """Drop the cached appenders, since a topic has changed."""
        self._appenders = {}
        self._oneway_appenders = {}

    def ender(self, group: str) -> Ender:
        """The ender of a group, cached."""
        found = self._enders.get(group)
        if found is None:
            if len(self._enders) >= KEPT_MAX:
                self._enders = {}
            found = self._enders[group] = self.broker.transactions.ender(group)
        return found

    def puller(self, queue: MessageQueue) -> Puller:
        """The puller of a queue for readers that are not members, cached."""
        found = self._pullers.get(queue)
        if found is None:
            if len(self._pullers) >= KEPT_MAX:
                self._pullers = {}
            found = self._pullers[queue] = self.broker.puller(queue)
        return found

    def stored_ms(self, queue: MessageQueue, offset: int) -> int:
        """When the message at this offset was stored, in ms; 0 where it is gone."""
        found = self.puller(queue)(offset, 1, 1, None, 0.0).messages
        return found[0].store_time_ms if found else 0

    def broker_names(self, topic: str) -> list[str]:
        """The names of the brokers that have queues of a topic."""
        try:
            return sorted({queue.broker_name for queue in self.broker.readable(topic)})
        except MQError:
            return [self.broker.name]
