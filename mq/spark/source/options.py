"""The options of the source: their values, and which options exclude each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from mq.errors import FilterSyntaxError, GroupInvalid, TopicInvalid
from mq.filter.selection import Selection
from mq.names import check_group, check_topic
from mq.spark.errors import SparkError, short
from mq.spark.option_names import SINK_NAMES, SOURCE_NAMES, check_names
from mq.spark.option_values import (
    AGO,
    DIGITS,
    UNIT_MS,
    boolean,
    choice,
    duration_ms,
    number,
    one_of,
    or_default,
    reject,
)
from mq.spark.source.offsets import EARLIEST, LATEST, parse_offsets, parse_queues
from mq.spark.source.queue_keys import QueueKey
from mq.spark.source.ranges import Tasks
from mq.spark.target_options import ClusterRef, Target, reject_on_cluster, target_of

__all__ = [
    "Bound",
    "SourceOptions",
    "includes_properties",
    "source_options",
]

STREAM_ONLY = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("pollTimeoutMs", "commitToGroup"),
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "key")

TIME_MAX_MS = 1 << 53
KEY_SIZE_MAX = 32_767  # what the property string of a message can hold
# Options that do not work on a cluster, with the reason.
ON_DIRECTORY = {"maxBytesPerTrigger": "brokers do not say how large messages are; give maxOffsetsPerTrigger"}
CORES_ANYWHERE = 1 << 20


class Bound(NamedTuple):
    """Where reading begins, or ends."""

    kind: Literal["earliest", "latest", "group", "offsets", "time", "times"]
    time_ms: int = 0
    per_queue: Mapping[str, Mapping[QueueKey, int]] = {}  # offsets or times, by topic and queue
    option: str = ""


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of a source. All values can be pickled."""

    target: Target
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, tuple[QueueKey, ...]]
    start: Bound
    end: Bound
    late_start: Literal["error", "latest"]
    tags: str
    sql: str | None
    key: str | None
    include_properties: bool
    rows_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    rows_per_trigger_min: int | None
    trigger_delay: float
    poll_timeout: float
    fail_on_data_loss: bool
    group: str | None
    commits_to_group: bool
    tasks: Tasks
    batch_rows: int
    batch_bytes: int

    @property
    def selection(self) -> Selection:
        return Selection.of(self.tags, self.sql)


def source_options(given: Mapping[str, str], *, stream: bool, now_ms: int, cores: int) -> SourceOptions:
    """The options of a source, checked. now_ms: the time that relative times such as 10m are subtracted
    from."""
    options = check_names(given)
    target = target_of(options)
    on_cluster = isinstance(target, ClusterRef)
    if on_cluster:
        reject_on_cluster(options, ON_DIRECTORY)
    reject(options, (name for name in SINK_NAMES if name not in SOURCE_NAMES), "it is an option of the sink")
    if stream:
        reject(options, BATCH_ONLY, "a stream has no end: it is for spark.read")
    else:
        reject(options, STREAM_ONLY, "it is for spark.readStream")
    one_of(options, ("topic", "topicPattern", "assign"), required=True)
    starts = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    ends = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    one_of(options, starts)
    one_of(options, ends)
    least, most, delay_ms = _trigger(options)
    group = options.get("group")
    if group is not None:
        _checked("group", group, check_group)
    start = _bound(options, starts, "latest" if stream else "earliest", now_ms, on_cluster=on_cluster)
    end = _bound(options, ends, "latest", now_ms, on_cluster=on_cluster)
    _check_order(start, end)
    if start.kind == "latest" and not stream:
        raise SparkError(
            "MQ_OPTION",
            "option startingOffsets is 'latest', which is for spark.readStream: a batch would be empty",
        )
    late_start = _late_start(options, start)
    commits_to_group = _commits_to_group(options, group, start, stream=stream, on_cluster=on_cluster)
    _check_selection(options)
    return SourceOptions(
        target=target,
        topics=_topics(options.get("topic")),
        pattern=_pattern(options.get("topicPattern")),
        assigned=parse_queues("assign", options["assign"], on_cluster) if "assign" in options else {},
        start=start,
        end=end,
        late_start=late_start,
        tags=options.get("tags", "*"),
        sql=options.get("sql"),
        key=_key(options.get("key")),
        include_properties=includes_properties(options),
        rows_per_trigger_max=most,
        bytes_per_trigger_max=number(options, "maxBytesPerTrigger", 1),
        rows_per_trigger_min=least,
        trigger_delay=delay_ms / 1000,
        poll_timeout=or_default(number(options, "pollTimeoutMs", 0), 100) / 1000,
        fail_on_data_loss=boolean(options, "failOnDataLoss", True),
        group=group,
        commits_to_group=commits_to_group,
        # Tasks that read a cluster may run on any machine, so this machine's cores do not limit them.
        tasks=_tasks(options, CORES_ANYWHERE if on_cluster else cores),
        batch_rows=number(options, "batchRows", 1) or 8192,
        batch_bytes=number(options, "batchBytes", 1) or 1 << 20,
    )


