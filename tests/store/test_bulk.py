"""Several queues are appended to together: every message in its place, or none of them."""

from __future__ import annotations

import signal
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mq
from mq.api.bulk import Stored
from mq.broker.delay import timer as timer_module
from mq.broker.delay.timer import Timer
from mq.broker.local import LocalBroker
from mq.store.check import problems
from tests.store.bulk_appends import LARGE_BULK, QUEUES, SMALL_BULK, append, check_whole, run_failing, stored
from tests.support.appending import append_one
from tests.support.arrivals import wait_for
from tests.support.insides import log_end, schedule_of, timer_of
from tests.support.processes.fail_build import fail_points
from tests.support.store.small_store import open_small

rows = st.tuples(
    st.integers(0, len(QUEUES) - 1), st.binary(min_size=1, max_size=700), st.sampled_from(["", "t"])
)


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        for topic in ("orders", "ledger"):
            broker.create_topic(topic, 2)
        yield broker


@settings(max_examples=40)
@given(st.lists(st.lists(rows, min_size=1, max_size=40), max_size=5), st.booleans())
def test_every_message_is_in_its_queue(
    tmp_path_factory: pytest.TempPathFactory, bulks: list[list[tuple[int, bytes, str]]], extensions: bool
) -> None:
    root = tmp_path_factory.mktemp("bulk") / "store"
    wanted: list[list[tuple[bytes, str]]] = [[] for _ in QUEUES]
    with open_small(root, enable_consume_queue_ext=extensions) as broker:
        for topic in ("orders", "ledger"):
            broker.create_topic(topic, 2)
        for sent in bulks:
            result = append(broker, sent)
            for place, body, tag in sent:
                wanted[place].append((body, tag))
            single = append_one(broker, "orders", 0, mq.Message("orders", b"between"), b"between", 0)
            assert result.end <= log_end(broker)
            assert broker.message(single.msg_id).log_offset >= result.end
            wanted[0].append((b"between", ""))
        assert [stored(broker, queue) for queue in QUEUES] == wanted
    assert list(problems(root)) == []
    with open_small(root) as again:
        assert [stored(again, queue) for queue in QUEUES] == wanted


def test_a_sleeping_reader_wakes_with_the_whole_bulk(broker: LocalBroker) -> None:
    append(broker, [(place, b"x", "") for place in (0, 1, 2, 3)])
    results = [broker.puller(queue)(0, 10, 1000, None, 5.0).messages for queue in QUEUES]
    assert [len(messages) for messages in results] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        (QUEUES, [4], b"x", [1], b"", [0]),
        (QUEUES, [-1], b"x", [1], b"", [0]),
        (QUEUES, [0], b"x", [2], b"", [0]),
        (QUEUES, [0], b"x", [0], b"", [0]),
        (QUEUES, [0], b"x", [1], b"", [1]),
        (QUEUES, [0, 0], b"x", [1], b"", [0]),
        (QUEUES, [], b"", [], b"", []),
        ([QUEUES[0], QUEUES[0]], [1], b"x", [1], b"", [0]),
    ],
)
def test_what_does_not_fit_is_refused(
    broker: LocalBroker, wrong: tuple[list[mq.MessageQueue], list[int], bytes, list[int], bytes, list[int]]
) -> None:
    queues, places, bodies, sizes, properties, encoded_sizes = wrong
    with pytest.raises(ValueError, match="bulk"):
        broker.bulk.append(
            queues, array("i", places), [bodies], array("i", sizes), [properties], array("i", encoded_sizes)
        )


def test_nothing_is_stored_where_one_is_too_large_or_has_no_topic(broker: LocalBroker) -> None:
    with pytest.raises(mq.MessageTooLarge):
        append(broker, [(0, b"small", ""), (1, bytes(5000), "")])
    broker.delete_topic("ledger")
    broker.create_topic("ledger", 1)
    with pytest.raises((mq.NotPermitted, mq.TopicNotFound, ValueError)):
        append(broker, [(0, b"small", ""), (3, b"nowhere", "")])
    assert stored(broker, QUEUES[0]) == []


BULK = """
from pathlib import Path
from tests.store.bulk_appends import append
from tests.support.store.small_store import open_small
broker = open_small(Path({root!r}))
append(broker, {before!r})
append(broker, {sent!r})
"""
POINTS = [
    *(
        (point, passage)
        for point in ("LOCKED", "ARMED", "RECORD", "UNIT", "LOG_END", "PUBLISHED")
        for passage in (1, 2)
    ),
    *(("HALF_RECORD", passage) for passage in (1, 7, 9, 16, 25)),
    *(("BLANK", passage) for passage in (1, 4)),
    *(("NEW_QUEUE_FILE", passage) for passage in (1, 5, 9)),
    *(("LINKED_QUEUE_FILE", passage) for passage in (1, 5, 9)),
    ("DISARMED", 2),
]


@pytest.mark.crash
@pytest.mark.parametrize(("point", "passage"), POINTS)
@pytest.mark.parametrize("alone", [False, True], ids=["beside-others", "alone"])
def test_death_in_the_middle(directory: Path, point: str, passage: int, alone: bool) -> None:
    """All of a bulk is there or none of it, for live processes and for later ones."""
    with open_small(directory) as survivor:
        for topic in ("orders", "ledger"):
            survivor.create_topic(topic, 2)
        if alone:
            survivor.close()
        code = BULK.format(root=str(directory), before=SMALL_BULK, sent=LARGE_BULK)
        done = run_failing(code, directory, f"{fail_points()[point]}:{passage}:kill")
        assert done.returncode == -signal.SIGKILL, done.stderr
        with open_small(directory) as broker:
            check_whole(broker if alone else survivor)
    with open_small(directory) as again:
        check_whole(again, sent_since=True)


