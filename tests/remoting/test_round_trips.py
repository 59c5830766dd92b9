"""Whatever the tables of the wire declare comes back as it was sent, in both encodings and in any pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import RemotingError
from mq.remoting.codec import fastjson
from mq.remoting.codec.batch import decode_batch, encode_batch
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, ConsumeType, Heartbeat, MessageModel
from mq.remoting.codec.bodies.route import BrokerAddresses, TopicRoute
from mq.remoting.codec.bodies.settings import DataVersion, TopicSettings, TopicTable
from mq.remoting.codec.bodies.stats import TopicStats
from mq.remoting.codec.body_kind import Raw
from mq.remoting.codec.fields import Answer, HeaderFields, Request, decode_fields, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, HeaderEncoding, answer_to, encode
from mq.remoting.codec.json_body import JsonBody, from_json, to_json
from mq.remoting.codec.registration import Registration, crc_of, decode_registration, encode_registration
from mq.remoting.codec.requests import request_of, requests
from mq.remoting.codec.requests.consuming import PullMessage
from mq.remoting.codec.requests.offsets import GetMaxOffset
from mq.remoting.codec.requests.sending import SendMessage, SendMessageV2
from mq.remoting.codec.text_properties import decode_properties, encode_properties
from tests.support.wire_values import FILLED, INT32, TEXTS, Values, bodies, frames, headers

REQUESTS = sorted(requests().values(), key=lambda request: request.CODE)
ANSWERS = sorted({request.ANSWER for request in REQUESTS}, key=lambda answer: answer.__name__)
BODIES = sorted(
    {
        kind
        for request in REQUESTS
        for kind in (request.BODY, request.ANSWER_BODY)
        if not isinstance(kind, Raw)
    },
    key=lambda body: body.__name__,
)


def test_the_table_is_whole() -> None:
    """Every request of the reference that a client, an operator's tool, a broker or a name server sends."""
    wanted = {
        10,
        310,
        320,
        36,
        37,
        39,
        324,
        325,
        326,
        370,
        11,
        361,
        14,
        15,
        29,
        30,
        31,
        32,
        33,
        12,
        34,
        35,
        46,
    }
    wanted |= {
        38,
        40,
        41,
        42,
        220,
        221,
        307,
        309,
        17,
        18,
        215,
        351,
        21,
        200,
        225,
        207,
        201,
        352,
        202,
        203,
        204,
    }
    wanted |= {
        208,
        317,
        222,
        223,
        300,
        303,
        343,
        345,
        305,
        308,
        314,
        315,
        321,
        323,
        25,
        26,
        28,
        306,
        316,
        329,
    }
    wanted |= {328, 105, 106, 103, 104, 322, 904, 901, 205, 327, 206, 216, 217, 224, 304, 100, 102, 101, 219}
    wanted |= {318, 319, 43, 45}
    assert wanted <= requests().keys()
    assert request_of(310) is SendMessageV2
    with pytest.raises(RemotingError, match="request code 9999 is not supported"):
        request_of(9999)


@given(st.sampled_from([*REQUESTS, *ANSWERS]).flatmap(headers))
def test_headers_survive_a_round_trip(header: HeaderFields) -> None:
    header_comes_back(header)


def header_comes_back(header: HeaderFields) -> None:
    for encoding in HeaderEncoding:
        (frame,) = FrameReader().feed(encode(Frame(1, encode_fields(header), encoding=encoding)))
        assert decode_fields(type(header), frame.fields) == header


@given(st.sampled_from(BODIES).flatmap(bodies))
def test_json_bodies_come_back(body: JsonBody) -> None:
    body_comes_back(body)


def body_comes_back(body: JsonBody) -> None:
    assert from_json(type(body), to_json(body)) == body
    assert from_json(type(body), to_json(body, quoted_numbers=True)) == body


def test_every_header_and_every_body_comes_back() -> None:
    values = Values(14)
    for declared in [*REQUESTS, *ANSWERS]:
        for _ in range(5):
            header_comes_back(values.header(declared))
    for body in BODIES:
        for _ in range(5):
            body_comes_back(values.body(body))