def _trigger(options: Mapping[str, str]) -> tuple[int | None, int | None, float]:
    """The minimum and the maximum of messages per trigger, and how long a trigger waits for the minimum."""
    least, most = number(options, "minOffsetsPerTrigger", 1), number(options, "maxOffsetsPerTrigger", 1)
    if least and most and least > most:
        raise SparkError(
            "MQ_OPTION",
            f"option minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger is {most}: the minimum may be"
            " at most the maximum",
        )
    delay_ms = duration_ms("maxTriggerDelay", options.get("maxTriggerDelay", "15m"))
    if "maxTriggerDelay" in options and least is None:
        raise SparkError(
            "MQ_OPTION",
            "option maxTriggerDelay is how long a trigger waits for minOffsetsPerTrigger messages: give both",
        )
    return least, most, delay_ms


def _late_start(options: Mapping[str, str], start: Bound) -> Literal["error", "latest"]:
    strategy: Literal["error", "latest"] = choice(
        options, "startingOffsetsByTimestampStrategy", ("error", "latest")
    )
    if "startingOffsetsByTimestampStrategy" in options and start.kind not in {"time", "times"}:
        raise SparkError(
            "MQ_OPTION",
            "option startingOffsetsByTimestampStrategy is about a time to begin at: give one by"
            " startingTimestamp or startingOffsetsByTimestamp",
        )
    return strategy


def _commits_to_group(
    options: Mapping[str, str], group: str | None, start: Bound, *, stream: bool, on_cluster: bool
) -> bool:
    """Whether a stream commits its offsets to the group. Raises SparkError if the option group has no effect;
    on a cluster it always has one, since brokers are told the reader's group."""
    if start.kind == "group" and group is None:
        raise SparkError("MQ_OPTION", "option startingOffsets is 'group': name the group by option group")
    if group is None and "commitToGroup" in options:
        raise SparkError("MQ_OPTION", "option commitToGroup is about a group: name it by option group")
    commits_to_group = stream and group is not None and boolean(options, "commitToGroup", True)
    if group is not None and start.kind != "group" and not (commits_to_group or on_cluster):
        raise SparkError(
            "MQ_OPTION",
            f"option group is {group!r} and nothing is asked of it: a batch begins at the group's offsets"
            " with startingOffsets=group, a stream also commits its offsets there unless commitToGroup=false",
        )
    return commits_to_group


def _tasks(options: Mapping[str, str], cores: int) -> Tasks:
    rows_max = number(options, "maxRecordsPerPartition", 1) or 4_000_000
    return Tasks(
        or_default(number(options, "targetRowsPerTask", 0), 100_000),
        rows_max,
        number(options, "minPartitions", 1) or 1,
        cores,
    )


def includes_properties(options: Mapping[str, str]) -> bool:
    """Whether the schema has the column properties. Raises SparkError."""
    return boolean(options, "includeProperties", False)


