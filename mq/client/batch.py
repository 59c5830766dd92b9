"""What may be sent as one batch: RocketMQ's rules, for all brokers."""

from __future__ import annotations

from collections.abc import Sequence

from mq.errors import MessageInvalid, MessageTooLarge
from mq.fastpath import survey
from mq.message import Message
from mq.names import RETRY_PREFIX

__all__ = ["BATCH_ENTRY_SIZE", "check_batch"]

BATCH_ENTRY_SIZE = 22  # what RocketMQ's batch encoding adds to a body and its properties


def check_batch(messages: list[Message], size_max: int, *, once: bool = False) -> None:
    """Whether these may be sent as one batch; once: those with a dedup key would have to be stored once."""
    if not messages:
        raise MessageInvalid("a batch needs at least one message")
    size = survey(messages)
    if size is not None:
        _check_size(messages, size + BATCH_ENTRY_SIZE * len(messages), size_max)
        return
    try:
        topic = messages[0].topic
        size = BATCH_ENTRY_SIZE * len(messages)
        plain = True
        for message in messages:
            if message.topic != topic:
                raise MessageInvalid(f"a batch has one topic, not both {topic!r} and {message.topic!r}")
            if not message.plain:
                plain = False
            size += len(message.body) + len(message.encoded)
    except AttributeError:
        kinds = ", ".join({type(message).__name__ for message in messages} - {"Message"})
        raise TypeError(f"a batch is made of Messages, not of {kinds}") from None
    if not plain:
        if once and any(message.dedup_key is not None for message in messages):
            raise MessageInvalid("a message with a dedup_key cannot be part of a batch: send it by itself")
        if len({message.wait for message in messages}) > 1:
            raise MessageInvalid("some messages of the batch say wait=False and some do not")
        if any(message.delayed for message in messages):
            raise MessageInvalid("a delayed message cannot be part of a batch: send it by itself")
    _check_size(messages, size, size_max)


def _check_size(messages: Sequence[Message], size: int, size_max: int) -> None:
    topic = messages[0].topic
    if topic.startswith(RETRY_PREFIX):
        raise MessageInvalid(f"a batch cannot go to the retry topic {topic!r}: send one by one")
    if size > size_max:
        raise MessageTooLarge(
            size,
            size_max,
            f"a batch of {len(messages):,} messages, {size:,} bytes of bodies, tags, keys and properties,"
            f" is over the limit of {size_max:,}: send it in several parts, or open the broker with a larger"
            " message_size_max",
        )
