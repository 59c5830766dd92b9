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
# The largest real header has 30. Each costs over a hundred bytes of memory, and can be seven on the wire.
FIELD_COUNT_MAX: Final = 1024
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
    size: int = field(default=0, compare=False)
    """The bytes it had on the wire, without the size and a dropped body; 0 if it was not received."""
    dropped_size: int = field(default=0, compare=False)
    """The bytes of a body that was too large to be kept: see FrameReader."""
    address: str = field(default="", compare=False)
    """The host:port that an answer came from, for errors; "" if it was not received."""

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
    header_size = _checked_header_size(mark, len(content))
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
    frame.size = len(content)
    if len(frame.fields) > FIELD_COUNT_MAX:
        raise RemotingError(
            f"the header of a frame has {len(frame.fields):,} fields, at most {FIELD_COUNT_MAX:,} are taken"
        )
    return frame


def _checked_header_size(mark: int, frame_size: int) -> int:
    header_size = mark & 0xFFFFFF
    if 4 + header_size > frame_size or header_size > HEADER_SIZE_MAX:
        raise RemotingError(
            f"a frame of {frame_size:,} bytes says that its header has {header_size:,}; at most"
            f" {HEADER_SIZE_MAX:,} are taken"
        )
    return header_size


class FrameReader:
    """Decodes a stream into frames. After a RemotingError the stream cannot be continued: close it.

    A body over body_size_max is dropped while it comes; its frame says how large it was.
    """

    def __init__(self, size_max: int = FRAME_SIZE_MAX, body_size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self._body_size_max = body_size_max
        self._data: bytes | bytearray = b""
        self._at = 0  # where in _data the next frame begins
        self._dropping: Frame | None = None  # whose body is dropped
        self._drop_count = 0  # bytes of it that are still to come

    @property
    def size(self) -> int:
        """The bytes that are kept until they are decoded."""
        return len(self._data) - self._at

    @property
    def partial_size(self) -> int:
        """How much has come of the frame that is not complete; 0 if one is. Of a body that is dropped, all
        of it counts."""
        if self.is_ready:
            return 0
        return self._dropping.dropped_size if self._dropping is not None else self.size

    @property
    def is_ready(self) -> bool:
        """Whether next() returns a frame, or raises."""
        if self._dropping is not None:
            return not self._drop_count
        left = len(self._data) - self._at
        if left < 4:
            return False
        size = _SIZE.unpack_from(self._data, self._at)[0]
        return left - 4 >= size or not self._is_valid(size)

    @property
    def is_between_frames(self) -> bool:
        return len(self._data) == self._at and self._dropping is None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with these bytes."""
        self.add(data)
        frames = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames

    def add(self, data: bytes) -> None:
        """Append bytes of the stream."""
        if self._drop_count:
            dropped = min(self._drop_count, len(data))
            self._drop_count -= dropped
            data = data[dropped:]
        if len(self._data) == self._at:
            self._data, self._at = data, 0
        elif isinstance(self._data, bytearray):
            del self._data[: self._at]
            self._at = 0
            self._data += data
        else:
            self._data, self._at = bytearray(memoryview(self._data)[self._at :]), 0
            self._data += data

    def next(self) -> Frame | None:
        """Decode the next frame; None if it is not complete."""
        if self._dropping is not None:
            if self._drop_count:
                return None
            frame, self._dropping = self._dropping, None
            return frame
        data, at = self._data, self._at
        left = len(data) - at
        if left < 4:
            return None
        size = _SIZE.unpack_from(data, at)[0]
        if not self._is_valid(size):
            raise RemotingError(
                f"a frame says that it has {size:,} bytes, 4 to {self._size_max:,} are taken: the other end"
                f" may not speak RocketMQ's Remoting, it sent {bytes(data[at : at + 16]).hex(' ')}"
            )
        if left - 4 < size:
            if size > self._body_size_max:
                self._drop_body(size)
            return None
        at += 4
        content = data[at : at + size] if isinstance(data, bytes) else bytes(memoryview(data)[at : at + size])
        at += size
        if at == len(data):
            self._data, self._at = b"", 0
        else:
            self._at = at
        return decode(content)

    def _drop_body(self, size: int) -> None:
        """Drop the body of the frame that comes, if its header has come, and the body is too large."""
        data, at, left = self._data, self._at + 4, len(self._data) - self._at - 4
        if left < 4:
            return
        header_end = 4 + _checked_header_size(_SIZE.unpack_from(data, at)[0], size)
        body_size = size - header_end
        if body_size <= self._body_size_max or left < header_end:
            return
        frame = decode(bytes(memoryview(data)[at : at + header_end]))
        frame.dropped_size = body_size
        self._dropping, self._drop_count = frame, size - left
        self._data, self._at = b"", 0

    def clear(self) -> None:
        """Drop what is kept."""
        self._data, self._at = b"", 0

    def _is_valid(self, size: int) -> bool:
        return 4 <= size <= self._size_max
