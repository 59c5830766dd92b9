"""The property string: all that RocketMQ knows of a message besides topic, body and flag.

UTF-8; for each property

    name 01 value 02

without escaping: neither byte may occur inside, and neither side may be empty. Tags and keys are
properties too (TAGS; KEYS, several of them joined by one space), and so are delays (DELAY: a level;
TIMER_DELAY_MS, TIMER_DELIVER_MS) and WAIT, which we write only where it is false. A reader drops pieces
without a name or a value; of equal names the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

from mq.errors import MessageInvalid

DELAY_LEVEL_MAX = 18
UNIQUE_PROPERTY_SIZE = 42  # "UNIQ_KEY" 01, 32 digits, 02
CRC_PROPERTY_SIZE = 20  # "__CRC32#" 01, 10 digits, 02
# What the broker adds must fit into the signed 16-bit size as well.
PROPERTIES_SIZE_MAX = 32_767 - UNIQUE_PROPERTY_SIZE - CRC_PROPERTY_SIZE

# INNER_NUM and INNER_BASE are not on RocketMQ's own list, but where a record has one of them without
# the flags of a batch, its recovery may cut the log. MQ_BULK is ours, and for our recovery the same.
RESERVED_NAMES = frozenset(
    """KEYS TAGS WAIT DELAY UNIQ_KEY EXTEND_UNIQ_INFO RETRY_TOPIC REAL_TOPIC REAL_QID ORIGIN_MESSAGE_ID
    RECONSUME_TIME MAX_RECONSUME_TIMES TRAN_MSG PGROUP TRAN_PREPARED_QUEUE_OFFSET MIN_OFFSET MAX_OFFSET
    MSG_REGION TRACE_ON CLUSTER CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME MSG_TYPE
    CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS
    TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
    DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID BUYER_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG DUP_INFO
    INSTANCE_ID INNER_MULTI_QUEUE_OFFSET __BORNHOST BORN_TIMESTAMP __CRC32# INNER_NUM INNER_BASE
    MQ_BULK""".split()  # noqa: SIM905 - as a list it would fill a screen
)
OWN_NAMES = frozenset({"DEDUP_KEY"})  # of mq, each with an argument of its own
BLANKS = "".join(map(chr, range(33)))  # what RocketMQ trims from the tags of an expression
BLANK = re.compile(f"[{re.escape(BLANKS)}]")
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."  # hints that a RocketMQ broker strips before it stores a message


def encode(
    tags: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
    delay_level: int,
    delay_ms: int | None,
    deliver_at_ms: int | None,
    wait: bool,
    dedup_key: str | None = None,
) -> bytes:
    """The property string of what was given, every limit checked."""
    text = ""
    if tags is not None:
        text = f"TAGS\x01{_checked_tag(tags)}\x02"
    named = _checked_keys(keys)
    if dedup_key is not None and _checked_key(dedup_key) not in named:
        named.append(dedup_key)
    if joined := " ".join(named):
        text += f"KEYS\x01{joined}\x02"
    if dedup_key is not None:
        text += f"DEDUP_KEY\x01{dedup_key}\x02"
    if properties is not None:
        if not isinstance(properties, Mapping):
            raise TypeError(f"properties are a dict of texts, not {type(properties).__name__}")
        for name, value in properties.items():
            text += f"{_checked_name(name)}\x01{_checked(f'property {name!r}', value)}\x02"
    if type(wait) is not bool:
        raise TypeError(f"wait is True or False, not {wait!r}")
    if not wait:
        text += "WAIT\x01false\x02"
    text += _encode_delay(delay_level, delay_ms, deliver_at_ms)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise MessageInvalid(
            f"a property, key or tag has half of a surrogate pair, which UTF-8 cannot hold: {error}"
        ) from None
    if len(encoded) > PROPERTIES_SIZE_MAX:
        raise MessageInvalid(
            f"tags, keys and properties come to {len(encoded):,} bytes, over the limit of"
            f" {PROPERTIES_SIZE_MAX:,}: move what is large into the body"
        )
    return encoded


def _encode_delay(delay_level: int, delay_ms: int | None, deliver_at_ms: int | None) -> str:
    delay_level = _whole("delay_level", delay_level)
    if not 0 <= delay_level <= DELAY_LEVEL_MAX:
        raise MessageInvalid(f"delay_level {delay_level} must be 0 (none) to {DELAY_LEVEL_MAX}")
    if (delay_level > 0) + (delay_ms is not None) + (deliver_at_ms is not None) > 1:
        raise MessageInvalid("delay_level, delay_ms and deliver_at_ms exclude each other: give one of them")
    text = f"DELAY\x01{delay_level}\x02" if delay_level else ""
    for argument, name, value in (
        ("delay_ms", "TIMER_DELAY_MS", delay_ms),
        ("deliver_at_ms", "TIMER_DELIVER_MS", deliver_at_ms),
    ):
        if value is None:
            continue
        number = _whole(argument, value)
        if not 0 <= number < 1 << 63:
            raise MessageInvalid(f"{argument} {number} must be 0 or more, and fit into 64 bits with a sign")
        text += f"{name}\x01{number}\x02"
    return text


def _whole(argument: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} is a whole number, not {value!r}")
    return index(value)


def _checked(what: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value or value.isspace():
        raise MessageInvalid(f"{what} is blank, which RocketMQ's readers drop: leave it out")
    if "\x01" in value or "\x02" in value:
        raise MessageInvalid(f"{what} {value!r} has a character 01 or 02, which separate properties")
    return value


def _checked_tag(tag: str) -> str:
    """One that a tag expression can name."""
    tag = _checked("tags", tag)
    if tag == "*":
        raise MessageInvalid("tags '*' stands for all tags where it is subscribed to: choose another text")
    if "||" in tag:
        raise MessageInvalid(
            f"tags {tag!r} has ||, which separates tags where it is subscribed to: a message has one tag;"
            " what else there is to select by goes into properties, for sql"
        )
    if BLANK.search(tag):
        raise MessageInvalid(
            f"tags {tag!r} has a blank or a control character, which is cut off at the ends of a tag"
            " where it is subscribed to: write a hyphen instead"
        )
    return tag


def _checked_keys(keys: Any) -> list[str]:
    if isinstance(keys, str):
        return [_checked_key(keys)]
    if isinstance(keys, (bytes, bytearray)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys is a str, or several in a list, not {keys!r}: str() makes a key of a number")
    return [_checked_key(key) for key in keys]


def _checked_key(key: str) -> str:
    if " " in _checked("a key", key):
        raise MessageInvalid(f"key {key!r} has a space, which separates keys: give several as a list")
    return key


def _checked_name(name: str) -> str:
    _checked("the name of a property", name)
    if name in RESERVED_NAMES or name.startswith(TRANSIENT_PREFIX):
        raise MessageInvalid(f"property name {name!r} is reserved by RocketMQ: choose another")
    if name in OWN_NAMES:
        raise MessageInvalid(f"property {name!r} is written by mq: give {name.lower()}=... instead")
    return name


def decode(encoded: bytes) -> dict[str, str]:
    """The properties of a property string, in its order, by RocketMQ's rules for a reader."""
    properties = {}
    for piece in encoded.decode("utf-8", "replace").split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def value_of(encoded: bytes, name: bytes) -> str | None:
    """The last value under a name (given with its 01), without decoding the others."""
    at = encoded.rfind(b"\x02" + name)
    if at >= 0:
        start = at + 1 + len(name)
    elif encoded.startswith(name):
        start = len(name)
    else:
        return None
    end = encoded.find(b"\x02", start)
    return encoded[start : None if end < 0 else end].decode("utf-8", "replace") or None


def keys_of(encoded: bytes) -> tuple[str, ...]:
    value = value_of(encoded, b"KEYS\x01")
    return tuple(key for key in value.split(" ") if key) if value else ()


def number_of(encoded: bytes, name: bytes) -> int | None:
    value = value_of(encoded, name)
    return int(value) if value and value.isdecimal() else None
