"""Delay levels while the clock is set back and forward, and one leader follows another, in any order.

What holds, in the time that passes in fact: each message is delivered once, and in order. None comes before
its delay has passed, unless the clock was set forward by what is missing. None comes later than one delay
after it was stored; but where the clock was set back before, one delay after the last change of leader.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.broker.fake_delay_store import Deliverer, FakeDelayStore

DELAYS_MS = (5_000, 20_000)
LOOK_MS = 250  # How often a leader looks here; in fact up to 5 s pass.
SLACK_MS = 3 * LOOK_MS

# The clock is set by so many ms; a level; None: another leader; a tuple: so many looks pass.
# Less than a second corrects the clock's speed, and goes by the clock.
JUMPS = st.integers(1_000, 3_600_000) | st.integers(-3_600_000, -1_000) | st.sampled_from((-5_000, 5_000))
STEPS = st.lists(
    st.tuples(st.just("jump"), JUMPS)
    | st.tuples(st.just("put"), st.sampled_from((1, 2)))
    | st.tuples(st.just("leader"), st.just(0))
    | st.tuples(st.just("pass"), st.integers(1, 30)),
    max_size=30,
)


class Put(NamedTuple):
    """A message: its level, when it was stored, and by how much the clock had been set forward by then."""

    level: int
    at_ms: int
    forward_ms: int


class World:
    """Real time, the clock, and the current leader."""

    def __init__(self, root: Path) -> None:
        self.store = FakeDelayStore()
        self.real_ms = self.forward_ms = self.led_since = 0
        self.back_at: int | None = None  # when the clock was last set back
        self.put: dict[bytes, Put] = {}
        self.came: dict[bytes, tuple[int, int]] = {}  # when, and how far the clock was set forward by then
        self._root, self._names = root, count()
        self.lead()

    def lead(self) -> None:
        """Another leader takes over, which knows nothing but what is stored."""
        begin = self.real_ms
        self.leader = Deliverer(self.store, self._root, DELAYS_MS, monotonic=lambda: self.real_ms - begin)
        self.led_since = self.real_ms

    def jump(self, by_ms: int) -> None:
        self.store.now += by_ms
        self.forward_ms += max(0, by_ms)
        if by_ms < 0:
            self.back_at = self.real_ms

    def put_aside(self, level: int) -> None:
        """Store times never go back."""
        body = b"%d" % next(self._names)
        now, self.store.now = self.store.now, max(self.store.now, self.store.last_stored)
        self.store.put_aside(level, body)
        self.store.now = now
        self.put[body] = Put(level, self.real_ms, self.forward_ms)

    def passes(self, looks: int) -> None:
        for _ in range(looks):
            self.leader.deliver()
            delivered = self.store.delivered()
            for message in delivered[len(self.came) :]:
                assert message.body not in self.came, "twice"
                self.came[message.body] = self.real_ms, self.forward_ms
                self.check(message.body)
            self.real_ms += LOOK_MS
            self.store.now += LOOK_MS

    def check(self, body: bytes) -> None:
        put, (at_ms, forward_ms) = self.put[body], self.came[body]
        delay_ms, took_ms = DELAYS_MS[put.level - 1], at_ms - put.at_ms
        assert took_ms + forward_ms - put.forward_ms >= delay_ms, f"early: {took_ms} of {delay_ms} ms"
        since = put.at_ms
        if self.back_at is not None:
            since = max(since, self.led_since)
        assert at_ms <= since + delay_ms + SLACK_MS, f"late: {at_ms - since} of {delay_ms} ms"


@settings(max_examples=60)
@given(STEPS)
@example([("put", 2), ("pass", 5), ("jump", -3_600_000), ("leader", 0), ("pass", 30), ("leader", 0)])
@example([("put", 2), ("jump", -7_200_000), ("leader", 0), ("jump", 3_600_000), ("leader", 0), ("put", 2)])
@example([("jump", -3_600_000), ("put", 1), ("leader", 0), ("put", 1), ("jump", 3_600_000), ("put", 1)])
def test_what_holds_whatever_the_clock_and_the_leaders_do(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name))
        do: dict[str, Any] = {
            "jump": world.jump,
            "put": world.put_aside,
            "leader": lambda _: world.lead(),
            "pass": world.passes,
        }
        for step, value in steps:
            do[step](value)
        world.passes((max(DELAYS_MS) + SLACK_MS) // LOOK_MS + 2)
        assert world.came.keys() == world.put.keys()
        for level in (1, 2):
            mine = [body for body in world.came if world.put[body].level == level]
            assert mine == sorted(mine, key=int), "out of order"
