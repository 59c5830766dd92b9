"""A frame: a request or an answer, in either direction.

On the wire, integers big-endian:

    offset  size  field
         0     4  size             of all that follows these four bytes
         4     1  header_encoding  0 JSON, 1 binary ("ROCKETMQ")
         5     3  header_size
         8     n  header           see json_header.py, binary_header.py
               n  body             the rest

A receiver uses the encoding named in the frame: 4.9 answers in the encoding of the request, 5.x in its own.
Frames and headers over their limit are rejected as soon as their size is known.

RocketMQ: remoting/protocol/RemotingCommand.java, remoting/netty/NettyDecoder.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final

from mq.errors import RemotingError
from mq.remoting.codec import binary_header, json_header
from mq.remoting.codec.language import VERSION, Language

__all__ = [
    "FRAME_SIZE_MAX",
    "HEADER_SIZE_MAX",
    "Frame",
    "FrameReader",
    "HeaderEncoding",
    "answer_to",
    "decode",
    "encode",
]

FRAME_SIZE_MAX: Final = 16 << 20
# RocketMQ allows 16 MiB. The largest real header has 32 KiB of message properties, and parsed JSON needs
# several times the memory of its text.
HEADER_SIZE_MAX: Final = 1 << 20
RESPONSE: Final = 1  # bits of flags
ONEWAY: Final = 2
_PREFIX = Struct(">II")
_SIZE = Struct(">I")
_SHOWN_MAX = 200


class HeaderEncoding(IntEnum):
    JSON = 0
    BINARY = 1


_HEADERS = {HeaderEncoding.JSON: json_header, HeaderEncoding.BINARY: binary_header}


@dataclass(slots=True)
class Frame:
    """One request or one answer. `code`: the request code or the response code.

    `opaque` is the sender's number of the request, and is repeated in the answer. Each end numbers its own
    requests, so an answer's opaque refers to a sent request, never to a received one. `fields` are the texts
    of the header class (see fields.py). `remark` is the answer's error text, "" for none.
    """

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flags: int = 0
    remark: str = ""
    language: Language = Language.PYTHON
    version: int = VERSION
    encoding: HeaderEncoding = HeaderEncoding.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flags & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer."""
        return bool(self.flags & ONEWAY)


def answer_to(
    request: Frame, code: int, fields: dict[str, str] | None = None, body: bytes = b"", remark: str = ""
) -> Frame:
    """The answer to a request, in the request's encoding: old clients support no other."""
    return Frame(code, fields or {}, body, request.opaque, RESPONSE, remark=remark, encoding=request.encoding)


def encode(frame: Frame) -> bytes:
    """The frame's bytes. Raises RemotingError if it is too large, or a text cannot be encoded as UTF-8."""
    try:
        header = _HEADERS[frame.encoding].encode(frame)
    except UnicodeEncodeError as error:
        raise RemotingError(
            f"request {frame.code} has half of a surrogate pair, which UTF-8 cannot hold: {error}"
        ) from None
    size = 4 + len(header) + len(frame.body)
    if len(header) > HEADER_SIZE_MAX or size > FRAME_SIZE_MAX:
        raise RemotingError(
            f"request {frame.code} with a header of {len(header):,} and a body of {len(frame.body):,} bytes "
            f" is over the limit of {HEADER_SIZE_MAX:,} for a header, or of {FRAME_SIZE_MAX:,} for a frame:"
            " send less at once"
        )
    return b"".join((_PREFIX.pack(size, frame.encoding << 24 | len(header)), header, frame.body))


def decode(content: bytes) -> Frame:
    """Decode a frame from its bytes without the size. Raises RemotingError."""
    if len(content) < 4:
        raise RemotingError(f"a frame of {len(content)} bytes has no room for the size of its header")
    mark: int = _SIZE.unpack_from(content)[0]
    header_size = mark & 0xFFFFFF
    if 4 + header_size > len(content) or header_size > HEADER_SIZE_MAX:
        raise RemotingError(
            f"a frame of {len(content):,} bytes says that its header has {header_size:,}; at most"
            f" {HEADER_SIZE_MAX:,} are taken"
        )
    header, body = content[4 : 4 + header_size], content[4 + header_size :]
    encoding = mark >> 24
    if encoding == HeaderEncoding.JSON:
        frame = Frame(*json_header.decode(header), encoding=HeaderEncoding.JSON)
    elif encoding == HeaderEncoding.BINARY:
        frame = Frame(*binary_header.decode(header), encoding=HeaderEncoding.BINARY)
    else:
        raise RemotingError(
            f"a frame says that its header is of encoding {encoding}, known are 0 (JSON) and 1 (binary)"
        )
    frame.body = body
    return frame


class FrameReader:
    """Decodes a stream into frames. After a RemotingError the stream cannot be continued: close it."""

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self._partial = bytearray()
        self._wanted = 4  # how many bytes _partial needs before the next step

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with these bytes."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return []
            data = bytes(self._partial)
            self._partial.clear()
        frames = []
        at, end = 0, len(data)
        while end - at >= 4:
            size = self._checked(_SIZE.unpack_from(data, at)[0], data)
            if end - at - 4 < size:
                break
            frames.append(decode(data[at + 4 : at + 4 + size]))
            at += 4 + size
        if at < end:
            self._partial += data[at:]
            left = end - at
            self._wanted = 4 + _SIZE.unpack_from(data, at)[0] if left >= 4 else 4
        return frames

    @property
    def is_between_frames(self) -> bool:
        return not self._partial

    def _checked(self, size: int, data: bytes) -> int:
        if not 4 <= size <= self._size_max:
            raise RemotingError(
                f"a frame says that it has {size:,} bytes, 4 to {self._size_max:,} are taken: the other end"
                f" may not speak RocketMQ's Remoting, it sent {data[:16].hex(' ')}"
            )
        return size
