"""Arguments that make no sense, to everything public: TypeError, ValueError or an error of mq, and at once.

Never an OverflowError, an AssertionError or a struct.error from below; what fails writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.damage.known import SIZES
from tests.support.appending import append_many, append_one
from tests.support.insides import store_of

NUMBERS: list[Any] = [
    None, -1, 0, 1, 1 << 31, -(1 << 31) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 200,
    0.5, math.nan, math.inf, -math.inf, 1e300, True, "1", b"1", [], (1,), object(),
]  # fmt: skip
TEXTS: list[Any] = [
    None, "", " ", "a b", "a\0b", "\ud800", "ä" * 40_000, "x" * 40_000, "..", "../..", "/", 5, b"bytes", [],
    object(), True, "\x01", "\x02", "%RETRY%", "TBW102",
]  # fmt: skip


def shown(value: object) -> str:
    """The same in every process: no address, and not as long as the value."""
    return "object" if type(value) is object else repr(value)[:20]


NAMED = (TypeError, ValueError, mq.MQError)


@pytest.fixture
def broker(directory: Path) -> Any:
    with mq.open(directory, **SIZES) as broker:
        broker.create_topic("orders", 2)
        append_one(broker, "orders", 0, mq.Message("orders", b"body", tags="t", keys="k"), b"body", 0)
        yield broker


def rejected(call: Callable[[], Any]) -> bool:
    """Whether it raised; what it may not raise goes up."""
    try:
        call()
    except NAMED as error:
        if isinstance(error, UnicodeDecodeError) or not str(error):
            raise AssertionError(f"{error!r} says nothing to the caller") from error
        return True
    return False


def end_of(broker: mq.LocalBroker) -> int:
    return store_of(broker).visible_end()


@pytest.mark.parametrize("value", [1e12, "10m", b"1", True, datetime.now(timezone.utc)], ids=shown)
def test_a_time_is_a_whole_number_of_ms(broker: mq.LocalBroker, value: Any) -> None:
    """A group that is reset to another value would go on at the end, and skip what it has not read."""
    queue, group = broker.topic("orders").queues[0], broker.group("billing")
    with mq.PullConsumer(broker, "billing", auto_commit=False) as consumer:
        consumer.assign([queue])
        for call in (
            lambda: group.reset("orders", to_ms=value),
            lambda: queue.offset_at(value),
            lambda: consumer.seek_to_time(queue, value),
            lambda: broker.query("orders", "k", begin_ms=value),
            lambda: broker.query("orders", "k", end_ms=value),
        ):
            with pytest.raises(
                TypeError, match=f"is a time in ms, an int, and not the {type(value).__name__}"
            ):
                call()
    assert group.lag("orders") == 1


@pytest.mark.parametrize("value", NUMBERS, ids=shown)
def test_bad_numbers_raise_named_errors(broker: mq.LocalBroker, value: Any) -> None:
    queue = broker.topic("orders").queues[0]
    end = end_of(broker)
    calls: list[Callable[[], Any]] = [
        lambda: queue.read(value),
        lambda: queue.read(0, count_max=value),
        lambda: queue.read(0, expression=value),
        lambda: queue.read_arrow(value),
        lambda: queue.read_arrow(0, count_max=value),
        lambda: queue.read_arrow(0, byte_max=value),
        lambda: queue.offset_at(value),
        lambda: broker.puller(queue.message_queue)(value, 1, 1, None, 0.0),
        lambda: broker.puller(queue.message_queue)(0, 1, value, None, 0.0),
        lambda: broker.query("orders", "k", count_max=value),
        lambda: broker.query("orders", "k", begin_ms=value),
        lambda: broker.query("orders", "k", end_ms=value),
        lambda: broker.message(value),
        lambda: broker.topic(value),
        lambda: broker.create_topic(value),
        lambda: broker.readable(value),
        lambda: broker.publishable(value),
        lambda: broker.max_offset(mq.MessageQueue("orders", broker.name, value)),
        lambda: broker.puller(mq.MessageQueue("orders", broker.name, value))(0, 1, 1, None, 0.0),
        lambda: broker.create_topic("other", value),
        lambda: broker.create_topic("other", read_queue_count=value),
        lambda: broker.create_topic("other", write_queue_count=value),
        lambda: broker.create_topic("other", perm=value),
        lambda: broker.expire(retention_hours=value) if value != 0 and value is not None else None,
        lambda: mq.Message("orders", b"x", flag=value),
        lambda: mq.Message("orders", b"x", delay_level=value),
        lambda: mq.Message("orders", b"x", delay_ms=value),
        lambda: mq.Message("orders", b"x", deliver_at_ms=value),
        lambda: mq.Message("orders", value),
        lambda: mq.Producer(broker, timeout=value).close(),
        lambda: mq.Producer(broker, retries=value).close(),
        lambda: mq.Producer(broker, compress_over=value).close(),
    ]
    for call in calls:
        rejected(call)
    assert end_of(broker) == end
    # A place to append to that is not there is never made.
    message = mq.Message("orders", b"x")
    if value not in (0, 1):
        assert rejected(lambda: append_one(broker, "orders", value, message, b"x", 0))
        assert end_of(broker) == end


@pytest.mark.parametrize("value", [-1, -0.001, 0, 0.001, math.nan, -math.inf, None, "1", True], ids=repr)
def test_bad_waits_raise_named_errors(broker: mq.LocalBroker, value: Any) -> None:
    queue = broker.topic("orders").queues[0]
    if not rejected(lambda: queue.read(1, wait=value)):
        assert queue.read(1, wait=value).messages in ([], ())


@pytest.mark.parametrize("value", [1e10, 1e30, math.inf, 1 << 70], ids=repr)
def test_enormous_waits_are_accepted(broker: mq.LocalBroker, value: Any) -> None:
    """They are waits like others: what is there is returned at once."""
    queue = broker.topic("orders").queues[0]
    assert len(queue.read(0, wait=value).messages) == 1


@pytest.mark.parametrize("value", TEXTS, ids=shown)
def test_bad_texts_raise_named_errors(broker: mq.LocalBroker, value: Any) -> None:
    end = end_of(broker)
    calls: list[Callable[[], Any]] = [
        lambda: broker.topic(value),
        lambda: broker.create_topic(value),
        lambda: broker.delete_topic(value),
        lambda: broker.settings(value),
        lambda: broker.readable(value),
        lambda: broker.publishable(value),
        lambda: broker.message(value),
        lambda: broker.query("orders", value),
        lambda: broker.query(value, "k"),
        lambda: broker.topic("orders").queues[0].read(0, expression=value),
        lambda: broker.topic("orders").queues[0].read(0, sql=value),
        lambda: broker.min_offset(mq.MessageQueue(value, broker.name, 0)),
        lambda: broker.max_offset(mq.MessageQueue("orders", value, 0)),
        lambda: broker.create_topic("other", perm=value),
        lambda: mq.Producer(broker, value).close(),
        lambda: mq.Message(value, b"body"),
        lambda: mq.Message("orders", b"body", tags=value),
        lambda: mq.Message("orders", b"body", keys=value),
        lambda: mq.Message("orders", b"body", keys=[value]),
        lambda: mq.Message("orders", b"body", properties={value: "v"}),
        lambda: mq.Message("orders", b"body", properties={"n": value}),
        lambda: mq.Message("orders", b"body", properties=value),
    ]
    for call in calls:
        rejected(call)
    assert end_of(broker) == end


BAD_OPTIONS: list[tuple[str, Any]] = [
    *[(name, value) for name in SIZES for value in (-1, 0, 1 << 60, 1 << 200, 1.5, "64", True, b"")],
    *[("flush", value) for value in ("never", "", None, 1, True, b"sync")],
    *[("flush_interval", value) for value in (0, -1, math.nan, math.inf, "1", True)],
    *[("retention_hours", value) for value in (-1, math.nan, math.inf, "72", True)],
    *[("default_queue_count", value) for value in (0, -1, 1 << 20, 2.5, "4", None)],
    *[("message_size_max", value) for value in (0, -1, 1 << 31, 1 << 200, 2.5, "4", None)],
    *[("disk_ratio_max", value) for value in (-0.1, 1.1, math.nan, "1")],
    *[("message_delay_level", value) for value in ("", "soon", "1", "1s " * 65, 5)],
    *[("timer_precision_ms", value) for value in (0, 60_001, 1.5, "1000")],
    *[("transaction_timeout", value) for value in (0, 86_401, math.nan, "6")],
    *[("transaction_check_max", value) for value in (0, 2.5, 1 << 60)],
    *[("no_such_option", value) for value in (1, None)],
]


@pytest.mark.parametrize(("option", "value"), BAD_OPTIONS, ids=lambda value: repr(value)[:25])
def test_bad_options_raise_named_errors(tmp_path: Path, option: str, value: Any) -> None:
    """Refused before anything is made; the text names the option, its value and what it may be."""
    with pytest.raises((TypeError, ValueError)) as caught:
        mq.open(tmp_path / "store", **{option: value})
    assert option in str(caught.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("target", [None, 5, 5.0, [], object(), "", "a\0b", "a" * 5000, b"a\0b"], ids=shown)
def test_bad_targets_raise_named_errors(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError, OSError, mq.MQError)):
        mq.open(target)
    assert list(tmp_path.iterdir()) == []


def test_a_path_too_long_for_the_system(tmp_path: Path) -> None:
    path = tmp_path
    while len(str(path)) < 4030:
        path /= "d" * 60
    with pytest.raises((ValueError, OSError, mq.MQError)):
        mq.open(path)


def test_a_body_that_no_file_of_the_log_can_hold(broker: mq.LocalBroker) -> None:
    size = SIZES["commitlog_file_size"]
    end = end_of(broker)
    for body_size in (size, size - 20, size * 3):
        body = b"x" * body_size
        with pytest.raises(mq.MessageTooLarge) as caught:
            append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)
        assert caught.value.size == body_size
        assert caught.value.limit < size
    messages = [mq.Message("orders", b"y" * 1000) for _ in range(20)]
    with pytest.raises(mq.MessageInvalid):
        append_many(broker, "orders", 0, messages)
    assert end_of(broker) == end


def test_the_largest_record_that_a_file_holds(broker: mq.LocalBroker) -> None:
    """Body sizes around the limit: each is stored whole or refused, and the next one is not disturbed."""
    size = SIZES["commitlog_file_size"]
    queue = broker.topic("orders").queues[1]
    stored = []
    for body_size in range(size - 400, size):
        body = b"z" * body_size
        try:
            append_one(broker, "orders", 1, mq.Message("orders", body), body, 0)
        except mq.MessageTooLarge:
            continue
        stored.append(body_size)
    assert stored
    assert [len(queue.read(offset, count_max=1).messages[0].body) for offset in range(len(stored))] == stored
