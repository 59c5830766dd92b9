"""Messages: what a producer builds, and what a consumer receives.

A Message checks and encodes its properties (mq/properties.py) once, when it is made. A MessageExt is the
stored record (mq/store/log/commitlog.py has its layout), taken apart on demand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from operator import index
from socket import AF_INET, AF_INET6, inet_ntop
from typing import TYPE_CHECKING, Any

from mq.compression import COMPRESSED, decompress
from mq.errors import MessageInvalid
from mq.fastpath import SentFields, Signature, StoredFields, added_state, bind
from mq.names import check_topic, known_topics
from mq.properties import OWN_NAMES, RESERVED_NAMES, decode, encode, keys_of, number_of, value_of

# The encoded text of tags seen before. Emptied when full; with a short tag and a short key the limit
# of all properties is never reached.
_tag_prefixes: dict[str | None, bytes] = {None: b""}
_TAG_PREFIXES_MAX = 4096
_TAG_SIZE_SHORT = 128


class _Described:
    """What both kinds of message tell of themselves out of their property string."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def encoded(self) -> bytes: ...

    @property
    def tags(self) -> str | None:
        return value_of(self.encoded, b"TAGS\x01")

    @property
    def keys(self) -> tuple[str, ...]:
        return keys_of(self.encoded)

    @property
    def dedup_key(self) -> str | None:
        """The key under which it is stored once: see Producer's dedup_window."""
        return value_of(self.encoded, b"DEDUP_KEY\x01")

    @property
    def delay_level(self) -> int:
        return number_of(self.encoded, b"DELAY\x01") or 0

    @property
    def delay_ms(self) -> int | None:
        return number_of(self.encoded, b"TIMER_DELAY_MS\x01")

    @property
    def deliver_at_ms(self) -> int | None:
        return number_of(self.encoded, b"TIMER_DELIVER_MS\x01")


