"""Sound frames, and what becomes of them on a hostile wire."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mq.remoting.codec.batch import encode_batch
from mq.remoting.codec.bodies.settings import TopicTable
from mq.remoting.codec.body_kind import BodyKind, Raw
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import Frame, HeaderEncoding, encode
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.registration import (
    Registration,
    encode_registration,
)
from mq.remoting.codec.requests import requests
from tests.remoting.vectors import PULLED
from tests.support.wire_values import Values

RECORD = bytes.fromhex(PULLED)[-198:]


def sound_frames(values: Values) -> Iterator[bytes]:
    """One request and one answer of each kind, in one of the encodings."""
    for request in requests().values():
        encoding = values.random.choice(list(HeaderEncoding))
        for header, kind in (
            (values.header(request), request.BODY),
            (values.header(request.ANSWER), request.ANSWER_BODY),
        ):
            body = body_bytes(kind, values)
            yield encode(Frame(request.CODE, encode_fields(header), body, encoding=encoding))


def body_bytes(kind: BodyKind, values: Values) -> bytes:
    if not isinstance(kind, Raw):
        return to_json(values.body(kind))
    return {
        Raw.NOTHING: b"",
        Raw.BYTES: b"body",
        Raw.BATCH: encode_batch([(b"one", b"TAGS\x01a\x02", 0), (b"two", b"", 1)]),
        Raw.RECORDS: RECORD * 2,
        Raw.TEXT_PROPERTIES: b"name=value\n",
        Raw.TIMER_CHECK: bytes(56),
        Raw.REGISTRATION: encode_registration(Registration(TopicTable()), compressed=True, version=479),
    }[kind]


def mutated(frame: bytes, random: Random) -> bytes:
    """Bytes changed, cut, repeated or put in; often so that the frame's size fits what is left of it."""
    content = bytearray(frame)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(content))
        match random.randrange(6):
            case 0:
                content[at] = random.randrange(256)
            case 1:
                content[at] ^= 1 << random.randrange(8)
            case 2:
                content[at : at + 4] = random.choice(
                    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b'{{"', b"[[[["]
                )
            case 3:
                del content[at : at + random.randint(1, 20)]
            case 4:
                content[at:at] = content[at : at + random.randint(1, 20)]
            case _:
                del content[max(at, 8) :]
        if len(content) < 8:
            return bytes(content)
    if random.random() < 0.8:
        content[:4] = (len(content) - 4).to_bytes(4, "big")
    return bytes(content)