@given(st.lists(frames(), max_size=5), st.lists(st.integers(0, 300), max_size=5))
def test_frames_come_back_from_a_stream_cut_anywhere(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    reader = FrameReader()
    received = []
    for start, end in pairwise(places):
        received += reader.feed(stream[start:end])
    assert received == sent
    assert reader.is_between_frames


@given(st.lists(frames(), max_size=5), st.lists(st.integers(0, 300), max_size=5), st.integers(0, 60))
def test_a_body_that_is_too_large_is_dropped_and_nothing_else(
    sent: list[Frame], cuts: list[int], body_size_max: int
) -> None:
    stream = b"".join(map(encode, sent))
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    reader = FrameReader(body_size_max=body_size_max)
    received = []
    for start, end in pairwise(places):
        received += reader.feed(stream[start:end])
    for whole, found in zip(sent, received, strict=True):
        if found.dropped_size:
            assert found.dropped_size == len(whole.body) > body_size_max
            whole.body = b""
        assert found == whole
    assert reader.is_between_frames
    assert not reader.is_ready


def test_of_a_large_body_the_header_alone_is_kept() -> None:
    data = encode(Frame(10, {"topic": "orders"}, bytes(1 << 20)))
    reader = FrameReader(body_size_max=1000)
    assert reader.feed(data[:500]) == []
    assert reader.size == 0
    assert reader.partial_size == 1 << 20
    assert reader.feed(data[500:-1]) == []
    assert not reader.is_ready
    [frame] = reader.feed(data[-1:] + data[:10])
    assert (frame.fields, frame.body, frame.dropped_size) == ({"topic": "orders"}, b"", 1 << 20)
    assert (reader.size, reader.partial_size) == (10, 10)


def test_frames_that_are_complete_are_no_part_of_one() -> None:
    small = encode(Frame(10, {"topic": "orders"}, b"x"))
    reader = FrameReader()
    reader.add(small * 1000 + small[:7])
    assert reader.partial_size == 0
    for _ in range(1000):
        assert reader.next() is not None
    assert reader.partial_size == 7


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50), INT32), max_size=5))
def test_batches_survive_a_round_trip(messages: list[tuple[bytes, bytes, int]]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


@given(st.dictionaries(FILLED, TEXTS, max_size=5))
def test_java_properties_come_back(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_java_properties_as_people_write_them() -> None:
    text = (
        b"# a comment\n! another\r\nbrokerName = a\nnamesrvAddr: h:1;\\\n   h:2\n\nempty\nsp\\ ace=\\u00fc\\t"
    )
    assert decode_properties(text) == {
        "brokerName": "a",
        "namesrvAddr": "h:1;h:2",
        "empty": "",
        "sp ace": "ü\t",
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_the_lenient_reader_agrees_with_the_strict_one(value: Any) -> None:
    import json

    strict = json.dumps(value, allow_nan=False) if "inf" not in repr(value) else "[]"
    # What has a key that is no text is read by the lenient one.
    (found,) = fastjson.read(b'{{"k":1}:%s}' % strict.encode()).values()
    assert found == json.loads(strict)


def test_keys_that_are_no_texts() -> None:
    text = b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:{"minOffset":1,"maxOffset":2}}}'
    stats = from_json(TopicStats, text)
    ((queue, ends),) = stats.offset_table.items()
    assert (queue.topic, queue.broker_name, queue.queue_id) == ("t", "a", 0)
    assert (ends.min_offset, ends.max_offset) == (1, 2)
    for addresses in (b'{0:"h:1", 1 : "h:2"}', b'{"0":"h:1","1":"h:2"}'):
        body = b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":' + addresses + b"}]}\n"
        route = from_json(TopicRoute, body)
        assert route.broker_datas == (BrokerAddresses("a", {0: "h:1", 1: "h:2"}),)
        assert route.broker_datas[0].master == "h:1"
    written = to_json(route)
    assert b'{0:"h:1",1:"h:2"}' in written
    assert b'{"0":"h:1","1":"h:2"}' in to_json(route, quoted_numbers=True)


