"""The dispatcher without threads: which runs are handed out behind a listener that hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mq.client.engine.delivery import Delivery
from mq.client.engine.dispatcher import RELIEVE_SECONDS, Dispatcher
from mq.client.engine.flow_control import Limits
from mq.client.engine.owned_queue import OwnedQueue
from mq.filter.selection import Selection
from tests.client.filled_queues import filled, offsets

BRIEF = 1e-6


def owned_queue(delivery: Delivery) -> OwnedQueue:
    """What runs ask of a queue: ten messages, owned for ever."""

    def while_held(left: Iterator[object]) -> Iterator[object]:
        return left

    owned: Any = SimpleNamespace(
        cache=filled(0, 10),
        delivery=delivery,
        claim=SimpleNamespace(while_held=while_held, is_lost=lambda: False),
        is_listed=False,
        suspended_until=0.0,
        is_restarting=False,
    )
    owned.can_take = lambda now: OwnedQueue.can_take(owned, now)
    owned.take = lambda count_max, now: OwnedQueue.take(owned, count_max, now)
    owned.commit = lambda: None
    return cast(OwnedQueue, owned)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_behind_a_listener_that_hangs_is_for_others(ordered: bool) -> None:
    delivery = Delivery("orders", Selection(None, lambda found: found), print, None, ordered)
    delivery.slow_down(BRIEF)  # So that all ten are one run.
    owned = owned_queue(delivery)
    clock = [0.0]
    runs = Dispatcher(
        threading.Lock(),
        4,
        Limits(1000, 1 << 20, None),
        cast(Any, None),
        lambda: clock[0],
        tell=lambda: None,
        is_unsaved=lambda: False,
    )
    work = runs.take_from(owned, 0.0)
    assert work is not None
    assert offsets(work.run) == list(range(10))
    assert [next(work.run.left).queue_offset for _ in range(2)] == [0, 1]
    runs.relieve_long(RELIEVE_SECONDS / 2)
    assert len(work.run.messages) == 10
    clock[0] = RELIEVE_SECONDS
    if not ordered:
        assert runs.look_at(RELIEVE_SECONDS / 2) == RELIEVE_SECONDS
    runs.relieve_long(RELIEVE_SECONDS)
    rest = runs.take()
    if ordered:
        assert rest is None
        assert next(work.run.left).queue_offset == 2
        return
    assert rest is not None
    assert offsets(rest.run) == [2], "one at a time, since they may take as long"
    assert list(work.run.left) == []
    assert runs.look_at(RELIEVE_SECONDS) > 2 * RELIEVE_SECONDS, "there is nothing more to relieve"
