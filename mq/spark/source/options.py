"""The options of the source: their names, their values, and which of them exclude each other.

All come as texts. Names are compared without regard to case, as everywhere in Spark; one that is not known is
an error, since the Kafka connector's silence about a misspelt startingOffset costs its users data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from mq.errors import FilterSyntaxError, GroupInvalid, TopicInvalid
from mq.filter.selection import Selection
from mq.names import check_group, check_topic
from mq.spark.errors import Refusal, nearest, shown
from mq.spark.source.offsets import EARLIEST, LATEST, places, queues_of
from mq.spark.source.ranges import Tasks

__all__ = [
    "Bound",
    "SourceOptions",
    "check_names",
    "includes_properties",
    "number",
    "source_options",
    "target_path",
]

# Every name that means something, and other words for some of them.
SOURCE_NAMES = (
    *("path", "topic", "topicPattern", "assign", "includeProperties", "tags", "sql", "key"),
    *("group", "commitToGroup"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("failOnDataLoss", "pollTimeoutMs"),
    *("minPartitions", "maxRecordsPerPartition", "targetRowsPerTask", "batchRows", "batchBytes"),
)
SINK_NAMES = ("path", "topic", "semantics", "txnAppId", "txnVersion", "chunkBytes")
ALIASES = {
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "queues": "assign",
    "subexpression": "tags",
}
SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "triggerinterval"}
REMOTE = {"nameserver": "nameserver", "namesrvaddr": "namesrvAddr"}
OF_A_TABLE = {"provider", "location"}  # what Spark says besides of a table that is in its catalog
STREAM_ONLY = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("pollTimeoutMs", "commitToGroup"),
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "key")

_AGO = re.compile(r"-?([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d)\Z")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_DIGITS = re.compile(r"[0-9]{1,19}\Z")
NUMBER_MAX = (1 << 62) - 1
TIME_MAX_MS = 1 << 53
KEY_SIZE_MAX = 32_767  # what the property string of a message can hold
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BOOLEANS = {"true": True, "false": False}


class Bound(NamedTuple):
    """Where reading begins, or ends."""

    kind: Literal["earliest", "latest", "group", "offsets", "time", "times"]
    time_ms: int = 0
    places: Mapping[str, Mapping[int, int]] = {}  # offsets or times, by topic and queue
    option: str = ""


@dataclass(frozen=True)
class SourceOptions:
    """What a source was asked for. Values that can be pickled."""

    path: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, tuple[int, ...]]
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
    shows_progress: bool  # in the group
    tasks: Tasks
    batch_rows: int
    batch_bytes: int

    @property
    def selection(self) -> Selection:
        return Selection.of(self.tags, self.sql)


def check_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names as documented. Raises Refusal for one that there is not, and for two names
    of one option with different values."""
    known = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)} | ALIASES
    if {given.lower() for given in options} >= OF_A_TABLE:
        raise Refusal(
            "MQ_OPTION",
            "a table cannot be made of mq: Spark keeps the options of a table to itself, and a reader of it"
            " would be told none; CREATE TEMPORARY VIEW ... USING mq OPTIONS (...) has them told",
        )
    found: dict[str, str] = {}
    for given, value in options.items():
        key = given.lower()
        if key in REMOTE:
            raise Refusal(
                "MQ_OPTION",
                f"option {REMOTE[key]}: brokers over TCP are not in this release; give a directory as path",
            )
        if key in SPARKS_OWN:
            continue
        if key not in known:
            raise Refusal("MQ_OPTION", f"there is no option {shown(given)}{nearest(given, known.values())}")
        if found.setdefault(known[key], value) != value:
            raise Refusal(
                "MQ_OPTION",
                f"{known[key]} is given twice, under two names: {shown(found[known[key]])} and"
                f" {shown(value)}",
            )
    return found


def target_path(options: Mapping[str, str]) -> str:
    """The directory that is meant. Raises Refusal."""
    path = options.get("path", "")
    if not path.strip():
        raise Refusal("MQ_OPTION", "option path is missing: name the directory of the store")
    if path.lower().startswith("rocketmq:"):
        raise Refusal(
            "MQ_OPTION",
            f"option path is {path!r}: brokers over TCP are not in this release; give a directory",
        )
    path = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    if _SCHEME.match(path):
        raise Refusal("MQ_OPTION", f"option path is {shown(path)}: give a directory of this machine")
    return path


