"""Any split of what a store has into triggers, tasks and Arrow batches yields each wanted row once, in order.

Of a real store of small files, with tags of the same hash, compressed bodies, and filters of every kind; as a
stream, with batches that are planned and read again, and as batches between any offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import mq
from mq.broker.local import LocalBroker
from mq.compression import compressor
from mq.filter.sql import compiled
from tests.spark.reading import Query, batch_rows, forget_brokers
from tests.support.appending import append_one
from tests.support.store.small_store import open_small

QUEUE_COUNT = 3
TAGS = ["Aa", "BB", "paid", None]  # The first two have the same hash.
compress = compressor("zlib")


class Row(NamedTuple):
    queue_id: int
    tag: str | None
    price: int
    size: int
    is_compressed: bool
    key: str | None


rows = st.lists(
    st.builds(
        Row,
        st.integers(0, QUEUE_COUNT - 1),
        st.sampled_from(TAGS),
        st.integers(0, 9),
        st.integers(1, 300),
        st.booleans(),
        st.sampled_from([None, "k", "k2"]),
    ),
    max_size=60,
)
filters = st.sampled_from(
    [{}, {"tags": "Aa"}, {"tags": "paid || BB"}, {"sql": "price > 4"}, {"sql": "TAGS IS NULL"}]
)
shapes = st.fixed_dictionaries(
    {},
    optional={
        "minPartitions": st.sampled_from(["2", "7"]),
        "targetRowsPerTask": st.sampled_from(["0", "1", "5"]),
        "maxRecordsPerPartition": st.sampled_from(["1", "4", "50"]),
        "batchRows": st.sampled_from(["1", "3", "100"]),
        "batchBytes": st.sampled_from(["1", "500"]),
    },
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.sampled_from(["1", "4", "20"]),
        "maxBytesPerTrigger": st.sampled_from(["1", "700", "5000"]),
    },
)
places = st.lists(st.tuples(*[st.integers(0, 60)] * QUEUE_COUNT), max_size=3)
Places = list[tuple[int, ...]]
Read = list[tuple[int, int, bytes]]
numbers = count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with open_small(tmp_path_factory.mktemp("each-row") / "store") as broker:
        yield broker
        forget_brokers()


def sent(store: LocalBroker, these: list[Row]) -> str:
    """The name of a topic with these messages."""
    topic = f"orders-{next(numbers)}"
    store.create_topic(topic, QUEUE_COUNT)
    for number, row in enumerate(these):
        body = body_of(number, row)
        packed, flags = compress(body) if row.is_compressed else (body, 0)
        message = mq.Message(
            topic, packed, tags=row.tag, keys=row.key or (), properties={"price": str(row.price)}
        )
        append_one(store, topic, row.queue_id, message, packed, flags)
    return topic


def body_of(number: int, row: Row) -> bytes:
    return b"%d " % number + b"x" * row.size


def wanted(these: list[Row], options: dict[str, str]) -> Read:
    """Queue, offset and body of those that the filter selects, by queue and in order."""
    offsets = [count() for _ in range(QUEUE_COUNT)]
    found = []
    for number, row in enumerate(these):
        offset = next(offsets[row.queue_id])
        if is_wanted(row, options):
            found.append((row.queue_id, offset, body_of(number, row)))
    return sorted(found, key=lambda one: one[:2])


def is_wanted(row: Row, options: dict[str, str]) -> bool:
    if "key" in options and row.key != options["key"]:
        return False
    if "sql" in options:
        tag = b"" if row.tag is None else b"TAGS\x01%s\x02" % row.tag.encode()
        return compiled(options["sql"])(b"price\x01%d\x02" % row.price + tag)
    return "tags" not in options or row.tag in options["tags"].split(" || ")


def as_read(found: list[dict[str, object]]) -> Read:
    return [(row["queueId"], row["queueOffset"], row["body"]) for row in found]  # type: ignore[misc]  # as they are


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, filters, shapes, limits, st.lists(st.integers(0, 3), max_size=30))
def test_a_stream_reads_each_row_once(
    store: LocalBroker,
    these: list[Row],
    options: dict[str, str],
    shape: dict[str, str],
    limit: dict[str, str],
    course: list[int],
) -> None:
    topic = sent(store, these)
    query = Query(
        Path(store.path),
        *("queueId", "queueOffset", "body"),
        **{"topic": topic, "startingOffsets": "earliest", **options, **shape, **limit},
    )
    found: Read = []
    steps = iter(course)
    while query.plan():
        batch = as_read(query.batch())
        for _ in range(next(steps, 0)):  # It is not finished, and planned again.
            query.begin()
            assert as_read(query.batch()) == batch
        assert batch == sorted(batch, key=lambda one: one[:2])
        found += batch
        query.finish()
        if next(steps, 0) == 1:
            query.begin()
    by_queue = [[one for one in found if one[0] == queue_id] for queue_id in range(QUEUE_COUNT)]
    assert [one for part in by_queue for one in part] == wanted(these, options)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, filters, shapes, places, st.sampled_from([{}, {}, {"key": "k"}]))
def test_as_batches_between_any_offsets(
    store: LocalBroker,
    these: list[Row],
    options: dict[str, str],
    shape: dict[str, str],
    cuts: Places,
    keyed: dict[str, str],
) -> None:
    topic = sent(store, these)
    if len(these) % 2:
        store.query(topic, "k")  # The index knows what was sent so far; else it does not.
    ends = [sum(row.queue_id == queue_id for row in these) for queue_id in range(QUEUE_COUNT)]
    borders = [tuple(min(cut[n], ends[n]) for n in range(QUEUE_COUNT)) for cut in cuts]
    by_queue = [sorted({0, ends[n], *(border[n] for border in borders)}) for n in range(QUEUE_COUNT)]
    steps = max(len(part) for part in by_queue)
    padded = [part + [part[-1]] * (steps - len(part)) for part in by_queue]
    found: Read = []
    for step in range(steps - 1):
        names = ("startingOffsets", step), ("endingOffsets", step + 1)
        between = {
            name: json.dumps({topic: {str(n): padded[n][at] for n in range(QUEUE_COUNT)}})
            for name, at in names
        }
        given = {"topic": topic, **options, **shape, **between, **keyed}
        found += as_read(batch_rows(Path(store.path), "queueId", "queueOffset", "body", **given))
    assert sorted(found, key=lambda one: one[:2]) == wanted(these, {**options, **keyed})
