"""A name server and a broker in one Peer: routes, sends, heartbeats and offsets, as a test sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mq
from mq.api.group import Subscription
from mq.remoting.client.groups.membership import RemoteMembership
from mq.remoting.codec.bodies.consuming import ConsumerIds, LockedQueues, QueueLock
from mq.remoting.codec.bodies.heartbeat import Heartbeat
from mq.remoting.codec.bodies.route import BrokerAddresses, ClusterInfo, QueueCounts, TopicRoute
from mq.remoting.codec.fields import Answer, Request, decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import from_json, to_json
from mq.remoting.codec.requests.consuming import PullAnswer, PullMessage
from mq.remoting.codec.requests.groups import (
    GetConsumerList,
    HeartBeat,
    LockQueues,
    UnlockQueues,
    UnregisterClient,
)
from mq.remoting.codec.requests.name_servers import GetClusterInfo, GetRoute
from mq.remoting.codec.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetAnswer,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from mq.remoting.codec.requests.sending import SendAnswer, SendMessageV2
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.remoting_peer import Link, Peer

OFFSET_ID = "7F00000100002A9F0000000000000000"
Answering = Callable[[Frame], Frame]


class FakeCluster:
    """Cluster "c" of one broker, "a". `master` and `slave`: its addresses, None for a broker that is away."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.master: str | None = peer.address
        self.slave: str | None = None
        self.queue_counts: dict[str, int] = {}
        self.sent: list[int] = []  # the queue ids of sends
        self.other_members: tuple[str, ...] = ()  # of any group, beside those with heartbeats
        self._brokers: list[Peer] = []
        peer.on(GetRoute.CODE, self._route)
        peer.on(GetClusterInfo.CODE, self._cluster_info)
        self.serve(peer)

    def serve(self, peer: Peer) -> None:
        """Have this peer answer as a broker, too."""
        self._brokers.append(peer)
        peer.on(SendMessageV2.CODE, self._send)
        peer.on(GetConsumerList.CODE, self._consumers)
        peer.on(LockQueues.CODE, self._lock)
        for request in (HeartBeat, UnregisterClient, UnlockQueues, UpdateConsumerOffset):
            peer.on(request.CODE, success)
        for question in (GetMinOffset, GetMaxOffset, QueryConsumerOffset):
            peer.on(question.CODE, _zero)
        peer.on(PullMessage.CODE, _nothing)

    @property
    def addresses(self) -> BrokerAddresses:
        known = {0: self.master, 1: self.slave}
        return BrokerAddresses("a", {key: value for key, value in known.items() if value}, "c")

    def heartbeats(self, peer: Peer | None = None) -> list[Heartbeat]:
        """Those that came."""
        return [from_json(Heartbeat, frame.body) for frame in requests_of(peer or self.peer, HeartBeat)]

    async def _route(self, link: Link, request: Frame) -> None:
        topic = decode_fields(GetRoute, request.fields).topic
        count = self.queue_counts.get(topic)
        if count is None:
            link.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info for {topic}")
        else:
            body = TopicRoute((self.addresses,), (QueueCounts("a", count, count),))
            link.answer(request, body=to_json(body))

    async def _cluster_info(self, link: Link, request: Frame) -> None:
        link.answer(request, body=to_json(ClusterInfo({"a": self.addresses}, {"c": ("a",)})))

    async def _send(self, link: Link, request: Frame) -> None:
        queue_id = decode_fields(SendMessageV2, request.fields).queue_id
        self.sent.append(queue_id)
        if not request.is_oneway:
            answer(link, request, SendAnswer(OFFSET_ID, queue_id, len(self.sent)))

    async def _consumers(self, link: Link, request: Frame) -> None:
        beats = [beat for peer in self._brokers for beat in self.heartbeats(peer)]
        members = {beat.client_id for beat in beats if beat.consumer_data_set}
        link.answer(request, body=to_json(ConsumerIds(tuple(sorted({*members, *self.other_members})))))

    async def _lock(self, link: Link, request: Frame) -> None:
        link.answer(request, body=to_json(LockedQueues(from_json(QueueLock, request.body).mq_set)))


async def success(link: Link, request: Frame) -> None:
    if not request.is_oneway:
        link.answer(request)


async def _zero(link: Link, request: Frame) -> None:
    answer(link, request, OffsetAnswer(0))


async def _nothing(link: Link, request: Frame) -> None:
    offset = decode_fields(PullMessage, request.fields).queue_offset
    answer(link, request, PullAnswer(0, offset, 0, 0), ResponseCode.PULL_NOT_FOUND)


def answer(link: Link, request: Frame, fields: Answer, code: int = 0) -> None:
    link.answer(request, code, fields=encode_fields(fields))


def requests_of(peer: Peer, kind: type[Request]) -> list[Frame]:
    """The requests of this kind that came."""
    return [frame for frame in peer.requests if frame.code == kind.CODE]


@contextmanager
def open_cluster(peer: Peer, timeout: float = 30.0) -> Iterator[mq.Broker]:
    """The broker object of the cluster whose name server is this peer."""
    with mq.open("rocketmq://" + peer.address, timeout=timeout) as broker:
        yield broker


class HeldRequests:
    """Requests of one kind that a broker answers later."""

    def __init__(self, peer: Peer, kind: type[Request]) -> None:
        self._peer = peer
        self._answering = peer.replies[kind.CODE]
        self._waiting: list[tuple[Link, Frame]] = []
        peer.on(kind.CODE, self._hold)

    async def _hold(self, link: Link, request: Frame) -> None:
        self._waiting.append((link, request))

    def wait(self) -> None:
        """Until one has come."""
        eventually(lambda: bool(self._waiting), lambda: self._peer.requests)

    def answer(self) -> None:
        self.wait()
        self._peer.run(self._answering(*self._waiting.pop()))


def joined(broker: mq.Broker, *, ordered: bool = False) -> RemoteMembership:
    """Member "one" of the group "billing"."""
    membership = broker.consumer_groups.join(
        "billing",
        client_id="one",
        model="clustering",
        consume_type="push",
        ordered=ordered,
        subscriptions=[Subscription("orders", "paid")],
        consume_from="first",
    )
    assert isinstance(membership, RemoteMembership)
    return membership