REFUSED = """
from contextlib import suppress
from pathlib import Path
import mq
from tests.store.bulk_appends import append
from tests.support.store.small_store import open_small
with open_small(Path({root!r})) as broker:
    append(broker, {before!r})
    with suppress(mq.StoreFull):
        append(broker, {sent!r})
        print("all went in")
    append(broker, {after!r})
"""


@pytest.mark.crash
@pytest.mark.parametrize("passage", [2, 3, 4, 6, 9])
def test_no_space_in_the_middle_leaves_nothing_behind(directory: Path, passage: int) -> None:
    """A bulk that was refused when its records were written already, or before; the next one is stored."""
    with open_small(directory) as broker:
        for topic in ("orders", "ledger"):
            broker.create_topic(topic, 2)
    after = [(place, b"after", "") for place in range(4)]
    code = REFUSED.format(root=str(directory), before=SMALL_BULK, sent=LARGE_BULK, after=after)
    done = run_failing(code, directory, f"{fail_points()['ALLOCATE']}:{passage}:fail")
    assert done.returncode == 0, done.stderr
    sent = [*SMALL_BULK, *(LARGE_BULK if done.stdout else []), *after]
    with open_small(directory) as broker:
        for place, queue in enumerate(QUEUES):
            assert stored(broker, queue) == [(body, tag) for at, body, tag in sent if at == place]


def put_aside(broker: LocalBroker, queue: mq.MessageQueue, properties: bytes) -> Stored:
    return broker.bulk.append(
        [queue], array("i", [0]), [b"x"], array("i", [1]), [properties], array("i", [len(properties)])
    )


BELONGS = b"REAL_TOPIC\x01orders\x02REAL_QID\x011\x02"


def test_what_is_put_aside_says_where_it_belongs(broker: LocalBroker) -> None:
    delay_queues = broker.bulk.delay_queues
    for queue, properties in (
        (delay_queues.level(1), b"DELAY\x011\x02"),
        (delay_queues.level(1), b"REAL_TOPIC\x01orders\x02"),
        (delay_queues.timed, BELONGS),
        (delay_queues.timed._replace(broker_name="renamed"), BELONGS),
        (delay_queues.timed, b"TIMER_OUT_MS\x011000\x02"),
    ):
        with pytest.raises(ValueError, match="says not where it belongs"):
            put_aside(broker, queue, properties)
    for topic, queue_id in (
        ("SCHEDULE_TOPIC_XXXX", 18),
        ("rmq_sys_wheel_timer", 1),
        ("TRANS_CHECK_MAX_TIME_TOPIC", 0),
    ):
        with pytest.raises(mq.NotPermitted):
            put_aside(broker, mq.MessageQueue(topic, "mq", queue_id), BELONGS)
    assert list(broker.delayed()) == []


def test_the_unit_of_a_level_says_when_it_is_due(broker: LocalBroker) -> None:
    """A RocketMQ broker goes by it."""
    result = put_aside(broker, broker.bulk.delay_queues.level(4), b"DELAY\x014\x02" + BELONGS)
    (unit,) = (broker.path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "3").iterdir()
    assert int.from_bytes(unit.read_bytes()[12:20], "big") == result.store_time_ms + 30_000
    (waits,) = broker.delayed()
    assert (waits.queue, waits.delay_level, waits.due_ms) == (QUEUES[1], 4, result.store_time_ms + 30_000)


def test_the_leader_learns_of_delayed_messages_in_a_bulk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would come up to 5 s late, the longest sleep of the leader."""
    with open_small(directory, duties=False) as second:
        for topic in ("orders", "ledger"):
            second.create_topic(topic, 2)
        notified: list[str] = []
        for name, progress in (
            ("levels", schedule_of(second).progress()),
            ("timer", timer_of(second).progress),
        ):
            monkeypatch.setattr(progress, "notify", lambda name=name: notified.append(name))
            progress.words[2] = 1 << 62  # The leader sleeps, and has recorded so.
        delay_queues = second.bulk.delay_queues
        second.bulk.sync(append(second, [(0, b"plain", "")]))
        assert notified == []
        put_aside(second, delay_queues.level(1), b"DELAY\x011\x02" + BELONGS)
        assert notified == ["levels"]
        stored = put_aside(second, delay_queues.timed, b"TIMER_OUT_MS\x011000\x02" + BELONGS)
        assert notified == ["levels", "timer"]
        second.bulk.sync(stored)
        second.bulk.sync(append(second, [(0, b"plain", "")]))
        assert notified == ["levels", "timer"]


def test_the_leader_delivers_from_a_bulk_that_nobody_syncs(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the bulk on disk by itself as soon as it is notified, which is before the sync."""
    monkeypatch.setattr(timer_module, "IDLE", 3600.0)
    monkeypatch.setattr(Timer, "save_interval", 3600.0)
    with open_small(directory, flush="sync") as broker:
        (_, queue) = broker.create_topic("orders", 2).queues
        for count in range(1, 21):
            due_ms = time.time_ns() // 1_000_000 + count
            times = b"TIMER_OUT_MS\x01%d\x02TIMER_DELIVER_MS\x01%d\x02" % (due_ms // 1000 * 1000, due_ms)
            put_aside(broker, broker.bulk.delay_queues.timed, times + BELONGS)
            assert len(wait_for(queue, count)) == count
