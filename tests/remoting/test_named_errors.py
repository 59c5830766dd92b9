"""Errors of a cluster say the address and what was tried."""

from __future__ import annotations

import asyncio
import pickle

import pytest

import mq
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.sending import RecallMessage
from mq.remoting.codec.response_codes import ResponseCode
from tests.remoting.conftest import ECHO
from tests.support.fake_cluster import FakeCluster, open_cluster
from tests.support.remoting_peer import Link, Peer, silence


def test_a_timeout_says_the_address_and_the_request(peer: Peer, remoting: Remoting) -> None:
    peer.on(GetRoute.CODE, silence)
    remoting.call(peer.address, Frame(ECHO))
    said = rf"{peer.address} did not answer GET_ROUTEINFO_BY_TOPIC \(105\) within 0\.1 s"
    with pytest.raises(mq.RequestTimeout, match=said) as caught:
        remoting.call(peer.address, framed(GetRoute("orders")), 0.1)
    assert caught.value.address == peer.address
    assert pickle.loads(pickle.dumps(caught.value)).address == peer.address


def test_a_timeout_of_a_connection_says_the_address(
    remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(*_: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr("mq.remoting.client.connections.remoting.dial", hanging)
    with pytest.raises(mq.RequestTimeout) as caught:
        remoting.call("h:1", Frame(ECHO), 0.1)
    assert caught.value.address == "h:1"
    with pytest.raises(mq.RequestTimeout) as caught:
        remoting.submit("h:1", Frame(ECHO), 0.1).result(30)
    assert caught.value.address == "h:1"


def test_a_server_of_another_protocol_is_one_named_error(peer: Peer, remoting: Remoting) -> None:
    async def http(link: Link, request: Frame) -> None:
        link.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    peer.on(ECHO, http)
    with pytest.raises(mq.ProtocolMismatch, match="is it a broker or a name server") as caught:
        remoting.call(peer.address, Frame(ECHO))
    assert caught.value.address == peer.address


def test_a_broker_without_the_request_is_one_named_error() -> None:
    answer = Frame(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="request type 370 not supported")
    answer.version = 401
    with pytest.raises(mq.ProtocolMismatch, match=r"RECALL_MESSAGE .*version, number 401, lacks") as caught:
        checked(answer, RecallMessage, "h:1")
    assert (caught.value.code, caught.value.address) == (3, "h:1")


def test_a_broker_that_is_not_known_says_who_was_asked(peer: Peer) -> None:
    FakeCluster(peer)
    with open_cluster(peer) as broker, pytest.raises(mq.RemotingError, match="'gone' has no") as caught:
        broker.append_batch(mq.MessageQueue("orders", "gone", 0), [mq.Message("orders", b"1")])
    assert caught.value.address == peer.address