def source_options(given: Mapping[str, str], *, stream: bool, now_ms: int, cores: int) -> SourceOptions:
    """The options of a source, checked. now_ms is what times such as 10m (ago) are counted from."""
    options = check_names(given)
    _refuse(options, (name for name in SINK_NAMES if name not in SOURCE_NAMES), "it is an option of the sink")
    if stream:
        _refuse(options, BATCH_ONLY, "a stream has no end: it is for spark.read")
    else:
        _refuse(options, STREAM_ONLY, "it is for spark.readStream")
    _one_of(options, ("topic", "topicPattern", "assign"), required=True)
    starts = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    ends = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    _one_of(options, starts)
    _one_of(options, ends)
    least, most, delay_ms = _trigger(options)
    group = options.get("group")
    if group is not None:
        _checked("group", group, check_group)
    start = _bound(options, starts, "latest" if stream else "earliest", now_ms)
    end = _bound(options, ends, "latest", now_ms)
    _check_order(start, end)
    if start.kind == "latest" and not stream:
        raise Refusal(
            "MQ_OPTION",
            "option startingOffsets is 'latest', which is for spark.readStream: a batch would be empty",
        )
    late_start = _late_start(options, start)
    shows_progress = _shows_progress(options, group, start, stream=stream)
    _check_selection(options)
    return SourceOptions(
        path=target_path(options),
        topics=_topics(options.get("topic")),
        pattern=_pattern(options.get("topicPattern")),
        assigned=queues_of("assign", options["assign"]) if "assign" in options else {},
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
        poll_timeout=_or(number(options, "pollTimeoutMs", 0), 100) / 1000,
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        group=group,
        shows_progress=shows_progress,
        tasks=_tasks(options, cores),
        batch_rows=number(options, "batchRows", 1) or 8192,
        batch_bytes=number(options, "batchBytes", 1) or 1 << 20,
    )


def _trigger(options: Mapping[str, str]) -> tuple[int | None, int | None, float]:
    """Least and most messages of a trigger, and for how many ms it waits for the least."""
    least, most = number(options, "minOffsetsPerTrigger", 1), number(options, "maxOffsetsPerTrigger", 1)
    if least and most and least > most:
        raise Refusal(
            "MQ_OPTION",
            f"option minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger is {most}: a trigger reads"
            " at most the latter",
        )
    delay_ms = _duration_ms("maxTriggerDelay", options.get("maxTriggerDelay", "15m"))
    if "maxTriggerDelay" in options and least is None:
        raise Refusal(
            "MQ_OPTION",
            "option maxTriggerDelay is how long a trigger waits for minOffsetsPerTrigger messages, and none"
            " waits without that option: give both",
        )
    return least, most, delay_ms


def _late_start(options: Mapping[str, str], start: Bound) -> Literal["error", "latest"]:
    strategy: Literal["error", "latest"] = _word(
        options, "startingOffsetsByTimestampStrategy", ("error", "latest")
    )
    if "startingOffsetsByTimestampStrategy" in options and start.kind not in {"time", "times"}:
        raise Refusal(
            "MQ_OPTION",
            "option startingOffsetsByTimestampStrategy is about a time to begin at: give one by"
            " startingTimestamp or startingOffsetsByTimestamp",
        )
    return strategy


def _shows_progress(options: Mapping[str, str], group: str | None, start: Bound, *, stream: bool) -> bool:
    """Whether a stream commits its offsets to the group. Refuses a group that nothing is asked of."""
    if start.kind == "group" and group is None:
        raise Refusal("MQ_OPTION", "option startingOffsets is 'group': name the group by option group")
    if group is None and "commitToGroup" in options:
        raise Refusal("MQ_OPTION", "option commitToGroup is about a group: name it by option group")
    shows_progress = stream and group is not None and _boolean(options, "commitToGroup", True)
    if group is not None and start.kind != "group" and not shows_progress:
        raise Refusal(
            "MQ_OPTION",
            f"option group is {group!r} and nothing is asked of it: a batch begins there with"
            " startingOffsets=group, a stream also shows its progress there unless commitToGroup=false",
        )
    return shows_progress


def _tasks(options: Mapping[str, str], cores: int) -> Tasks:
    rows_max = number(options, "maxRecordsPerPartition", 1) or 4_000_000
    return Tasks(
        _or(number(options, "targetRowsPerTask", 0), 100_000),
        rows_max,
        number(options, "minPartitions", 1) or 1,
        cores,
    )


def includes_properties(options: Mapping[str, str]) -> bool:
    """Whether the schema has the column properties. Raises Refusal."""
    return _boolean(options, "includeProperties", False)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _refuse(options: Mapping[str, str], names: Iterable[str], why: str) -> None:
    for name in names:
        if name in options:
            raise Refusal("MQ_OPTION", f"option {name} has no meaning here: {why}")


def _one_of(options: Mapping[str, str], names: tuple[str, ...], *, required: bool = False) -> None:
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise Refusal("MQ_OPTION", f"options {' and '.join(given)} contradict each other: give one of them")
    if required and not given:
        raise Refusal("MQ_OPTION", f"say what to read: give one of the options {', '.join(names)}")


