"""A namespace: the prefix of every topic and group name on the wire, which users do not see.

`orders` in namespace `shop` is `shop%orders` there, and `%RETRY%billing` is `%RETRY%shop%billing`. RocketMQ's
own topics have no namespace. RocketMQ: remoting/protocol/NamespaceUtil.java.
"""

from __future__ import annotations

from mq.api.results import MessageQueue
from mq.message import MessageExt
from mq.names import DEAD_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from mq.properties import value_of
from mq.remoting.codec.records import with_names

__all__ = ["Namespace"]

SEPARATOR = "%"
TOPIC_PROPERTIES = (b"RETRY_TOPIC\x01", b"REAL_TOPIC\x01", b"DLQ_ORIGIN_TOPIC\x01")  # whose values are topics


class Namespace:
    """The namespace of one broker object; "" is none and leaves names as they are."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._prefix = name + SEPARATOR if name else ""

    def wire(self, name: str) -> str:
        """The wire name of a topic or a group."""
        kind, bare = _parts(name)
        if not self._prefix or is_system_topic(bare) or is_system_group(bare):
            return name
        return name if bare.startswith(self._prefix) else kind + self._prefix + bare

    def plain(self, name: str) -> str:
        """The name for users."""
        kind, bare = _parts(name)
        if self._prefix and bare.startswith(self._prefix):
            return kind + bare[len(self._prefix) :]
        return name

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wire(queue.topic)) if self._prefix else queue

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.plain(queue.topic)) if self._prefix else queue

    def plain_messages(self, messages: list[MessageExt]) -> list[MessageExt]:
        """The messages with the names for users."""
        return [self._plain(message) for message in messages] if self._prefix else messages

    def _plain(self, message: MessageExt) -> MessageExt:
        topic, properties = self.plain(message.topic), message.encoded
        for name in TOPIC_PROPERTIES:
            value = value_of(properties, name)
            if value is not None:
                # 4.9 writes no separator after the last property.
                old, new = name + value.encode(), name + self.plain(value).encode()
                pieces = (new if piece == old else piece for piece in properties.split(b"\x02"))
                properties = b"\x02".join(pieces)
        return MessageExt(with_names(message.record, topic.encode(), properties), message.broker_name)

    def holds(self, name: str) -> bool:
        """Whether a wire name belongs to this namespace."""
        return _parts(name)[1].startswith(self._prefix)


def _parts(name: str) -> tuple[str, str]:
    """The prefix of a retry or dead letter topic, and what follows."""
    for kind in (RETRY_PREFIX, DEAD_PREFIX):
        if name.startswith(kind):
            return kind, name[len(kind) :]
    return "", name
