"""Messages by id and by key where brokers fail, and where they give fewer than they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mq
from mq.remoting.codec.bodies.route import TopicNames
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame, answer_to
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.language import Language
from mq.remoting.codec.requests.consuming import QueryAnswer, QueryMessage, ViewMessageById
from mq.remoting.codec.requests.name_servers import GetTopicList
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.fake_cluster import FakeCluster, open_cluster
from tests.support.records import encode_record, encoded
from tests.support.remoting_peer import Link, Peer, with_code
from tests.support.served_brokers import ServedBrokers, served_brokers

ANSWER_COUNT_MAX = 64  # of RocketMQ's index, whatever a client asks for
NONE = ResponseCode.QUERY_NOT_FOUND


@pytest.fixture
def served(peer: Peer, tmp_path: Path) -> Iterator[ServedBrokers]:
    with served_brokers(peer, tmp_path) as served:
        for store in served.stores.values():
            store.create_topic("orders", 1)
        yield served


@pytest.mark.parametrize("down", ["a", "b"])
def test_a_message_is_found_while_another_broker_is_down(
    peer: Peer, served: ServedBrokers, down: str
) -> None:
    sent = {name: store.topic("orders").send(b"x") for name, store in served.stores.items()}
    address = served.servers[down].address
    served.servers[down].close()
    with open_cluster(peer) as broker:
        for name, result in sent.items():
            if name != down:
                assert broker.message(result.msg_id).broker_name == name
            else:
                with pytest.raises(mq.RemotingError, match=f"{address} cannot be reached"):
                    broker.message(result.msg_id)
            with pytest.raises(mq.RemotingError, match=f"{address} cannot be reached"):
                broker.query("orders", result.msg_id)  # It would lack what that broker has.


def offset_id(peer: Peer, log_offset: int) -> str:
    place = bytes([127, 0, 0, 1]) + peer.port.to_bytes(4, "big") + log_offset.to_bytes(8, "big")
    return place.hex().upper()


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 7", mq.MessageNotFound),
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: no", mq.RemotingError),
        (ResponseCode.SYSTEM_BUSY, "too many requests", mq.RemotingError),
        (ResponseCode.NO_PERMISSION, "the broker may not be read", mq.NotPermitted),
    ],
    ids=["none", "denied_by_4.9", "busy", "denied"],
)
def test_only_a_broker_that_says_so_has_no_message(
    peer: Peer, code: ResponseCode, remark: str, kind: type[mq.MQError]
) -> None:
    cluster = FakeCluster(peer)
    cluster.queue_counts["orders"] = 1

    async def topics(link: Link, request: Frame) -> None:
        link.answer(request, body=to_json(TopicNames(("orders",))))

    peer.on(GetTopicList.CODE, topics)
    peer.on(QueryMessage.CODE, with_code(NONE))
    peer.on(ViewMessageById.CODE, with_code(code, remark))
    with open_cluster(peer) as broker, pytest.raises(kind) as caught:
        broker.message(offset_id(peer, 7))
    if kind is not mq.MessageNotFound:
        assert remark in str(caught.value)


def indexed(peer: Peer, times: list[int], step: int, language: Language) -> list[bool]:
    """Have a broker with messages of key "k", stored at these times, whose index counts in steps of some ms;
    with 0 it does not look at times. Of each question: whether it is for a unique id."""
    FakeCluster(peer).queue_counts["orders"] = 1
    asked: list[bool] = []

    async def query(link: Link, request: Frame) -> None:
        wanted = decode_fields(QueryMessage, request.fields)
        asked.append(bool(wanted.is_unique_key))
        begin, end = wanted.begin_timestamp, wanted.end_timestamp
        first = times[0]  # from which RocketMQ's index file counts
        found = [
            number
            for number, time in enumerate(times)
            if not step or begin <= first + (time - first) // step * step <= end
        ]
        found = found[-min(wanted.max_num, ANSWER_COUNT_MAX) :]
        if wanted.is_unique_key or not found:
            link.send(replace(answer_to(request, NONE, remark="none"), language=language))
            return
        properties = encoded({"KEYS": "k"})
        records = [
            encode_record(
                "orders", 0, number, 1000 * number, b"%d" % number, properties, store_time_ms=times[number]
            )
            for number in found
        ]
        fields = encode_fields(QueryAnswer(0, 0))
        link.send(replace(answer_to(request, 0, fields, b"".join(records)), language=language))

    peer.on(QueryMessage.CODE, query)
    return asked


def numbers(broker: mq.Broker, **options: int) -> list[int]:
    return [int(message.body) for message in broker.query("orders", "k", **options)]


def test_more_messages_of_a_key_are_found_than_an_answer_has(peer: Peer) -> None:
    times = [1_000_000 + 130 * number for number in range(200)]
    asked = indexed(peer, times, 1000, Language.JAVA)
    with open_cluster(peer) as broker:
        assert numbers(broker, count_max=1000) == list(range(199, -1, -1))
        assert numbers(broker, count_max=150) == list(range(199, 49, -1))
        assert numbers(broker, count_max=1000, begin_ms=times[10], end_ms=times[180]) == list(
            range(180, 9, -1)
        )
        asked.clear()
        assert numbers(broker, count_max=64) == list(range(199, 135, -1))
        assert asked == [False, True]


@pytest.mark.parametrize(
    ("step", "language"), [(1000, Language.JAVA), (1, Language.PYTHON)], ids=["rocketmq", "served"]
)
@pytest.mark.parametrize("phase", [0, 999])
def test_older_messages_are_found_where_an_answer_has_less_than_a_step(
    peer: Peer, step: int, language: Language, phase: int
) -> None:
    """The older ones are in the steps right before it, or long before."""
    first = 1_000_000 + phase
    burst = first + 5 * step
    older = [first, burst - 2 * step, burst - 1]
    times = [*older, *[burst + number * step // 100 for number in range(100)]]
    asked = indexed(peer, times, step, language)
    with open_cluster(peer) as broker:
        assert numbers(broker, count_max=1000) == [*range(102, 38, -1), 2, 1, 0]
        assert numbers(broker, count_max=1000, begin_ms=first + 1) == [*range(102, 38, -1), 2, 1]
    assert len(asked) < 20


def test_a_broker_that_tells_what_it_was_not_asked_for_is_not_asked_for_ever(peer: Peer) -> None:
    indexed(peer, [1_000_000] * 100, 0, Language.JAVA)
    with open_cluster(peer) as broker:
        assert numbers(broker, count_max=1000) == list(range(99, 35, -1))
