"""Offsets as Spark keeps them in a checkpoint, and as users write them into options: JSON.

    {"#v": 1, "orders": {"0": 1200, "1": 1180}, "#last": {"orders": [0, 1199, 273405, 1767225600000]}}

For each queue, the next offset to read; a queue of a cluster is named broker-a:0. No topic has a # in its
name. `#last` identifies one message of each topic that was read before: queue, offset, log offset, store
time. If another message is there now, the topic was deleted and re-created, or the directory is another one.

Spark does not note where a query began: it asks again when the first batch is read, and after a crash once
more, when "latest" is somewhere else. So the offset that a query begins with is marked by `#new`, and the end
of its first batch has in `#begin` where that batch begins. So have later ends for queues of which that does
not follow from the offset before: new ones, and those of which something is lost.

Checkpoints outlive programs: a format change raises the number in `#v`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mq.names import check_topic
from mq.spark.errors import SparkError, short
from mq.spark.source.queue_keys import QueueKey, key_of, parse_key, queue_of
from mq.spark.source.ranges import Positions

__all__ = [
    "EARLIEST",
    "LATEST",
    "VERSION_KEY",
    "Offset",
    "TopicMarker",
    "is_of_cluster",
    "parse_offsets",
    "parse_queues",
]

VERSION = 1
VERSION_KEY, LAST_KEY, BEGIN_KEY, NEW_KEY = "#v", "#last", "#begin", "#new"
LATEST, EARLIEST = -1, -2  # as numbers in options, like the Kafka connector's
OFFSET_MAX = 1 << 56
NUMBER_MAX = (1 << 63) - 1
SHAPE = '{"topic": {%s: 23, %s: -2}}, where -2 is the earliest and -1 the latest'
TIMES_SHAPE = '{"topic": {%s: 1767225600000, %s: 1767225600000}}, in ms'
ASSIGN_SHAPE = '{"topic": [%s, %s]}'
EXAMPLES = {False: ('"0"', '"1"'), True: ('"broker-a:0"', '"broker-b:0"')}  # of the names of queues


class TopicMarker(NamedTuple):
    """A message that was read: it tells whether a topic is still the same."""

    queue: QueueKey
    queue_offset: int
    log_offset: int
    store_time_ms: int


class Offset(NamedTuple):
    """One offset of a stream."""

    positions: Positions
    markers: dict[str, TopicMarker]
    begin: Positions | None = None  # where the batch that ends here begins, if that is recorded
    is_new: bool = False  # the query begins here

    def json(self, *, on_cluster: bool) -> dict[str, Any]:
        topics: dict[str, Any] = {VERSION_KEY: VERSION, **_by_name(self.positions, on_cluster)}
        topics[LAST_KEY] = {topic: list(marker) for topic, marker in sorted(self.markers.items())}
        if self.begin is not None:
            topics[BEGIN_KEY] = _by_name(self.begin, on_cluster)
        if self.is_new:
            topics[NEW_KEY] = True
        return topics

    @staticmethod
    def of(value: Any, broker_name: str | None) -> Offset:
        """broker_name: a directory's, None for a cluster. Raises SparkError for an offset of another
        source."""
        version = value.get(VERSION_KEY) if isinstance(value, Mapping) else None
        if type(version) is not int or version != VERSION:
            raise SparkError(
                "MQ_OPTION",
                f"the checkpoint has the offset {short(value)}, of version {version!r}; this release reads"
                f" version {VERSION}: start the query with a new checkpointLocation, or with a newer mq",
            )
        on_cluster = broker_name is None
        try:
            if is_of_cluster(value) not in {None, on_cluster}:
                one, other = ("directory", "cluster") if on_cluster else ("cluster", "directory")
                raise SparkError(
                    "MQ_OPTION",
                    f"the checkpoint has the offset {short(value)}, of a {one} and not of a {other}: start"
                    " the query with a new checkpointLocation",
                )
            begin = value.get(BEGIN_KEY)
            return Offset(
                _positions(value, broker_name),
                {topic: _witness(what, on_cluster) for topic, what in value.get(LAST_KEY, {}).items()},
                None if begin is None else _positions(begin, broker_name),
                bool(value.get(NEW_KEY, False)),
            )
        except (TypeError, ValueError, AttributeError):
            raise SparkError(
                "MQ_OPTION",
                f"the checkpoint has the offset {short(value)}, which is damaged: restore it, or start the"
                " query with a new checkpointLocation",
            ) from None


def is_of_cluster(value: Mapping[str, Any]) -> bool | None:
    """Whether the queues of an offset belong to a cluster, by their names; None if it has no queues."""
    for topic, queues in value.items():
        if not topic.startswith("#"):
            for key in queues:
                return ":" in key
    return None


def _by_name(positions: Positions, on_cluster: bool) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for queue, offset in positions.items():
        topics.setdefault(queue.topic, {})[str(key_of(queue, on_cluster=on_cluster))] = offset
    return topics


def _positions(value: Any, broker_name: str | None) -> Positions:
    positions = {}
    for topic, queues in value.items():
        if topic.startswith("#"):
            continue
        check_topic(topic)
        for key, offset in queues.items():
            if type(offset) is not int or not 0 <= offset < OFFSET_MAX:
                raise ValueError
            queue = queue_of(topic, parse_key(key, on_cluster=broker_name is None), broker_name)
            positions[queue] = offset
    return positions


def _witness(value: Any, on_cluster: bool) -> TopicMarker:
    key, *numbers = value
    if any(type(number) is not int or abs(number) > NUMBER_MAX for number in numbers):
        raise ValueError
    return TopicMarker(parse_key(key, on_cluster=on_cluster), *numbers)


def parse_offsets(
    option: str, text: str, special: tuple[int, ...], on_cluster: bool
) -> dict[str, dict[QueueKey, int]]:
    """Offsets (or times) by topic and queue, from the text of an option. `special`: the negative numbers that
    are allowed."""

    def number(value: Any) -> int:
        if type(value) is not int or not (0 <= value < OFFSET_MAX or value in special):
            raise ValueError
        return value

    shape = (SHAPE if special else TIMES_SHAPE) % EXAMPLES[on_cluster]

    def queues(value: Any) -> dict[QueueKey, int]:
        found = {parse_key(key, on_cluster=on_cluster): number(offset) for key, offset in value.items()}
        if not found or len(found) != len(value):  # "1" and "01" are one queue.
            raise ValueError
        return found

    return _by_topic(option, text, shape, queues)


def parse_queues(option: str, text: str, on_cluster: bool) -> dict[str, tuple[QueueKey, ...]]:
    """Queues by topic, from the text of an option."""

    def queues(value: Any) -> tuple[QueueKey, ...]:
        if not isinstance(value, list) or not value:
            raise TypeError
        keys = {parse_key(key, on_cluster=on_cluster) for key in value}
        return tuple(sorted(keys, key=lambda key: (len(str(key)), str(key))))

    shape = ASSIGN_SHAPE % (EXAMPLES[True] if on_cluster else (0, 1))
    return _by_topic(option, text, shape, queues)


def _by_topic(option: str, text: str, shape: str, read: Callable[[Any], Any]) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except _TwiceError as error:
        raise SparkError(
            "MQ_OPTION", f"option {option} is {short(text)}, which names {error} twice: give {shape}"
        ) from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise SparkError(
            "MQ_OPTION", f"option {option} is {short(text)}, which is no JSON ({why}): give {shape}"
        ) from None
    found: dict[str, Any] = {}
    try:
        for topic, queues in value.items():
            if not topic.startswith("#"):  # An offset copied from a checkpoint is accepted.
                check_topic(topic)
                found[topic] = read(queues)
    except (TypeError, ValueError, AttributeError):
        found = {}
    if not found:
        raise SparkError("MQ_OPTION", f"option {option} is {short(text)}: give {shape}")
    return found


class _TwiceError(Exception):
    """A name that occurs twice in one JSON object: the parser would ignore the first."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(repr(next(name for name in names if names.count(name) > 1)))
    return found