def number(options: Mapping[str, str], name: str, least: int) -> int | None:
    """A whole number; None where it is not given. Raises Refusal."""
    text = options.get(name)
    if text is None:
        return None
    if not _DIGITS.match(text.strip()) or not least <= int(text) <= NUMBER_MAX:
        raise Refusal(
            "MQ_OPTION", f"option {name} is {shown(text)}: give a number, {least} or more and below 2**62"
        )
    return int(text)


def _boolean(options: Mapping[str, str], name: str, otherwise: bool) -> bool:
    text = options.get(name)
    if text is None:
        return otherwise
    if text.strip().lower() not in _BOOLEANS:
        raise Refusal("MQ_OPTION", f"option {name} is {shown(text)}: give true or false")
    return _BOOLEANS[text.strip().lower()]


def _word(options: Mapping[str, str], name: str, words: tuple[Any, ...]) -> Any:
    text = options.get(name, words[0]).strip().lower()
    if text not in words:
        raise Refusal("MQ_OPTION", f"option {name} is {options[name]!r}: give {' or '.join(words)}")
    return text


def _duration_ms(name: str, text: str) -> float:
    match = _AGO.match(text.strip())
    if not match or text.strip().startswith("-"):
        raise Refusal(
            "MQ_OPTION", f"option {name} is {shown(text)}: give a number and ms, s, m, h or d, such as 15m"
        )
    return float(match[1]) * _UNIT_MS[match[2]]


def _moment_ms(name: str, text: str, now_ms: int) -> int:
    text = text.strip()
    if _DIGITS.match(text):
        return min(int(text), TIME_MAX_MS)
    if match := _AGO.match(text):
        return max(0, now_ms - int(float(match[1]) * _UNIT_MS[match[2]]))
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text))
        return max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise Refusal(
            "MQ_OPTION",
            f"option {name} is {shown(text)}: give milliseconds since the epoch, a time such as"
            " 2026-01-31T12:00Z, or how long ago, such as 10m",
        ) from None


def _bound(
    options: Mapping[str, str], names: tuple[str, ...], otherwise: Literal["earliest", "latest"], now_ms: int
) -> Bound:
    at, moment, by_queue = names
    if moment in options:
        return Bound("time", _moment_ms(moment, options[moment], now_ms), {}, moment)
    if by_queue in options:
        return Bound("times", 0, places(by_queue, options[by_queue], ()), by_queue)
    text = options.get(at)
    if text is None:
        return Bound(otherwise, option=at)
    word = text.strip().lower()
    if word == "latest":
        return Bound("latest", option=at)
    is_start = at == "startingOffsets"
    if is_start and word in {"earliest", "group"}:
        return Bound("group" if word == "group" else "earliest", option=at)
    if not text.lstrip().startswith("{"):
        words = "earliest, latest, group" if is_start else "latest"
        raise Refusal("MQ_OPTION", f"option {at} is {shown(text)}: give {words}, or offsets as JSON")
    return Bound("offsets", 0, places(at, text, (LATEST, EARLIEST) if is_start else (LATEST,)), at)


def _check_order(start: Bound, end: Bound) -> None:
    """Raises Refusal where reading would end before it begins, as far as the options alone tell."""
    given = f"options {start.option} and {end.option} contradict each other: "
    if start.kind == end.kind == "time" and start.time_ms > end.time_ms:
        raise Refusal("MQ_OPTION", f"{given}{start.time_ms} is later than {end.time_ms}, in ms")
    if start.kind != end.kind:
        return
    for topic, queues in start.places.items():
        for queue_id, first in queues.items():
            behind = end.places.get(topic, {}).get(queue_id, LATEST)
            if 0 <= behind < first:
                raise Refusal(
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
        raise Refusal(
            "MQ_OPTION", "option topicPattern is empty, and no topic is called so: give an expression"
        )
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise Refusal(
            "MQ_OPTION", f"option topicPattern is {shown(text)}, which is no regular expression: {error}"
        ) from None
    return text


def _key(text: str | None) -> str | None:
    # Keys stand in a message with blanks between.
    if text is not None and (not text or len(text) > KEY_SIZE_MAX or set(text) & set(" \x01\x02")):
        raise Refusal("MQ_OPTION", f"option key is {shown(text)}: give the text of one key, without blanks")
    return text


def _checked(name: str, value: str, check: Callable[[str], None]) -> None:
    try:
        check(value)
    except (TopicInvalid, GroupInvalid) as error:
        raise Refusal("MQ_OPTION", f"option {name} is {shown(value)}: {error}") from None


def _check_selection(options: Mapping[str, str]) -> None:
    try:
        Selection.of(options.get("tags", "*"), options.get("sql"))
    except (FilterSyntaxError, RecursionError) as error:
        raise Refusal("MQ_OPTION", f"option {'sql' if 'sql' in options else 'tags'}: {error}") from None
    except ValueError as error:
        raise Refusal("MQ_OPTION", f"options tags and sql contradict each other: {error}") from None
