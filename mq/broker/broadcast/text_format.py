"""The text of the files that hold offsets of broadcasting groups.

Strict JSON, with a checksum: XXH64 of the table, written without spaces and with sorted keys.

    {"checksum": "16 hex digits",
     "topics": {"orders": {"made_at": 4711, "offsets": {"0": 17}, "reset": "token"}}}

made_at is where the log ended when the topic was made (see BEGIN_MEMBER), null where nobody said: a topic
that was deleted and made again has another one. reset names the last reset of the offsets, "" for none: the
time in ns and random digits, all in hex. A later one is greater, whatever the clock does. The file of a
group's resets names in "resets" those of queues that an earlier one was the last of, {"0": "token"}.

parse_of_client reads the file that RocketMQ's client keeps in the user's home, which has objects for keys.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

from mq.api.results import MessageQueue

__all__ = ["TopicOffsets", "parse", "parse_of_client", "reset_after", "write_out"]

OFFSET_MAX = 1 << 56
QUEUE_ID_MAX = 65_535
_ENTRY = re.compile(r"\s*(\{[^{}]*\})\s*:\s*(-?\d+)\s*")
_OPENING = re.compile(r'\s*\{\s*"offsetTable"\s*:\s*\{')
_CLOSING = re.compile(r"\s*\}\s*\}\s*")
TIME_DIGITS = 16
TIME_HEX = re.compile("[0-9a-f]{16}")


@dataclass(slots=True)
class TopicOffsets:
    """Offsets of one topic, by queue id."""

    made_at: int | None
    offsets: dict[int, int] = field(default_factory=dict)
    reset: str = ""
    resets: dict[int, str] = field(default_factory=dict)  # of queues whose last one was an earlier one

    def is_of(self, made_at: int | None) -> bool:
        """Whether these are offsets of the topic that was made then. A RocketMQ broker that rewrites
        topics.json drops what mq has put there: where nobody says when it was made, it may be the same."""
        return made_at is None or made_at == self.made_at


def reset_after(before: TopicOffsets | None, made_at: int | None, offsets: Mapping[int, int]) -> TopicOffsets:
    """The resets of a topic after another one, of these queues. Those of the others stay, under their names:
    a consumer that has not applied them yet will, and one that has does not again."""
    after = TopicOffsets(made_at, dict(offsets), _next_reset(before))
    if before is not None and before.is_of(made_at):
        kept = before.offsets.keys() - offsets.keys()
        after.offsets |= {queue_id: before.offsets[queue_id] for queue_id in kept}
        after.resets = {queue_id: before.resets.get(queue_id, before.reset) for queue_id in kept}
    return after


def _next_reset(before: TopicOffsets | None) -> str:
    """The name of a reset that comes after all others of a topic."""
    last = before.reset[:TIME_DIGITS] if before is not None else ""
    last_ns = int(last, 16) if TIME_HEX.fullmatch(last) else 0
    return f"{max(time.time_ns(), last_ns + 1):0{TIME_DIGITS}x}{os.urandom(8).hex()}"


def write_out(topics: Mapping[str, TopicOffsets]) -> str:
    table = _dumps(
        {
            name: {
                "made_at": topic.made_at,
                "offsets": {str(queue_id): offset for queue_id, offset in topic.offsets.items()},
                "reset": topic.reset,
                **(
                    {"resets": {str(each): name for each, name in topic.resets.items()}}
                    if topic.resets
                    else {}
                ),
            }
            for name, topic in topics.items()
        }
    )
    return f'{{"checksum":"{xxhash.xxh64_hexdigest(table.encode())}","topics":{table}}}'


def parse(text: str) -> dict[str, TopicOffsets]:
    """What write_out wrote. Raises ValueError."""
    try:
        whole = json.loads(text)
        table = whole["topics"]
        if xxhash.xxh64_hexdigest(_dumps(table).encode()) != whole["checksum"]:
            raise ValueError("its checksum is that of other bytes")
        return {str(name): _topic(**fields) for name, fields in table.items()}
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no table of offsets: {error}") from error


def _topic(
    made_at: int | None, offsets: dict[str, int], reset: str, resets: Mapping[str, str] | None = None
) -> TopicOffsets:
    if made_at is not None and (type(made_at) is not int or made_at < 0):
        raise ValueError(f"made_at is {made_at!r}")
    for queue_id, offset in offsets.items():
        if type(offset) is not int or not 0 <= offset < OFFSET_MAX or not 0 <= int(queue_id) <= QUEUE_ID_MAX:
            raise ValueError(f"queue {queue_id!r} has the offset {offset!r}")
    resets = resets or {}
    for each in (reset, *resets.values()):
        if type(each) is not str:
            raise ValueError(f"reset is {each!r}")
    return TopicOffsets(
        made_at,
        {int(queue_id): offset for queue_id, offset in offsets.items()},
        reset,
        {int(queue_id): each for queue_id, each in resets.items() if queue_id in offsets},
    )


def _dumps(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def parse_of_client(text: str) -> dict[MessageQueue, int]:
    """What a file of RocketMQ's client says. Raises ValueError.

    {"offsetTable":{{"brokerName":"mq","queueId":0,"topic":"orders"}:17}}
    """
    opening = _OPENING.match(text)
    if not opening:
        raise ValueError("it has no offsetTable")
    offsets: dict[MessageQueue, int] = {}
    at = opening.end()
    while entry := _ENTRY.match(text, at):
        key = json.loads(entry[1])
        queue = MessageQueue(key.get("topic"), key.get("brokerName"), key.get("queueId"))
        if tuple(map(type, queue)) != (str, str, int):
            raise ValueError(f"{entry[1]} names no queue")
        offsets[queue] = int(entry[2])
        at = entry.end()
        if text[at : at + 1] != ",":
            break
        at += 1
    if not _CLOSING.fullmatch(text, at):
        raise ValueError(f"it makes no sense from character {at} on")
    return offsets
