"""Whatever the other end sends, it is a frame or a RemotingError, and costs no more memory than was sent."""

from __future__ import annotations

import tracemalloc

import pytest

from mq.errors import MQError, RemotingError
from mq.remoting.codec import fastjson
from mq.remoting.codec.batch import decode_batch
from mq.remoting.codec.bodies.route import TopicRoute
from mq.remoting.codec.body_kind import BATCH, RECORDS, TEXT_PROPERTIES, BodyKind, Raw
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import FRAME_SIZE_MAX, Frame, FrameReader, HeaderEncoding, decode, encode
from mq.remoting.codec.json_body import from_json
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.registration import (
    decode_registration,
)
from mq.remoting.codec.requests import request_of
from mq.remoting.codec.text_properties import decode_properties
from tests.remoting.mutations import RECORD, mutated, sound_frames
from tests.support.wire_values import Values


def take_apart(stream: bytes) -> int:
    """What either end does with it: how many frames were understood."""
    understood = 0
    reader = FrameReader()
    try:
        for frame in reader.feed(stream):
            request = request_of(frame.code)
            for declared, kind in ((request, request.BODY), (request.ANSWER, request.ANSWER_BODY)):
                try:
                    decode_fields(declared, frame.fields)
                    decode_body(kind, frame.body)
                    understood += 1
                except MQError:
                    continue
    except MQError:
        pass
    return understood


def decode_body(kind: BodyKind, body: bytes) -> None:
    if not isinstance(kind, Raw):
        from_json(kind, body)
    elif kind is RECORDS:
        for message in decode_records(body, "a", rewritten=len(body) % 2 == 0):
            assert message.topic is not None
            assert message.properties is not None
            assert message.stored_body is not None
    elif kind is BATCH:
        decode_batch(body)
    elif kind is TEXT_PROPERTIES:
        decode_properties(body)
    elif kind is Raw.REGISTRATION:
        decode_registration(body, compressed=True, version=479)


def fuzz(count: int, seed: int) -> None:
    values = Values(seed)
    sound = list(sound_frames(values))
    for frame in sound:
        assert take_apart(frame) >= 1
    for number in range(count):
        frame = values.random.choice(sound)
        if number % 10 == 0:
            take_apart(values.random.randbytes(values.random.randint(0, 200)))
        else:
            take_apart(mutated(frame, values.random))


def test_mutated_frames_are_understood_or_refused() -> None:
    fuzz(4_000, seed=20)


@pytest.mark.rounds
def test_many_mutated_frames_are_understood_or_refused_in_constant_memory() -> None:
    fuzz(5_000, seed=0)
    tracemalloc.start()
    try:
        for seed in range(1, 21):
            fuzz(10_000, seed)
            if seed == 1:
                first = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] < first + (1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "start",
    [
        b"\x00\xff\xff\xff\x00\xff\xff\xf0",  # a frame and a header of 16 MiB
        b"\x7f\xff\xff\xff\x00\x00\x00\x01",
        b"\xff\xff\xff\xff\x00\x00\x00\x01",
        b"\x00\x00\x00\x20\x00\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x03\x00\x00\x00",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_a_length_that_lies_allocates_nothing(start: bytes) -> None:
    stream = start + bytes(100)
    tracemalloc.start()
    try:
        reader = FrameReader()
        try:
            frames = reader.feed(stream)
        except RemotingError as error:
            assert str(error)  # noqa: PT017 - some of them wait for more instead
        else:
            assert frames == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def binary(remark_size: int, fields_size: int, rest: bytes) -> bytes:
    fixed = bytes.fromhex("0000 03 019900000001 00000001".replace(" ", ""))
    header = (
        fixed
        + remark_size.to_bytes(4, "big", signed=True)
        + fields_size.to_bytes(4, "big", signed=True)
        + rest
    )
    return (1 << 24 | len(header)).to_bytes(4, "big") + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x00",
        b"\x02\x00\x00\x02{}",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x02[]",
        b'\x00\x00\x00\x10{"code":"eleven"',
        b"\x01\x00\x00\x03abc",
        binary(-1, 0, b""),
        binary(1 << 30, 0, b""),
        binary(0, -1, b""),
        binary(0, 1 << 30, b""),
        binary(0, 2, b"\xff\xff"),
        binary(0, 6, b"\x00\x00\x7f\xff\xff\xff"),
        binary(0, 7, b"\x00\x01a\xff\xff\xff\xff"),
        binary(0, 1, b"\x00"),
    ],
)
def test_a_header_that_lies_is_refused(content: bytes) -> None:
    with pytest.raises(RemotingError, match=r"header|frame"):
        decode(content)


