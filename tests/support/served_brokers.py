"""A cluster of two served directories, "a" and "b", behind a name server that a test scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import mq
from mq.remoting import serve
from mq.remoting.codec.bodies.route import BrokerAddresses, ClusterInfo, QueueCounts, TopicNames, TopicRoute
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.name_servers import (
    DeleteTopicInNameServer,
    GetClusterInfo,
    GetRoute,
    GetTopicList,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.remoting_peer import Link, Peer


class ServedBrokers:
    """`stores`: the directories; `servers`: what serves them, of which a test may close one.

    `slaves`: the names of those whose master is away. They are listed with the address of a slave.
    """

    def __init__(self, peer: Peer, stores: dict[str, mq.Broker], servers: dict[str, Server]) -> None:
        self.stores = stores
        self.servers = servers
        self.slaves: set[str] = set()
        self._addresses = {name: server.address for name, server in servers.items()}
        peer.on(GetClusterInfo.CODE, self._cluster_info)
        peer.on(GetRoute.CODE, self._route)
        peer.on(GetTopicList.CODE, self._topic_list)
        peer.on(DeleteTopicInNameServer.CODE, self._success)

    def queue_counts(self, topic: str) -> dict[str, int]:
        """How many queues of a topic can be read, by the brokers that have it."""
        found = {}
        for name, store in self.stores.items():
            with suppress(mq.TopicNotFound):
                found[name] = len(store.readable(topic))
        return found

    def _broker(self, name: str) -> BrokerAddresses:
        return BrokerAddresses(name, {int(name in self.slaves): self._addresses[name]}, "c")

    async def _cluster_info(self, link: Link, request: Frame) -> None:
        brokers = {name: self._broker(name) for name in self.stores}
        link.answer(request, body=to_json(ClusterInfo(brokers, {"c": tuple(brokers)})))

    async def _route(self, link: Link, request: Frame) -> None:
        counts = self.queue_counts(decode_fields(GetRoute, request.fields).topic)
        if not counts:
            link.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
            return
        brokers = tuple(self._broker(name) for name in counts)
        queues = tuple(QueueCounts(name, count, count) for name, count in counts.items())
        link.answer(request, body=to_json(TopicRoute(brokers, queues)))

    async def _topic_list(self, link: Link, request: Frame) -> None:
        names = {name for store in self.stores.values() for name in store.topics()}
        link.answer(request, body=to_json(TopicNames(tuple(sorted(names)))))

    async def _success(self, link: Link, request: Frame) -> None:
        link.answer(request)


@contextmanager
def served_brokers(peer: Peer, directory: Path) -> Iterator[ServedBrokers]:
    """The peer is the name server. The stores are under the directory."""
    with (
        mq.open(directory / "a", create=True) as a,
        mq.open(directory / "b", create=True) as b,
        serve(a, port=0, namesrv_port=0) as server_a,
        serve(b, port=0, namesrv_port=0) as server_b,
    ):
        yield ServedBrokers(peer, {"a": a, "b": b}, {"a": server_a, "b": server_b})
