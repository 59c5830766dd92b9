"""What an option means, and what is said of one that means nothing."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mq.spark.columns import TYPES, check_fields, schema_text
from mq.spark.errors import SparkError
from mq.spark.source.options import SourceOptions, source_options

NOW_MS = 1_767_225_600_000


def parsed(*, stream: bool = False, **given: str) -> SourceOptions:
    options = {"path": "/somewhere", **given}
    return source_options({k.lower(): v for k, v in options.items()}, stream=stream, now_ms=NOW_MS, cores=2)


def test_what_holds_without_options() -> None:
    batch, stream = parsed(topic="orders"), parsed(stream=True, topic="orders")
    assert (batch.topics, batch.start.kind, batch.end.kind) == (("orders",), "earliest", "latest")
    assert (stream.start.kind, stream.rows_per_trigger_max, stream.poll_timeout) == ("latest", None, 0.1)
    assert batch.fail_on_data_loss
    assert not batch.include_properties


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"subscribe": "b, a,b"}, "topics", ("a", "b")),
        ({"assign": '{"orders": [1, 0, "1"]}'}, "assigned", {"orders": (0, 1)}),
        ({"topicPattern": "ord.*"}, "pattern", "ord.*"),
        ({"topic": "a", "failOnDataLoss": "False"}, "fail_on_data_loss", False),
        ({"topic": "a", "includeProperties": "TRUE"}, "include_properties", True),
        ({"topic": "a", "batchRows": "7"}, "batch_rows", 7),
    ],
)
def test_source_options_have_their_values(given: dict[str, str], field: str, value: Any) -> None:
    assert getattr(parsed(stream=False, **given), field) == value


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("10m", NOW_MS - 600_000),
        ("-10m", NOW_MS - 600_000),
        ("2025-12-31T23:00:00Z", NOW_MS - 3_600_000),
    ],
)
def test_time_options_are_parsed(text: str, time_ms: int) -> None:
    start = parsed(topic="orders", startingTimestamp=text).start
    assert (start.kind, start.time_ms) == ("time", time_ms)


def test_offset_options_are_parsed_by_queue() -> None:
    bound = parsed(topic="orders", startingOffsets='{"orders": {"0": 23, "1": -2, "2": -1}, "#v": 1}').start
    assert (bound.kind, bound.per_queue) == ("offsets", {"orders": {0: 23, 1: -2, 2: -1}})


@pytest.mark.parametrize(
    ("stream", "given", "said"),
    [
        (False, {"topik": "orders"}, "no option 'topik'; did you mean topic?"),
        (False, {"topic": "orders", "startingOffset": "latest"}, "did you mean startingOffsets?"),
        (False, {}, "topic, topicPattern, assign"),
        (False, {"topic": "a", "topicPattern": "b"}, "topic and topicPattern contradict"),
        (False, {"topic": "a", "subscribe": "b"}, "given twice"),
        (False, {"topic": "no dots.please"}, "option topic is 'no dots.please'"),
        (False, {"topic": "a", "path": ""}, "option path is missing"),
        (False, {"topicPattern": "("}, "no regular expression"),
        (False, {"assign": '{"orders": 1}'}, 'give {"topic": [0, 1]}'),
        (False, {"assign": "orders"}, "no JSON"),
        (False, {"topic": "a", "tags": "x", "sql": "y = 1"}, "tags and sql contradict"),
        (False, {"topic": "a", "sql": "price >"}, "option sql: "),
        (False, {"topic": "a", "tags": " || "}, "option tags: "),
        (False, {"topic": "a", "failOnDataLoss": "no"}, "give true or false"),
        (False, {"topic": "a", "minPartitions": "0"}, "give a number, 1 or more"),
        (False, {"topic": "a", "batchRows": "many"}, "option batchRows is 'many'"),
        (False, {"topic": "a", "startingOffsets": "latest"}, "a batch would be empty"),
        (False, {"topic": "a", "startingOffsets": "first"}, "earliest, latest, group"),
        (False, {"topic": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-2 is the earliest"),
        (False, {"topic": "a", "startingOffsets": '{"a": {"0": 1.5}}'}, "-2 is the earliest"),
        (False, {"topic": "a", "startingOffsets": '{"a": [0]}'}, "-2 is the earliest"),
        (False, {"topic": "a", "startingOffsets": '{"a":'}, "which is no JSON"),
        (False, {"topic": "a", "endingOffsets": '{"a": {"0": -2}}'}, "option endingOffsets"),
        (False, {"topic": "a", "endingOffsets": "earliest"}, "give latest, or offsets"),
        (False, {"topic": "a", "startingTimestamp": "noon"}, "option startingTimestamp is 'noon'"),
        (
            False,
            {"topic": "a", "startingTimestamp": "1h", "startingOffsets": "earliest"},
            "startingOffsets and startingTimestamp contradict",
        ),
        (False, {"topic": "a", "startingOffsetsByTimestampStrategy": "never"}, "give error or latest"),
        (False, {"topic": "a", "maxOffsetsPerTrigger": "5"}, "it is for spark.readStream"),
        (False, {"topic": "a", "semantics": "exactly_once"}, "an option of the sink"),
        (True, {"topic": "a", "endingOffsets": "latest"}, "it is for spark.read"),
        (True, {"topic": "a", "startingOffsets": "group"}, "name the group"),
        (True, {"topic": "a", "group": "no group"}, "option group is 'no group'"),
        (False, {"topic": "a", "group": "g"}, "nothing is asked of it"),
        (True, {"topic": "a", "group": "g", "commitToGroup": "false"}, "nothing is asked of it"),
        (True, {"topic": "a", "commitToGroup": "false"}, "name it by option group"),
        (
            False,
            {"topic": "a", "startingOffsets": "group", "group": "g", "commitToGroup": "true"},
            "readStream",
        ),
        (True, {"topic": "a", "key": "k"}, "it is for spark.read"),
        (False, {"topic": "a", "key": "a b"}, "the text of one key"),
        (False, {"topic": "a", "key": ""}, "the text of one key"),
        (False, {"topic": "a", "maxBytesPerTrigger": "5"}, "it is for spark.readStream"),
        (True, {"topic": "a", "maxBytesPerTrigger": "1g"}, "option maxBytesPerTrigger is '1g'"),
        (False, {"topic": "a", "path": "s3://bucket/orders"}, "give a directory of this machine"),
        (False, {"assign": '{"orders": [0], "orders": [1]}'}, "names 'orders' twice"),
        (False, {"topic": "a", "minPartitions": "٣"}, "option minPartitions is '٣'"),
        (True, {"topic": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "at most"),
        (True, {"topic": "a", "maxTriggerDelay": "soon"}, "such as 15m"),
        (
            True,
            {"topic": "a", "maxTriggerDelay": "10m"},
            "option maxTriggerDelay is how long a trigger waits for minOffsetsPerTrigger messages",
        ),
    ],
)
def test_wrong_source_options_raise_named_errors(stream: bool, given: dict[str, str], said: str) -> None:
    with pytest.raises(SparkError) as caught:
        parsed(stream=stream, **given)
    assert str(caught.value).startswith("[MQ_OPTION] ")
    assert said in str(caught.value)


def test_source_options_can_be_pickled() -> None:
    options = parsed(stream=True, topic="orders", sql="price > 3", startingOffsets='{"orders": {"0": 4}}')
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.selection.hashes is None


def test_sparks_own_options_are_let_through() -> None:
    assert parsed(stream=True, topic="orders", checkpointLocation="/x", queryName="q").topics == ("orders",)


def test_the_schema_is_that_of_the_columns() -> None:
    assert schema_text(False).startswith("topic string, brokerName string, queueId int, queueOffset bigint, ")
    assert ("properties map<string,string>" in schema_text(True)) > ("properties" in schema_text(False))
    assert check_fields(list(TYPES.items())) == tuple(TYPES)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("queue_offset", "bigint")], "did you mean queueOffset?"),
        ([("queueOffset", "int")], "column queueOffset is bigint and cannot be read as int"),
        ([("body", "binary"), ("body", "binary")], "named twice"),
        ([], "no column"),
    ],
)
def test_schemas_that_do_not_fit(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(SparkError) as caught:
        check_fields(fields)
    assert str(caught.value).startswith("[MQ_SCHEMA] ")
    assert said in str(caught.value)