@pytest.mark.parametrize(
    "member", ['"code":1e9', '"code":true', '"code":4294967296', '"extFields":[1]', '"flag":"x"']
)
def test_a_member_of_a_wrong_kind_is_refused(member: str) -> None:
    header = f"{{{member}}}".encode()
    with pytest.raises(RemotingError, match=r"header"):
        decode(len(header).to_bytes(4, "big") + header)


@pytest.mark.parametrize("escape", ["", "\\u0041"])
@pytest.mark.parametrize("depth", [850, 5_000])
def test_a_header_of_many_arrays_is_refused_or_read(depth: int, escape: str) -> None:
    header = f'{{"code":1,"extFields":{{"a{escape}":{"[" * depth}{"]" * depth}}}}}'.encode()
    frame = len(header).to_bytes(4, "big") + header
    try:
        assert len(decode(frame).fields) == 1
    except RemotingError as error:
        assert "the header of a frame is no JSON" in str(error)  # noqa: PT017 - it may be read as well


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"a":' * 50_000,
        b"[" * 65 + b"0:" + b"]" * 65,
        b"1" * 5_000,
        b"{1:" + b"1" * 5_000 + b"}",
        b'{0:"',
        b"{[1]:2}",
        b'{{"a":{}}:2}',
        b'{0:"a"} x',
        b"{a}",
        b"\xff\xfe",
    ],
)
def test_json_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(RemotingError, match="a body is no JSON"):
        fastjson.read(text)


def test_halves_of_surrogate_pairs_become_question_marks() -> None:
    assert fastjson.read(b'["\\ud83d\\ude00 \\ud83d \\ude00"]') == ["\U0001f600 ? ?"]
    header = b'{"code":1,"remark":"\\ud800","extFields":{"\\udc00":"\\ud83d\\ude00"}}'
    frame = decode(len(header).to_bytes(4, "big") + header)
    assert (frame.remark, frame.fields) == ("?", {"?": "\U0001f600"})
    encode(frame)


def test_what_does_not_fit_into_a_frame_is_refused_before_it_is_sent() -> None:
    with pytest.raises(RemotingError, match="over the limit"):
        encode(Frame(310, body=bytes(FRAME_SIZE_MAX)))
    with pytest.raises(RemotingError, match="over the limit"):
        encode(Frame(310, {"i": "x" * (1 << 20)}))
    with pytest.raises(RemotingError, match="surrogate"):
        encode(Frame(310, {"i": "\ud800"}))
    with pytest.raises(RemotingError, match="send it with a JSON header"):
        encode(Frame(200_050, encoding=HeaderEncoding.BINARY))
    with pytest.raises(RemotingError, match="binary header"):
        encode(Frame(310, version=1 << 20, encoding=HeaderEncoding.BINARY))


def test_a_record_that_lies_is_refused() -> None:
    assert [message.body for message in decode_records(RECORD * 3, "a")] == [b"hello"] * 3
    for wrong in (RECORD[:-1], RECORD + b"\0", RECORD[:84] + b"\x7f\xff\xff\xff" + RECORD[88:]):
        with pytest.raises(RemotingError, match="broker 'a' sent messages that are damaged"):
            decode_records(wrong, "a")
    changed = RECORD.replace(b"hello", b"hallo")
    with pytest.raises(RemotingError, match="checksum"):
        decode_records(changed, "a")
    assert decode_records(changed, "a", rewritten=True)[0].body == b"hallo"


@pytest.mark.parametrize(
    "body",
    [
        b"\0\0\0\x16" + bytes(17),
        b"\0\0\0\x15" + bytes(18),
        b"\0\0\0\x16" + bytes(12) + b"\0\0\0\x05\0\0",
        b"\0",
    ],
)
def test_a_batch_that_lies_is_refused(body: bytes) -> None:
    with pytest.raises(RemotingError, match="batch"):
        decode_batch(body)


def test_a_route_of_a_name_server_that_is_none() -> None:
    with pytest.raises(RemotingError, match="no TopicRoute"):
        from_json(TopicRoute, b'["not a route"]')
