"""What was delivered before the machine died, and not noted, does not come again, by whatever levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mq
from tests.broker.fake_delay_store import BEGIN_MS, Deliverer, FakeDelayStore, bodies, until_done
from tests.support.arrivals import wait_for


def forget_deliveries(directory: Path) -> None:
    """As a power cut leaves it, within the ten seconds until it is noted how far delivery is."""
    for name in ("mq/control", "mq/delay", "config/delayOffset.json", "config/delayOffset.json.bak"):
        (directory / name).unlink(missing_ok=True)


@pytest.mark.parametrize("levels", ["40ms 1h", "800ms 1h", "1ms 1h"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_level_of_another_delay_repeats_nothing(directory: Path, flush: Any, levels: str) -> None:
    with mq.open(directory, flush=flush, message_delay_level="40ms 1h") as broker:
        topic = broker.create_topic("orders", 1)
        for body in (b"0", b"1", b"2"):
            topic.send(body, delay_level=1)
        wait_for(topic.queues[0], 3)
        broker.flush()
    forget_deliveries(directory)
    with mq.open(directory, flush=flush, message_delay_level=levels) as broker:
        topic = broker.topic("orders")
        topic.send(b"3", delay_level=1)  # A level is in order: this one is the last.
        assert bodies(wait_for(topic.queues[0], 4)) == [b"0", b"1", b"2", b"3"]
        assert topic.queues[0].max_offset == 4


def test_what_was_due_by_the_level_of_then_is_looked_for_and_nothing_else(tmp_path: Path) -> None:
    def meant_for(_number: int, offset: int) -> int:
        return BEGIN_MS + offset * 1001 + 1000

    store = FakeDelayStore()
    first = Deliverer(store, tmp_path, (1000,), code=meant_for)
    for body in (b"0", b"1", b"2"):
        store.put_aside(1, body)
        store.now += 1001
        if body != b"2":
            first.deliver()
    assert bodies(store.delivered()) == [b"0", b"1"]
    store.epoch += 1
    looked_for: list[str] = []

    def look(topic: str, message: mq.MessageExt) -> bool:
        looked_for.append(message.body.decode())
        return store.was_stored(topic, message)

    second = Deliverer(store, tmp_path, (60_000,), code=meant_for, was_stored=look)
    store.put_aside(1, b"3")
    list(until_done(store, second.deliver))
    assert bodies(store.delivered()) == [b"0", b"1", b"2", b"3"]
    assert looked_for == ["0", "1"]