def test_what_clients_in_other_languages_send_is_understood() -> None:
    heartbeat = from_json(
        Heartbeat,
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeFromWhere":0,"consumeType":1,'
        b'"messageModel":1,"subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":"17"}]}],"x":[]}\n',
    )
    (group,) = heartbeat.consumer_data_set
    assert isinstance(group, ConsumerGroup)
    assert (group.consume_type, group.message_model) == (ConsumeType.PUSH, MessageModel.CLUSTERING)
    assert group.subscription_data_set[0].sub_version == 17
    frame = b'{"code":10,"extFields":{"batch":"1","queueId":3,"unitMode":false,"bname":null},"opaque":7}\n'
    (read,) = FrameReader().feed((len(frame) + 4).to_bytes(4, "big") + len(frame).to_bytes(4, "big") + frame)
    assert read.fields == {"batch": "1", "queueId": "3", "unitMode": "false"}
    assert (read.opaque, read.remark) == (7, "")


def test_a_field_that_is_missing_or_wrong_is_named() -> None:
    with pytest.raises(RemotingError, match="GetMaxOffset lacks the field 'topic'"):
        decode_fields(GetMaxOffset, {"queueId": "1"})
    for wrong in ("", "x", "1.5", "99999999999", "-", "\u0661"):
        with pytest.raises(RemotingError, match="'queueId'"):
            decode_fields(GetMaxOffset, {"topic": "t", "queueId": wrong})
    with pytest.raises(RemotingError, match="queue_id of GetMaxOffset is 2147483648"):
        encode_fields(GetMaxOffset("t", 1 << 31))


def test_a_member_that_is_missing_or_wrong_is_named() -> None:
    with pytest.raises(RemotingError, match=r"no TopicRoute: brokerDatas.brokerAddrs must be an object"):
        from_json(TopicRoute, b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":[]}]}')
    with pytest.raises(RemotingError, match=r"no Heartbeat: clientID must be a text"):
        from_json(Heartbeat, b"")
    with pytest.raises(RemotingError, match="a body is no JSON"):
        from_json(Heartbeat, b'{"clientID":')


def test_a_class_of_fields_serves_several_requests() -> None:
    values = ("g", "t", "TBW102", 4, 0, 0, 1, 0)
    assert list(encode_fields(SendMessageV2(*values))) == list("abcdefgh")
    assert list(encode_fields(SendMessage(*values)))[:3] == ["producerGroup", "topic", "defaultTopic"]


def test_an_answer_goes_back_in_the_encoding_of_the_request() -> None:
    request = Frame(PullMessage.CODE, opaque=9, encoding=HeaderEncoding.BINARY)
    answer = answer_to(request, 19, remark="nothing")
    assert (answer.opaque, answer.encoding, answer.is_response) == (9, HeaderEncoding.BINARY, True)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("version", [409, 479])
def test_a_registration_comes_back(compressed: bool, version: int) -> None:
    topics = {
        "orders": TopicSettings("orders", 4, 4, 6, attributes={"message.type": "FIFO"}),
        "bills": TopicSettings("bills", 1, 1, 4),
    }
    sent = Registration(TopicTable(topics, DataVersion(3, 1_700_000_000_000)), ("h:1",))
    body = encode_registration(sent, compressed=compressed, version=version)
    assert decode_registration(body, compressed=compressed, version=version) == sent
    assert 0 < crc_of(body) < 1 << 31
    if compressed:
        for wrong in (body[:-1], b"x" + body, b""):
            with pytest.raises(RemotingError, match="a broker's registration"):
                decode_registration(wrong, compressed=True, version=version)


def test_answers_without_fields_are_read_from_any() -> None:
    for request in REQUESTS:
        if not encode_needed(request.ANSWER):
            assert decode_fields(request.ANSWER, {"unknown": "1"}) == request.ANSWER()


def encode_needed(answer: type[Answer]) -> bool:
    try:
        decode_fields(answer, {})
    except RemotingError:
        return True
    return False


def test_requests_are_values() -> None:
    assert issubclass(GetMaxOffset, Request)
    first, second = GetMaxOffset("t", 1), GetMaxOffset("t", 1)
    assert first == second
    assert hash(first) == hash(second)