def _moment_ms(name: str, text: str, now_ms: int) -> int:
    text = text.strip()
    if DIGITS.match(text):
        return min(int(text), TIME_MAX_MS)
    if match := AGO.match(text):
        return max(0, now_ms - int(float(match[1]) * UNIT_MS[match[2]]))
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text))
        return max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise SparkError(
            "MQ_OPTION",
            f"option {name} is {short(text)}: give milliseconds since the epoch, a time such as"
            " 2026-01-31T12:00Z, or how long ago, such as 10m",
        ) from None


def _bound(
    options: Mapping[str, str],
    names: tuple[str, ...],
    usual: Literal["earliest", "latest"],
    now_ms: int,
    *,
    on_cluster: bool,
) -> Bound:
    at, moment, by_queue = names
    if moment in options:
        return Bound("time", _moment_ms(moment, options[moment], now_ms), {}, moment)
    if by_queue in options:
        return Bound("times", 0, parse_offsets(by_queue, options[by_queue], (), on_cluster), by_queue)
    text = options.get(at)
    if text is None:
        return Bound(usual, option=at)
    word = text.strip().lower()
    if word == "latest":
        return Bound("latest", option=at)
    is_start = at == "startingOffsets"
    if is_start and word in {"earliest", "group"}:
        return Bound("group" if word == "group" else "earliest", option=at)
    if not text.lstrip().startswith("{"):
        words = "earliest, latest, group" if is_start else "latest"
        raise SparkError("MQ_OPTION", f"option {at} is {short(text)}: give {words}, or offsets as JSON")
    special = (LATEST, EARLIEST) if is_start else (LATEST,)
    return Bound("offsets", 0, parse_offsets(at, text, special, on_cluster), at)


def _check_order(start: Bound, end: Bound) -> None:
    """Raises SparkError if the options alone show that reading would end before it begins."""
    given = f"options {start.option} and {end.option} contradict each other: "
    if start.kind == end.kind == "time" and start.time_ms > end.time_ms:
        raise SparkError("MQ_OPTION", f"{given}{start.time_ms} is later than {end.time_ms}, in ms")
    if start.kind != end.kind:
        return
    for topic, queues in start.per_queue.items():
        for queue_id, first in queues.items():
            behind = end.per_queue.get(topic, {}).get(queue_id, LATEST)
            if 0 <= behind < first:
                raise SparkError(
                    "MQ_OPTION",
                    f"{given}queue {queue_id} of topic {topic} would begin at {first} and end at {behind}",
                )


def _topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        _checked("topic", name, check_topic)
    return tuple(sorted(set(names)))


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.strip():
        raise SparkError(
            "MQ_OPTION", "option topicPattern is empty and matches no topic: give a regular expression"
        )
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise SparkError(
            "MQ_OPTION", f"option topicPattern is {short(text)}, which is no regular expression: {error}"
        ) from None
    return text


def _key(text: str | None) -> str | None:
    # A message stores its keys separated by blanks.
    if text is not None and (not text or len(text) > KEY_SIZE_MAX or set(text) & set(" \x01\x02")):
        raise SparkError(
            "MQ_OPTION", f"option key is {short(text)}: give the text of one key, without blanks"
        )
    return text


def _checked(name: str, value: str, check: Callable[[str], None]) -> None:
    try:
        check(value)
    except (TopicInvalid, GroupInvalid) as error:
        raise SparkError("MQ_OPTION", f"option {name} is {short(value)}: {error}") from None


def _check_selection(options: Mapping[str, str]) -> None:
    try:
        Selection.of(options.get("tags", "*"), options.get("sql"))
    except (FilterSyntaxError, RecursionError) as error:
        raise SparkError("MQ_OPTION", f"option {'sql' if 'sql' in options else 'tags'}: {error}") from None
    except ValueError as error:
        raise SparkError("MQ_OPTION", f"options tags and sql contradict each other: {error}") from None
