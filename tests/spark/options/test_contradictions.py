"""Options that cannot both be meant, or that ask for nothing, are refused: silence would be a frame with less
in it than the user believes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from mq.spark.sink.options import sink_options
from mq.spark.source.options import source_options
from tests.spark.reading import batch_rows, send

NOW_MS = 1_767_225_600_000
THIRD, FIFTH = '{"orders": {"0": 3, "1": -1}}', '{"orders": {"0": 5, "1": -1}}'


def said_of(given: Mapping[str, str], *, stream: bool = False) -> str:
    with pytest.raises(SparkError) as caught:
        source_options({"path": "/x", **given}, stream=stream, now_ms=NOW_MS, cores=2)
    assert caught.value.code == "MQ_OPTION"
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingTimestamp": "5m", "endingTimestamp": "10m"}, "startingTimestamp and endingTimestamp"),
        ({"startingTimestamp": "1001", "endingTimestamp": "1000"}, "1001 is later than 1000"),
        (
            {"startingOffsets": FIFTH, "endingOffsets": THIRD},
            "queue 0 of topic orders would begin at 5 and end at 3",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"1": 9}}',
                "endingOffsetsByTimestamp": '{"orders": {"1": 8}}',
            },
            "queue 1 of topic orders would begin at 9 and end at 8",
        ),
    ],
)
def test_what_would_end_before_it_begins(given: dict[str, str], said: str) -> None:
    assert said in said_of({"topic": "orders", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "1000", "endingTimestamp": "1000"},
        {"startingOffsets": THIRD, "endingOffsets": FIFTH},
        {"startingOffsets": THIRD, "endingOffsets": THIRD},
        {"startingOffsets": '{"orders": {"0": -1}}', "endingOffsets": '{"orders": {"0": 3}}'},
        # Which of the two is the earlier one only the queues know.
        {"startingTimestamp": "1000", "endingOffsets": THIRD},
    ],
)
def test_what_ends_where_it_begins_or_behind(given: dict[str, str]) -> None:
    source_options({"path": "/x", "topic": "orders", **given}, stream=False, now_ms=NOW_MS, cores=2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_word_about_a_time_that_is_not_given(stream: bool) -> None:
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert "give one by startingTimestamp" in said_of({"topic": "orders", **late}, stream=stream)


def test_a_pattern_of_no_name() -> None:
    assert "option topicPattern is empty" in said_of({"topicPattern": ""})


def test_steps_of_a_commit_where_tasks_append_as_they_go() -> None:
    """The option would be passed over, and the tasks' appends be as large as ever."""
    given = {"path": "/x", "topic": "t", "chunkBytes": "1000000"}
    assert sink_options(given).chunk_bytes == 1_000_000
    with pytest.raises(SparkError, match=r"^\[MQ_OPTION\] option chunkBytes is for semantics exactly_once"):
        sink_options({**given, "semantics": "at_least_once"})


def test_a_table_in_the_catalog() -> None:
    """What Spark says at CREATE TABLE ... USING mq OPTIONS (...); when the table is read it says nothing."""
    given = {
        "location": "file:/x",
        "provider": "mq",
        "owner": "me",
        "topic": "orders",
        "option.topic": "orders",
    }
    assert "CREATE TEMPORARY VIEW" in said_of(given)


def test_an_end_that_a_queue_does_not_reach(broker: LocalBroker, directory: Path) -> None:
    send(broker, "orders", 0, b"0", b"1", b"2")
    ends = {"endingOffsets": json.dumps({"orders": {"0": 4, "1": 0}})}
    with pytest.raises(
        SparkError, match=r"MQ_DATA_LOSS.*queue 0 of topic orders .* offset 4, but it ends at 3"
    ):
        batch_rows(directory, "body", topic="orders", **ends)
    found = batch_rows(directory, "body", topic="orders", failOnDataLoss="false", **ends)
    assert [row["body"] for row in found] == [b"0", b"1", b"2"]
