"""Convert the fields of a send request into messages. Pure.

Properties that only brokers may write are dropped: RocketMQ's brokers overwrite or ignore them, and some
would mislead readers of the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mq.errors import MessageInvalid
from mq.fastpath import unpack
from mq.message import Message
from mq.names import DEAD_PREFIX, RETRY_PREFIX, check_topic
from mq.properties import DELAY_LEVEL_MAX
from mq.remoting.codec.batch import decode_batch
from mq.remoting.server.options import CLUSTER

__all__ = ["REPLY_TO", "Sent", "dead_letters_topic", "sent_batch", "sent_message"]

# Properties that only brokers write. INNER_NUM, INNER_BASE and MQ_BULK would change how recovery reads the
# record.
DROPPED: Final = frozenset(
    {
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_QUEUE_OFFSET",
        "CLUSTER",
        "MQ_BULK",
        "REAL_TOPIC",
        "REAL_QID",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL",
        "TIMER_DEL_UNIQKEY",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__CRC32#",
    }
)
UNIQUE_ID_SIZE_MAX = 56
REPLY_TO: Final = "REPLY_TO_CLIENT"  # a request for a reply: the client id of the producer that waits for it
# Properties that need special handling.
_UNUSUAL = frozenset(
    {"WAIT", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG", "PGROUP"}
    | {"UNIQ_KEY", "DEDUP_KEY", REPLY_TO}
)
# The same for the usual messages of a batch: see unpack() in mq/fastpath/batch.c.
_RULES: Final[dict[bytes, bytes | int | None]] = {
    **{name.encode(): 0 for name in _UNUSUAL},
    **dict.fromkeys(name.encode() for name in DROPPED | {"PGROUP"}),
    b"UNIQ_KEY": UNIQUE_ID_SIZE_MAX,
    b"WAIT": b"true",
}


class Sent(NamedTuple):
    """A message, whether it is a half message, its unique id if it has one, and whether its producer waits
    for a reply."""

    message: Message
    is_half: bool
    unique_id: str
    wants_reply: bool


def sent_message(topic: str, body: bytes, flag: int, properties: str) -> Sent:
    """The message with these properties. Raises TopicInvalid, MessageInvalid."""
    check_topic(topic)
    if not body:
        raise MessageInvalid("the body is empty, which RocketMQ's brokers reject: send at least one byte")
    kept: list[str] = []
    plain, is_half, unique_id, wants_reply = True, False, "", False
    for piece in properties.split("\x02"):
        name, _, value = piece.partition("\x01")
        if not name or not value or name in DROPPED:
            continue
        if name in _UNUSUAL:
            if name == "UNIQ_KEY":
                if len(value) > UNIQUE_ID_SIZE_MAX:
                    raise MessageInvalid(
                        f"UNIQ_KEY has {len(value)} characters, over {UNIQUE_ID_SIZE_MAX}: let the client"
                        " make it"
                    )
                unique_id = value
            elif name == "TRAN_MSG":
                is_half = is_half or value.lower() == "true"
                continue
            elif name == "PGROUP":
                continue  # The half message gets this property from the request.
            elif name == REPLY_TO:
                # RocketMQ's brokers add it to every message; the consumer finds the topic of replies by it.
                kept.append(f"CLUSTER\x01{CLUSTER}")
                wants_reply = True
            elif name == "WAIT":
                if value.lower() != "false":
                    continue
                plain = False
                piece = "WAIT\x01false"  # noqa: PLW2901 - as the broker's own readers expect it
            else:
                due = _due(name, value)
                if not due:
                    continue
                plain = False
                piece = due  # noqa: PLW2901 - in the spelling that the broker knows
        kept.append(piece)
    encoded = "".join([f"{piece}\x02" for piece in kept]).encode("utf-8", "replace")
    return Sent(Message.restored(topic, body, flag, plain, encoded), is_half, unique_id, wants_reply)


def sent_batch(topic: str, batch: bytes) -> list[Message]:
    """The messages of a batch's body. Raises TopicInvalid, MessageInvalid, RemotingError."""
    check_topic(topic)
    messages: list[Message] | None = unpack(topic, batch, _RULES)
    if messages is None:
        sent = [
            sent_message(topic, entry.body, entry.flag, entry.properties.decode("utf-8", "replace"))
            for entry in decode_batch(batch)
        ]
        if any(each.is_half for each in sent):
            raise MessageInvalid("a batch takes no halves of transactions: send them one by one")
        messages = [each.message for each in sent]
    if not messages:
        raise MessageInvalid("a batch without messages: send at least one")
    return messages


def _due(name: str, value: str) -> str:
    """The property with the due time of a message; "" if it is due at once."""
    if name == "DEDUP_KEY":
        return f"{name}\x01{value}"
    text = value.strip()
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 19:
        raise MessageInvalid(f"{name} is {value[:80]!r}, must be a whole number")
    number = int(text)
    if number <= 0:
        return ""
    if name == "DELAY":
        return f"DELAY\x01{min(number, DELAY_LEVEL_MAX)}"
    if name == "TIMER_DELAY_SEC":
        return f"TIMER_DELAY_MS\x01{number * 1000}"
    return f"{name}\x01{number}"


def dead_letters_topic(topic: str) -> str:
    """The dead letter topic for a group's retry topic."""
    return DEAD_PREFIX + topic.removeprefix(RETRY_PREFIX)
