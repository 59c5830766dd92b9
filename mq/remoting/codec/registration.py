"""The body of REGISTER_BROKER: a broker's topics, as JSON or compressed.

Compressed, it is a zlib stream; in it, integers of 4 bytes big-endian:

    size, DataVersion as JSON
    count of topics; for each: size, `name readQueues writeQueues perm filterType [attributes as JSON]`
    size, the list of filter servers as JSON
    from version 5.0 on: count of static topics; for each: size, JSON

RocketMQ: remoting/protocol/body/RegisterBrokerBody.java.
"""

from __future__ import annotations

import zlib
from dataclasses import field
from struct import Struct
from typing import Any, Final

from mq.errors import RemotingError
from mq.remoting.codec import fastjson
from mq.remoting.codec.bodies.settings import DataVersion, TopicSettings, TopicTable
from mq.remoting.codec.json_body import JsonBody, from_json, to_json
from mq.remoting.codec.wire_names import wire

__all__ = ["INFLATED_SIZE_MAX", "Registration", "crc_of", "decode_registration", "encode_registration"]

INFLATED_SIZE_MAX: Final = 64 << 20
MAPPING_VERSION: Final = 413  # 5.0.0
_INT32 = Struct(">i")


class Registration(JsonBody):
    """RegisterBrokerBody."""

    topics: TopicTable = wire("topicConfigSerializeWrapper")
    filter_server_list: tuple[str, ...] = field(default=())


def crc_of(body: bytes) -> int:
    """The checksum for the header of the request; there, 0 means none."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_registration(registration: Registration, *, compressed: bool, version: int) -> bytes:
    if not compressed:
        return to_json(registration)
    topics = registration.topics
    blocks = [_block(to_json(topics.data_version or DataVersion()))]
    blocks.append(_INT32.pack(len(topics.topic_config_table)))
    blocks += [_block(_topic_text(settings).encode()) for settings in topics.topic_config_table.values()]
    blocks.append(_block(fastjson.write(registration.filter_server_list).encode()))
    if version >= MAPPING_VERSION:
        mappings = topics.topic_queue_mapping_info_map or {}
        blocks.append(_INT32.pack(len(mappings)))
        blocks += [_block(fastjson.write(mapping).encode()) for mapping in mappings.values()]
    return zlib.compress(b"".join(blocks), 9)


def decode_registration(body: bytes, *, compressed: bool, version: int) -> Registration:
    """Decode a registration. Raises RemotingError if it is malformed."""
    if not compressed:
        return from_json(Registration, body)
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, INFLATED_SIZE_MAX)
    except zlib.error as error:
        raise RemotingError(f"a broker's registration does not decompress: {error}") from None
    if not inflater.eof:
        raise RemotingError(
            f"a broker's registration of {len(body):,} bytes ends early, or decompresses to more than"
            f" {INFLATED_SIZE_MAX:,}"
        )
    blocks = _Blocks(content)
    data_version = from_json(DataVersion, blocks.next())
    settings = [_topic(blocks.next().decode("utf-8", "replace")) for _ in range(blocks.count())]
    filters = fastjson.read(blocks.next()) or []
    mappings: dict[str, Any] = {}
    if version >= MAPPING_VERSION:
        for _ in range(blocks.count()):
            mapping = fastjson.read(blocks.next())
            if not isinstance(mapping, dict):
                raise RemotingError("a static topic in a broker's registration is no object")
            mappings[str(mapping.get("topic"))] = mapping
    if not isinstance(filters, list):
        raise RemotingError("the filter servers in a broker's registration are no list")
    table = TopicTable(
        {topic.topic_name: topic for topic in settings},
        data_version,
        topic_queue_mapping_info_map=mappings or None,
    )
    return Registration(table, tuple(str(server) for server in filters))


def _topic_text(settings: TopicSettings) -> str:
    words = (
        settings.topic_name,
        str(settings.read_queue_nums),
        str(settings.write_queue_nums),
        str(settings.perm),
        settings.topic_filter_type,
    )
    attributes = fastjson.write(settings.attributes or {})
    return " ".join((*words, attributes))


def _topic(text: str) -> TopicSettings:
    words = text.split(" ")
    try:
        name, read, write, perm, kind = words[:5]
        settings = TopicSettings(name, int(read[:10]), int(write[:10]), int(perm[:10]), kind)
    except ValueError:
        raise RemotingError(f"a topic in a broker's registration is {text[:80]!r}") from None
    attributes = fastjson.read(words[5].encode()) if len(words) > 5 else None
    if isinstance(attributes, dict) and attributes:
        texts = {str(name): str(value) for name, value in attributes.items()}
        return TopicSettings(name, int(read), int(write), int(perm), kind, attributes=texts)
    return settings


def _block(content: bytes) -> bytes:
    return _INT32.pack(len(content)) + content


class _Blocks:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def count(self) -> int:
        if self._at + 4 > len(self._content):
            raise RemotingError("a broker's registration ends early")
        number: int = _INT32.unpack_from(self._content, self._at)[0]
        self._at += 4
        if not 0 <= number <= len(self._content) - self._at:
            raise RemotingError(
                f"a broker's registration says {number:,}, where {len(self._content) - self._at:,} bytes are"
                " left"
            )
        return number

    def next(self) -> bytes:
        size = self.count()
        self._at += size
        return self._content[self._at - size : self._at]
