"""Every table of the command fits into 80 columns, and nothing of it is cut off or wrapped within a cell."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import mq
from mq.cli.text_table import WIDTH_MIN, table_lines
from mq.sink_ledger import Entry
from tests.cli.conftest import Run

LONG_TOPIC = "orders-of-the-warehouse-in-rotterdam-and-of-all-the-others"
LONG_GROUP = "billing-and-accounting-department"


def test_a_table_that_fits_has_one_line_a_row() -> None:
    rows = [("orders/0", "10", "paused"), ("orders/11", "9,000", "")]
    assert table_lines(("queue", "lag", "reason"), rows, numbers={"lag"}, below=("reason",)) == [
        "queue        lag  reason",
        "orders/0      10  paused",
        "orders/11  9,000",
    ]


def test_of_the_last_column_only_what_does_not_fit_goes_beneath() -> None:
    rows = [("orders/0", "10", "suspended until 12:00:00"), ("orders/11", "9,000", "paused")]
    assert table_lines(("queue", "lag", "reason"), rows, numbers={"lag"}, below=("reason",), width=30) == [
        "queue        lag  reason",
        "orders/0      10",
        "    reason: suspended until",
        "      12:00:00",
        "orders/11  9,000  paused",
    ]


def test_a_long_first_cell_has_a_line_of_its_own() -> None:
    rows = [("a-very-long-topic", "10"), ("b", "9,000")]
    assert table_lines(("topic", "messages"), rows, numbers={"messages"}, width=20) == [
        "topic  messages",
        "a-very-long-topic",
        "             10",
        "b         9,000",
    ]


@given(
    st.lists(st.tuples(*[st.text("abc \u4e2d-", max_size=60)] * 4), max_size=5),
    st.sets(st.sampled_from(["two", "four"])),
    st.permutations(["two", "three", "four"]),
)
def test_every_cell_is_there_whole_and_no_line_is_too_wide(
    rows: list[tuple[str, str, str, str]], numbers: set[str], below: list[str]
) -> None:
    rows = [tuple(re.sub(r"\s+", "_", cell) for cell in row) for row in rows]  # type: ignore[misc]  # four they stay
    lines = table_lines(("one", "two", "three", "four"), rows, numbers=numbers, below=below, width=79)
    text = "\n".join(lines)
    assert [cell for row in rows for cell in row if cell not in {"", "-"} and cell not in text] == []
    # A word alone may be wider than the screen: it is not broken.
    assert [line for line in lines if cell_len(line) > 79 and len(line.split()) > 2] == []


@pytest.fixture
def shop(directory: Path) -> Iterator[Callable[[], None]]:
    """A store with long names: topics, groups, members, failures, timers, transactions."""
    with mq.open(directory) as broker:
        topic = broker.create_topic(LONG_TOPIC, 2)
        for number in range(12):
            topic.send(b"order %d" % number)
        topic.send(b"later", delay_ms=3_600_000)
        topic.send(b"later", delay_level=18)
        producer = mq.TransactionProducer(broker, LONG_GROUP, lambda _: mq.TransactionState.UNKNOWN)
        half = producer.begin(mq.Message(LONG_TOPIC, b"undecided"))
        group = broker.group(LONG_GROUP)
        with mq.PushConsumer(broker, LONG_GROUP, ordered=True, suspend_ms=30_000) as consumer:
            consumer.subscribe(
                LONG_TOPIC, sql="price > 100 AND region IN ('EU', 'US') OR price IS NULL", listener=_fail
            )
            consumer.start()
            deadline = time.monotonic() + 60
            while not all(state.reason.startswith("suspended") for state in group.states(LONG_TOPIC)):
                assert time.monotonic() < deadline, group.states(LONG_TOPIC)
                time.sleep(0.02)
            yield lambda: None
        half.rollback()
        producer.close()


def _fail(_: mq.MessageExt) -> None:
    raise ValueError("not today")


def assert_fits(out: str, whole: list[str]) -> None:
    lines = out.splitlines()
    assert lines
    too_wide = [line for line in lines if cell_len(line) > WIDTH_MIN]
    # A recall handle is one word, which is copied: it is never broken.
    assert [line for line in too_wide if len(line.split()) > 2] == []
    text = re.sub(r"\s+", " ", out)
    assert [cell for cell in whole if cell not in text] == []


def test_every_table_fits_into_80_columns(run: Run, shop: Callable[[], None]) -> None:
    [group] = run("groups", LONG_GROUP, "--json").objects
    [member] = group["members"]
    reasons = [queue["reason"].partition(" until ")[0] for queue in group["queues"] if queue["reason"]]
    assert reasons
    assert_fits(
        run("groups", LONG_GROUP).out,
        [
            member["client_id"],
            member["host"],
            f"{LONG_TOPIC}/0",
            "price > 100 AND region IN ('EU', 'US')",
            *reasons,
        ],
    )
    assert_fits(run("groups").out, [LONG_GROUP, LONG_TOPIC, "clustering, in order"])
    assert_fits(run("topics").out, [LONG_TOPIC])
    delayed = run("timers", "--list", "--json").objects
    assert len(delayed) == 2
    assert_fits(run("timers").out, [LONG_TOPIC])
    handles = [one["recall_handle"] for one in delayed if one["recall_handle"]]
    assert_fits(run("timers", "--list").out, [one["msg_id"] for one in delayed] + handles)
    [undecided] = run("transactions", "--json").objects
    assert_fits(run("transactions").out, [undecided["msg_id"], LONG_TOPIC, LONG_GROUP])
    [settings] = run("settings", "--json").objects
    assert_fits(run("settings").out, [*settings, *(str(value) for value in settings.values())])
    assert_fits(run("reset", LONG_GROUP, LONG_TOPIC, "--to", "latest").out, [f"{LONG_TOPIC}/1"])


def test_what_would_be_deleted_fits_into_80_columns(run: Run, directory: Path) -> None:
    with mq.open(directory, commitlog_file_size=65_536, retention_hours=1000) as broker:
        topic = broker.create_topic(LONG_TOPIC, 1)
        broker.group(LONG_GROUP).reset(LONG_TOPIC, to="earliest")
        for _ in range(10):
            topic.send(os.urandom(20_000))
    moment = time.time() - 100 * 3600
    for path in (directory / "commitlog").iterdir():
        os.utime(path, (moment, moment))
    shown = run("expire", "--dry-run", "--hours", "50")
    assert shown.status == 0, shown.err
    assert_fits(shown.out, [f"{LONG_TOPIC}/0"])


def test_the_sinks_fit_into_80_columns(run: Run, directory: Path) -> None:
    from tests.cli.sinks import say, stage

    query = "8f9e1c52-6a63-4c0e-9d6c-3f6a5b1c2d3e/warehouse"
    with mq.open(directory) as broker:
        files = ("42/gone.arrow", "42/b.arrow")
        say(broker, Entry(query, "query-1", 42_000, 0, 150_000_000, files, 0, int(time.time() * 1000)))
    stage(directory, f"{query}/42/b.arrow")
    table = (
        run("sinks").out.partition("/gone.arrow")[0].rpartition("\n")[0]
    )  # What is lost follows in sentences.
    assert_fits(table, [query, "unfinished, 2 files left", "150,000,000"])
    assert json.loads(run("sinks", "--json").out)["txn"] == query
