"""How many messages came and went, and how fast: what operators' tools draw.

The queues themselves say what was stored, by any sender and before the server was started: each finds the
offset of a time. The server counts what clients were given. What groups have consumed is sampled when a tool
asks, so the first answer has no rate.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, NamedTuple

from mq.api.broker import Broker
from mq.errors import NotPermitted, TopicNotFound

__all__ = ["RECENT", "WINDOWS", "DayCounts", "Figures", "Growth", "Meter", "stored_since"]

WINDOWS: Final = (60, 3600, 86_400)  # seconds: a minute, an hour and a day
RECENT: Final = (10, 60, 600)
SAMPLES = 10  # of each window
METERS_MAX = 10_000  # pairs of group and topic
CHEAP_SECONDS = 0.005  # of processor time: a report that costs less is made anew for each request
KEPT_TIMES = 40  # Another one is kept for so many times what it cost: it takes at most 2.5 % of a core.


class Growth(NamedTuple):
    """By how much a count has grown, in how many seconds."""

    grown: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.grown / self.seconds if self.seconds else 0.0


class DayCounts(NamedTuple):
    """A count now, and at the last two midnights of the local time zone."""

    now: int
    today: int
    yesterday: int


class Meter:
    """How fast a count grows in some windows of time, from samples."""

    def __init__(self, *windows: int) -> None:
        self._samples: Final[dict[int, deque[tuple[float, int]]]] = {seconds: deque() for seconds in windows}

    @property
    def sample_count(self) -> int:
        """Of all windows."""
        return sum(map(len, self._samples.values()))

    def note(self, count: int, now: float) -> None:
        """The count is this, now."""
        for seconds, samples in self._samples.items():
            if not samples or now - samples[-1][0] >= seconds / SAMPLES:
                samples.append((now, count))
            # The last one that is older than the window is where the window begins.
            while len(samples) > 1 and now - samples[1][0] >= seconds:
                samples.popleft()

    def growth(self, seconds: int, count: int, now: float) -> Growth:
        """In one of the windows, or since the first sample. A count that fell was set back: 0."""
        samples = self._samples[seconds]
        if not samples:
            return Growth(0, 0.0)
        began, before = samples[0]
        return Growth(max(0, count - before), now - began)


class Figures:
    """Of one server. pulled: what its clients were given since it was started."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._pulled = Meter(*RECENT)
        self._consumed: dict[tuple[str, str], Meter] = {}
        self._today = _midnights()[1]
        self._day_counts = [0, 0]
        self._report: dict[str, str] = {}
        self._report_until = 0.0
        self._report_lock = threading.Lock()
        self.began_ms: Final = time.time_ns() // 1_000_000

    def tick(self, pulled: int) -> None:
        """Take a sample. Every second, by one thread at a time."""
        self._pulled.note(pulled, monotonic())
        today = _midnights()[1]
        if today != self._today:
            self._today = today
            self._day_counts = [self._day_counts[1], pulled]

    def kept(self, made: Callable[[], dict[str, str]]) -> dict[str, str]:
        """The report on the whole broker, which looks at every queue: replicas ask for it every second."""
        with self._report_lock:
            if monotonic() >= self._report_until:
                begun = time.thread_time()
                self._report = made()
                cost = time.thread_time() - begun
                self._report_until = monotonic() + (cost * KEPT_TIMES if cost > CHEAP_SECONDS else 0.0)
            return self._report

    def pulled_per_second(self, pulled: int) -> tuple[float, ...]:
        """In the RECENT windows."""
        now = monotonic()
        return tuple(self._pulled.growth(seconds, pulled, now).per_second for seconds in RECENT)

    def pulled_day_counts(self, pulled: int) -> DayCounts:
        """Of what clients were given."""
        yesterday, today = self._day_counts
        return DayCounts(pulled, today, yesterday)

    def stored_day_counts(self) -> DayCounts:
        """Of the messages of all topics that there are."""
        total, (since_yesterday, since_today) = stored_since(
            self._broker, self._broker.topics(), _midnights()
        )
        return DayCounts(total, total - since_today, total - since_yesterday)

    def stored(self, topics: Iterable[str], *windows: int) -> tuple[Growth, ...]:
        """What these topics got in the last so many seconds, of which the first are the fewest."""
        now_ms = time.time_ns() // 1_000_000
        begins = [now_ms - seconds * 1000 for seconds in reversed(windows)]
        _, counts = stored_since(self._broker, topics, begins)
        return tuple(Growth(count, seconds) for count, seconds in zip(reversed(counts), windows, strict=True))

    def consumed(self, group: str, topic: str) -> tuple[Growth, ...]:
        """What a group has consumed of a topic in the last minute, hour and day, or since the first look."""
        total, now = sum(self._broker.consumer_groups.offsets(group, topic).values()), monotonic()
        with self._lock:
            meter = self._consumed.get((group, topic))
            if meter is None:
                if len(self._consumed) >= METERS_MAX:
                    self._consumed = {}
                meter = self._consumed[group, topic] = Meter(*WINDOWS)
            meter.note(total, now)
            return tuple(meter.growth(seconds, total, now) for seconds in WINDOWS)


def stored_since(broker: Broker, topics: Iterable[str], times_ms: Sequence[int]) -> tuple[int, list[int]]:
    """How many messages these topics ever got, and since each of the times, of which the first is the
    earliest. What retention has deleted since then does not count for a time."""
    total, found = 0, [0] * len(times_ms)
    for topic in topics:
        try:
            queues = broker.readable(topic)
        except (TopicNotFound, NotPermitted):
            continue
        for queue in queues:
            end = broker.max_offset(queue)
            total += end
            for place, time_ms in enumerate(times_ms):
                count = end - broker.offset_at(queue, time_ms)
                if not count:
                    break  # Nothing since then is nothing since any later time.
                found[place] += count
    return total, found


def _midnights() -> tuple[int, int]:
    """The last two midnights of the local time zone, in ms: yesterday's and today's."""
    today = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = today - timedelta(days=1)
    return int(yesterday.timestamp() * 1000), int(today.timestamp() * 1000)
