"""Offsets as Spark keeps them in a checkpoint, and as users write them into options: JSON.

    {"#v": 1, "orders": {"0": 1200, "1": 1180}, "#last": {"orders": [0, 1199, 273405, 1767225600000]}}

Of each queue the offset to be read next. No topic has a # in its name. `#last` is one message of each topic
that was read before: queue, offset, log offset, store time; if another one stands there now, the topic was
deleted and made again, or the directory is another one. Checkpoints outlive programs: what a later version
adds has a new number in `#v`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mq.broker.results import MessageQueue
from mq.names import check_topic
from mq.spark.ranges import Positions
from mq.spark.refusal import Refusal

__all__ = ["EARLIEST", "LATEST", "VERSION_KEY", "Offset", "Witness", "places", "queues_of"]

VERSION = 1
VERSION_KEY, LAST_KEY = "#v", "#last"
LATEST, EARLIEST = -1, -2  # as numbers in options, like the Kafka connector's
OFFSET_MAX = 1 << 56
SHAPE = '{"topic": {"0": 23, "1": -2}}, where -2 is the earliest and -1 the latest'
ASSIGN_SHAPE = '{"topic": [0, 1]}'


class Witness(NamedTuple):
    """A message that was read, by which a topic is known again."""

    queue_id: int
    queue_offset: int
    log_offset: int
    store_time_ms: int


class Offset(NamedTuple):
    """One offset of a stream."""

    positions: Positions
    witnesses: dict[str, Witness]

    def json(self) -> dict[str, Any]:
        topics: dict[str, Any] = {VERSION_KEY: VERSION}
        for queue, offset in sorted(self.positions.items()):
            topics.setdefault(queue.topic, {})[str(queue.queue_id)] = offset
        topics[LAST_KEY] = {topic: list(witness) for topic, witness in sorted(self.witnesses.items())}
        return topics

    @staticmethod
    def of(value: Any, broker_name: str) -> Offset:
        """Raises Refusal for what we did not write."""
        version = value.get(VERSION_KEY) if isinstance(value, Mapping) else None
        if version != VERSION:
            raise Refusal(
                "MQ_OPTION",
                f"the checkpoint has the offset {_shown(value)}, of version {version!r}; this release reads"
                f" version {VERSION}: start the query with a new checkpointLocation, or with a newer mq",
            )
        try:
            witnesses = {topic: Witness(*map(int, what)) for topic, what in value.get(LAST_KEY, {}).items()}
            positions = {
                MessageQueue(topic, broker_name, int(queue_id)): int(offset)
                for topic, queues in value.items()
                if not topic.startswith("#")
                for queue_id, offset in queues.items()
            }
        except (TypeError, ValueError, AttributeError):
            raise Refusal(
                "MQ_OPTION", f"the checkpoint has the offset {_shown(value)}, which is damaged"
            ) from None
        return Offset(positions, witnesses)


def places(option: str, text: str, special: tuple[int, ...]) -> dict[str, dict[int, int]]:
    """Offsets (or times) by topic and queue, from the text of an option. `special` are the numbers below zero
    that mean something."""

    def number(value: Any) -> int:
        if type(value) is not int or not (0 <= value < OFFSET_MAX or value in special):
            raise ValueError
        return value

    shape = SHAPE if special else '{"topic": {"0": 1767225600000}}, in ms'

    def queues(value: Any) -> dict[int, int]:
        return {_queue_id(queue_id): number(offset) for queue_id, offset in value.items()}

    return _by_topic(option, text, shape, queues)


def queues_of(option: str, text: str) -> dict[str, tuple[int, ...]]:
    """Queues by topic, from the text of an option."""

    def queues(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not value:
            raise TypeError
        return tuple(sorted({_queue_id(queue_id) for queue_id in value}))

    return _by_topic(option, text, ASSIGN_SHAPE, queues)


def _by_topic(option: str, text: str, shape: str, read: Callable[[Any], Any]) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Refusal(
            "MQ_OPTION", f"option {option} is {text!r}, which is no JSON ({error}): give {shape}"
        ) from None
    found: dict[str, Any] = {}
    try:
        for topic, queues in value.items():
            if not topic.startswith("#"):  # An offset out of a checkpoint will do.
                check_topic(topic)
                found[topic] = read(queues)
    except (TypeError, ValueError, AttributeError):
        found = {}
    if not found:
        raise Refusal("MQ_OPTION", f"option {option} is {text!r}: give {shape}")
    return found


def _queue_id(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