class Message(SentFields, _Described):
    """A message to be sent, never changed once it is made: it may be sent often, each time as a new one.

    `keys` is one key or several, each found by broker.query. At most one of delay_level (RocketMQ's 1
    to 18), delay_ms and deliver_at_ms may be given. With wait=False the broker answers before a
    synchronous flush. A dedup_key is one of its keys, under which a producer with a dedup_window stores it
    once. Raises TopicInvalid or MessageInvalid where RocketMQ's format has no room for it.

    `encoded` is the property string. `plain` tells the broker that nothing in it asks for other than
    the usual treatment: neither wait=False nor a delay nor a dedup_key.
    """

    __slots__ = ()

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        wait: bool = True,
        dedup_key: str | None = None,
    ) -> None: ...

    __signature__ = Signature(__init__)
    if not TYPE_CHECKING:
        del __init__  # It is in C.

    @property
    def properties(self) -> dict[str, str]:
        """What was given as such: the names that RocketMQ and mq keep for themselves are not among them."""
        own = RESERVED_NAMES | OWN_NAMES
        return {name: value for name, value in decode(self.encoded).items() if name not in own}

    @property
    def wait(self) -> bool:
        return self.plain or value_of(self.encoded, b"WAIT\x01") != "false"

    @property
    def delayed(self) -> bool:
        """Whether it is to be delivered later than it is sent."""
        return not self.plain and (
            self.delay_level > 0 or self.delay_ms is not None or self.deliver_at_ms is not None
        )

    def without_wait(self) -> Message:
        """The same message with wait=False."""
        if not self.wait:
            return self
        return Message(
            self.topic,
            self.body,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            flag=self.flag,
            delay_level=self.delay_level,
            delay_ms=self.delay_ms,
            deliver_at_ms=self.deliver_at_ms,
            wait=False,
            dedup_key=self.dedup_key,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.topic, self.body, self.flag, self.plain, self.encoded
        return type(self).restored, fields, added_state(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (
            self.topic == other.topic
            and self.flag == other.flag
            and self.encoded == other.encoded
            and (self.body == other.body)
        )

    def __hash__(self) -> int:
        return hash((self.topic, self.body, self.flag, self.encoded))

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {_short(self.body)}, {decode(self.encoded)})"


def _fields(
    topic: str,
    body: bytes | bytearray | memoryview,
    *,
    tags: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
    delay_level: int = 0,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
    wait: bool = True,
    dedup_key: str | None = None,
) -> tuple[str, bytes, int, bool, bytes]:
    """What a Message is made of, whatever it was given: topic, body, flag, plain, encoded."""
    if type(topic) is not str or topic not in known_topics:
        check_topic(topic)
    if type(body) is not bytes:
        body = _copied(body)
    if not body:
        raise MessageInvalid("the body is empty, which RocketMQ's clients refuse: send at least one byte")
    flag = _int32(flag)
    tags = _plain(tags)
    if isinstance(properties, Mapping):
        properties = {_plain(name): _plain(value) for name, value in properties.items()}
    encoded = encode(tags, keys, properties, delay_level, delay_ms, deliver_at_ms, wait, dedup_key)
    _remember(tags)
    plain = wait and not delay_level and dedup_key is None and delay_ms is deliver_at_ms is None
    return topic, body, flag, plain, encoded


# So that a wrong argument is told as one of Message.
_fields.__name__ = _fields.__qualname__ = "Message"
bind("topics", known_topics)
bind("prefixes", _tag_prefixes)
bind("build", _fields)
bind("message", Message)


class MessageExt(StoredFields, _Described):
    """A stored message: the record's bytes, every attribute decoded when it is asked for.

    body, like every attribute, is made anew each time: keep it if you need it twice.
    """

    __slots__ = ()

    def __init__(self, record: bytes, broker_name: str) -> None: ...

    __signature__ = Signature(__init__)
    if not TYPE_CHECKING:
        del __init__  # It is in C.

    @property
    def topic(self) -> str:
        at, size = _topic_span(self.record)
        return self.record[at : at + size].decode()

    def _decoded_body(self) -> bytes:
        """The body where it has to be decompressed, or does not lie where it usually does."""
        sys_flag, body = self.sys_flag, self.stored_body
        return decompress(body, sys_flag) if sys_flag & COMPRESSED else body

    @property
    def stored_body(self) -> bytes:
        """The body as it stands in the log, perhaps compressed."""
        at = _body_at(self.record)
        (size,) = _INT32.unpack_from(self.record, at - 4)
        return self.record[at : at + size]

    def _encoded_elsewhere(self) -> bytes:
        """The property string of a record with other than IPv4 hosts or a long topic."""
        at, size = _topic_span(self.record)
        return self.record[at + size + 2 :]

    @property
    def properties(self) -> dict[str, str]:
        """All properties, RocketMQ's own included; only the checksum of the record is left out."""
        properties = decode(self.encoded)
        properties.pop("__CRC32#", None)
        return properties

    @property
    def wait(self) -> bool:
        return value_of(self.encoded, b"WAIT\x01") != "false"

    @property
    def msg_id(self) -> str:
        """The unique id; of a record without one, RocketMQ takes the offset id."""
        return value_of(self.encoded, b"UNIQ_KEY\x01") or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        at, size = _store_host_span(self.record)
        return (self.record[at : at + size] + self.record[28:36]).hex().upper()

    @property
    def transaction_id(self) -> str | None:
        return value_of(self.encoded, b"__transactionId__\x01")

    @property
    def store_size(self) -> int:
        return len(self.record)

    @property
    def body_crc(self) -> int:
        return _int32_at(self.record, 8)

    @property
    def queue_id(self) -> int:
        return _int32_at(self.record, 12)

    @property
    def flag(self) -> int:
        return _int32_at(self.record, 16)

    @property
    def queue_offset(self) -> int:
        return _int64_at(self.record, 20)

    @property
    def log_offset(self) -> int:
        return _int64_at(self.record, 28)

    @property
    def sys_flag(self) -> int:
        return _int32_at(self.record, 36)

    @property
    def born_time_ms(self) -> int:
        return _int64_at(self.record, 40)

    @property
    def born_host(self) -> str:
        """Address and port, as in 10.0.0.5:10911 or [2001:db8::1]:10911."""
        return _host(self.record, 48, 20 if self.sys_flag & _BORN_HOST_V6 else 8)

    @property
    def store_time_ms(self) -> int:
        return _int64_at(self.record, _store_host_span(self.record)[0] - 8)

    @property
    def store_host(self) -> str:
        return _host(self.record, *_store_host_span(self.record))

    @property
    def reconsume_times(self) -> int:
        return _int32_at(self.record, _body_at(self.record) - 16)

    @property
    def prepared_transaction_offset(self) -> int:
        return _int64_at(self.record, _body_at(self.record) - 12)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).restored, (self.record, self.broker_name), added_state(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageExt):
            return NotImplemented
        return self.record == other.record and self.broker_name == other.broker_name

    def __hash__(self) -> int:
        return hash(self.record)

    def __repr__(self) -> str:
        return (
            f"MessageExt({self.topic!r}, {_short(self.stored_body)}, {self.properties},"
            f" queue_id={self.queue_id}, queue_offset={self.queue_offset})"
        )


