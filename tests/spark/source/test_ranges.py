"""Any split into triggers and tasks reads each message once, in the order of its queue."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq.api.results import MessageQueue
from mq.spark.source.ranges import (
    OffsetRange,
    Positions,
    QueueLimits,
    Tasks,
    backlog,
    clamp_positions,
    pack,
    ranges_between,
)
from mq.spark.source.rate_limit import admit

QUEUES = [MessageQueue(topic, "mq", number) for topic in ("orders", "payments") for number in range(3)]

counts = st.integers(1, 40)
tasks = st.builds(Tasks, st.integers(0, 30), counts, counts, st.integers(1, 8))
positions = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 200))
limits = st.dictionaries(
    st.sampled_from(QUEUES),
    st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda two: QueueLimits(two[0], sum(two))),
)


def between(start: Positions, end: Positions) -> list[tuple[MessageQueue, int]]:
    return [(queue, offset) for queue in sorted(start) for offset in range(start[queue], end.get(queue, 0))]


def rows_of(ranges: list[OffsetRange]) -> list[tuple[MessageQueue, int]]:
    return [(span.queue, offset) for span in ranges for offset in range(span.start, span.end)]


@given(positions, positions, tasks)
def test_tasks_hold_each_row_once_and_in_order(start: Positions, end: Positions, how: Tasks) -> None:
    packed = pack(ranges_between(start, end), how)
    assert [row for ranges in packed for row in rows_of(list(ranges))] == between(start, end)
    assert all(span.rows > 0 for ranges in packed for span in ranges)
    assert all(packed)
    rows = len(between(start, end))
    assert len(packed) >= min(how.at_least, rows)
    assert all(sum(span.rows for span in ranges) <= how.rows_max for ranges in packed)


@given(st.integers(1, 5000), tasks)
def test_tasks_are_as_few_as_they_may_be(rows: int, how: Tasks) -> None:
    packed = pack([OffsetRange(QUEUES[0], 0, rows)], how)
    sizes = [sum(span.rows for span in ranges) for ranges in packed]
    if how.rows_worth:
        assert max(sizes) - min(sizes) <= 1
        needed = -(-rows // how.rows_max)
        assert len(packed) <= max(how.cores, how.at_least, needed)


def test_a_queue_for_each_task_where_that_is_asked_for() -> None:
    ranges = [OffsetRange(queue, 5, 5 + number) for number, queue in enumerate(QUEUES, 1)]
    assert pack(ranges, Tasks(0, 100, 1, 2)) == [(span,) for span in ranges]


@given(positions, positions, st.integers(1, 300))
def test_a_limit_is_kept_and_used_up(start: Positions, end: Positions, rows_max: int) -> None:
    start = {queue: start.get(queue, 0) for queue in end}
    admitted, _ = admit(start, end, rows_max)
    assert backlog(start, admitted) == min(rows_max, backlog(start, end))
    assert all(start[queue] <= admitted[queue] <= max(end[queue], start[queue]) for queue in end)


def test_queues_give_in_proportion_to_their_backlog() -> None:
    start = dict.fromkeys(QUEUES[:3], 10)
    end = dict(zip(QUEUES[:3], (1010, 510, 10), strict=True))
    assert admit(start, end, 300).positions == dict(zip(QUEUES[:3], (210, 110, 10), strict=True))


@given(positions, limits, st.sets(st.sampled_from(["orders", "payments"])))
def test_reading_goes_on_inside_of_what_there_is(
    wanted: Positions, there: dict[MessageQueue, QueueLimits], remade: set[str]
) -> None:
    settled, losses = clamp_positions(wanted, there, remade)
    assert settled.keys() == there.keys()
    assert all(there[queue].oldest <= offset <= there[queue].end for queue, offset in settled.items())
    lost = {loss.queue for loss in losses}
    for queue, offset in wanted.items():
        is_whole = queue in there and queue.topic not in remade and settled[queue] == offset
        assert (queue not in lost) is is_whole
    assert lost <= wanted.keys()


class Stream(RuleBasedStateMachine):
    """Messages come to old queues and to new ones, triggers of any size read some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[MessageQueue, int] = {}
        self.read: list[tuple[MessageQueue, int]] = []
        self.at: Positions = {}

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(0, 30))
    def send(self, queue: MessageQueue, count: int) -> None:
        self.ends[queue] = self.ends.get(queue, 0) + count

    @rule(rows_max=st.none() | st.integers(1, 50), how=tasks, replays=st.integers(0, 2))
    def trigger(self, rows_max: int | None, how: Tasks, replays: int) -> None:
        begin, losses = clamp_positions(
            self.at, {queue: QueueLimits(0, end) for queue, end in self.ends.items()}
        )
        assert losses == []
        end = admit(begin, self.ends, rows_max).positions
        # A batch that was planned and not finished is planned again, later.
        for _ in range(replays):
            clamp_positions(self.at, {queue: QueueLimits(0, end + 7) for queue, end in self.ends.items()})
            admit(begin, {queue: end + 7 for queue, end in self.ends.items()}, rows_max)
        packed = pack(ranges_between(begin, end), how)
        self.read += [row for ranges in packed for row in rows_of(list(ranges))]
        self.at = end

    @invariant()
    def each_row_was_read_once(self) -> None:
        assert sorted(self.read) == between(dict.fromkeys(self.at, 0), self.at)

    def teardown(self) -> None:
        self.trigger(None, Tasks(10, 40, 1, 2), 0)
        assert sorted(self.read) == between(dict.fromkeys(self.ends, 0), self.ends)


TestStream = Stream.TestCase
