"""What one trigger takes when it may not take all."""

from __future__ import annotations

from collections.abc import Mapping

import hypothesis.strategies as st
from hypothesis import given

from mq.api.results import MessageQueue
from mq.spark.source.ranges import Positions, backlog
from mq.spark.source.rate_limit import Fit, admit, admit_bytes

QUEUES = [MessageQueue(topic, "mq", number) for topic in ("orders", "payments") for number in range(3)]
Sizes = Mapping[MessageQueue, list[int]]

sizes_by_queue = st.dictionaries(
    st.sampled_from(QUEUES), st.lists(st.integers(1, 60), max_size=25), min_size=1
)
turns = st.none() | st.sampled_from(QUEUES)


def fitting(sizes: Sizes) -> Fit:
    def fit(queue: MessageQueue, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        at, used = start, 0
        while at < end and used + sizes[queue][at] <= bytes_max:
            used += sizes[queue][at]
            at += 1
        return at, used

    return fit


def limits_of(sizes: Sizes) -> tuple[Positions, Positions]:
    return dict.fromkeys(sizes, 0), {queue: len(rows) for queue, rows in sizes.items()}


def bytes_of(sizes: Sizes, start: Positions, end: Positions) -> int:
    return sum(sum(sizes[queue][start[queue] : end[queue]]) for queue in sizes)


@given(sizes_by_queue, st.integers(1, 400), turns)
def test_a_limit_of_bytes_is_kept_and_used_up(
    sizes: Sizes, bytes_max: int, turn: MessageQueue | None
) -> None:
    start, end = limits_of(sizes)
    taken, _ = admit_bytes(start, end, bytes_max, fitting(sizes), turn)
    assert taken.keys() == end.keys()
    assert all(start[queue] <= taken[queue] <= end[queue] for queue in end)
    used = bytes_of(sizes, start, taken)
    if backlog(start, end) and used > bytes_max:
        assert backlog(start, taken) == 1  # One message that is larger than that, alone.
    else:
        left = bytes_max - used
        assert all(taken[queue] == end[queue] or sizes[queue][taken[queue]] > left for queue in end)


@given(sizes_by_queue, st.integers(1, 400), st.integers(1, 30))
def test_messages_are_all_taken_in_turns(sizes: Sizes, bytes_max: int, rows_max: int) -> None:
    """Whatever the limits, no queue starves: a queue that has something gives before all others have
    given as often as there are queues."""
    start, end = limits_of(sizes)
    turn, waits = None, dict.fromkeys(sizes, 0)
    while backlog(start, end):
        taken, turn_of_rows = admit(start, end, rows_max, turn)
        assert backlog(start, taken) == min(rows_max, backlog(start, end))
        taken, turn_of_bytes = admit_bytes(start, taken, bytes_max, fitting(sizes), turn)
        turn = turn_of_bytes if turn_of_bytes != turn else turn_of_rows
        assert backlog(start, taken)
        assert backlog(start, taken) <= rows_max
        for queue in sizes:
            waits[queue] = waits[queue] + 1 if taken[queue] == start[queue] < end[queue] else 0
            assert waits[queue] <= 2 * len(sizes)
        start = taken
    assert start == end


def test_a_small_queue_is_not_passed_over_for_a_large_one() -> None:
    start = dict.fromkeys(QUEUES[:3], 0)
    end = dict(zip(QUEUES[:3], (1_000_000, 1, 0), strict=True))
    assert admit(start, end, 100).positions == dict(zip(QUEUES[:3], (99, 1, 0), strict=True))


def test_more_queues_than_messages_take_turns() -> None:
    start, end = dict.fromkeys(QUEUES, 0), dict.fromkeys(QUEUES, 5)
    seen: list[MessageQueue] = []
    turn = None
    for _ in range(3):
        taken, turn = admit(start, end, 2, turn)
        seen += [queue for queue in QUEUES if taken[queue] > start[queue]]
        start = taken
    assert seen == QUEUES


def test_bytes_are_split_in_proportion_to_the_backlog() -> None:
    sizes = {queue: [10] * rows for queue, rows in zip(QUEUES[:3], (1000, 500, 1), strict=True)}
    taken, _ = admit_bytes(*limits_of(sizes), 3000, fitting(sizes))
    assert [taken[queue] for queue in QUEUES[:3]] == [200, 99, 1]


def test_a_message_that_does_not_fit_has_its_turn() -> None:
    """Others that fit come before it for a while, and not for ever."""
    sizes = {QUEUES[0]: [10] * 100, QUEUES[1]: [95] * 3, QUEUES[2]: [10] * 100}
    start, end = limits_of(sizes)
    turn, order = None, []
    for _ in range(8):
        taken, turn = admit_bytes(start, end, 100, fitting(sizes), turn)
        order.append([taken[queue] - start[queue] for queue in QUEUES[:3]])
        start = taken
    assert sum(row[1] for row in order) == 3