bind("stored", MessageExt)


def unique_id_time_ms(unique_id: str, now_ms: int) -> int | None:
    """About when a unique id was made: to within a day, since it counts from the first instant of the
    month in its maker's time zone. None for what is no unique id.

    A unique id is upper-case hex of an IP address (4 or 16 bytes), the low 16 bits of the pid, a constant of
    the process (4 bytes), the ms since the month began (4), and a counter (2). The month is not in it: it is
    taken for the last one in which such a time is not in the future. So this narrows a search for
    messages of the last four weeks, and is wrong for older ones.
    """
    at = {32: 20, 56: 44}.get(len(unique_id))
    try:
        into_month = int(unique_id[at : at + 8], 16) if at else -1
        int(unique_id, 16)
    except ValueError:
        return None
    if not 0 <= into_month < 32 * _DAY_MS:
        return None
    now = datetime.fromtimestamp(now_ms / 1000, timezone.utc)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if month.timestamp() * 1000 + into_month > now_ms + _DAY_MS:
        month = (month - timedelta(days=1)).replace(day=1)
    return int(month.timestamp()) * 1000 + into_month


_DAY_MS = 86_400_000
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_BORN_HOST_V6 = 0x10
_STORE_HOST_V6 = 0x20
_MAGIC_V2 = b"\xda\xa3\x20\xab"


def _int32_at(record: bytes, at: int) -> int:
    number: int = _INT32.unpack_from(record, at)[0]
    return number


def _int64_at(record: bytes, at: int) -> int:
    number: int = _INT64.unpack_from(record, at)[0]
    return number


def _store_host_span(record: bytes) -> tuple[int, int]:
    sys_flag = _int32_at(record, 36)
    return (76 if sys_flag & _BORN_HOST_V6 else 64), (20 if sys_flag & _STORE_HOST_V6 else 8)


def _body_at(record: bytes) -> int:
    at, size = _store_host_span(record)
    return at + size + 16


def _topic_span(record: bytes) -> tuple[int, int]:
    at = _body_at(record)
    at += _int32_at(record, at - 4)
    if record[4:8] == _MAGIC_V2:
        return at + 2, int.from_bytes(record[at : at + 2], "big")
    return at + 1, record[at]


def _host(record: bytes, at: int, size: int) -> str:
    port = _int32_at(record, at + size - 4)
    if size == 8:
        return f"{inet_ntop(AF_INET, record[at : at + 4])}:{port}"
    return f"[{inet_ntop(AF_INET6, record[at : at + 16])}]:{port}"


def _remember(tags: str | None) -> None:
    if tags is not None and len(tags) < _TAG_SIZE_SHORT:
        if len(_tag_prefixes) >= _TAG_PREFIXES_MAX:
            _tag_prefixes.clear()
            _tag_prefixes[None] = b""
        _tag_prefixes[tags] = f"TAGS\x01{tags}\x02".encode()


def _plain(text: Any) -> Any:
    """A text of a class of its own as a str with the same characters: its __format__ may say something else,
    as that of an enum with texts for values does."""
    return str.__str__(text) if isinstance(text, str) and type(text) is not str else text


def _short(body: bytes) -> str:
    return repr(body) if len(body) <= 32 else f"{body[:32]!r}... ({len(body):,} bytes)"


def _copied(body: Any) -> bytes:
    try:
        return bytes(memoryview(body))
    except TypeError:
        hint = ", encode it first" if isinstance(body, str) else ""
        raise TypeError(f"a body is bytes, not {type(body).__name__}{hint}") from None


def _int32(flag: int) -> int:
    flag = index(flag)
    if not -(1 << 31) <= flag < 1 << 31:
        raise MessageInvalid(f"flag {flag} does not fit into 32 bits with a sign")
    return flag
