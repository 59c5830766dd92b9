"""The local mirror of a queue: what is handed out, what may be committed, what is left when the queue goes.

The model is a dict from offset to one word about its message. Whatever happens in whatever order, the mirror
says the same as the dict: which is handed out next, what may be committed, how much is in here.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.client.engine.process_queue import MessageRun, ProcessQueue
from mq.message import MessageExt
from tests.client.filled_queues import filled, message, messages, offsets


def taken(cache: ProcessQueue, count_max: int = 100, now: float = 0.0) -> MessageRun:
    run = cache.take(count_max, now)
    assert run is not None
    return run


def test_what_may_be_committed_is_the_lowest_that_is_not_consumed() -> None:
    cache = filled(10, 16)
    first, second, third = taken(cache, 2), taken(cache, 2), taken(cache, 2)
    assert [offsets(run) for run in (first, second, third)] == [[10, 11], [12, 13], [14, 15]]
    cache.finish(third)
    cache.finish(second)
    assert cache.lowest == 10
    cache.finish(first)
    assert cache.lowest == 16
    assert cache.is_idle


def test_a_stretch_that_a_filter_left_out_is_consumed() -> None:
    cache = ProcessQueue(5)
    cache.put([], 900)
    assert cache.lowest == 900
    cache.put(messages(907, 911), 1000)
    assert cache.lowest == 907
    cache.finish(taken(cache))
    assert cache.lowest == 1000


def test_a_run_of_some_is_split_where_its_messages_are() -> None:
    cache = ProcessQueue(0)
    cache.put(messages(3, 8, 9), 20)
    first = taken(cache, 1)
    assert (offsets(first), cache.lowest) == ([3], 3)
    cache.finish(first)
    assert cache.lowest == 8


def test_a_truncated_range_is_handed_out_again_and_not_found_otherwise() -> None:
    cache = filled(0, 6)
    run = taken(cache)
    assert next(run.left).queue_offset == 0
    cache.cut(run)
    assert list(run.left) == []
    cache.finish(run)
    assert cache.lowest == 1
    assert offsets(taken(cache)) == [1, 2, 3, 4, 5]


def test_a_run_that_is_cut_before_it_is_begun_consumes_nothing() -> None:
    cache = filled(0, 3)
    run = taken(cache)
    cache.cut(run)
    cache.finish(run)
    assert (cache.lowest, cache.count) == (0, 3)


def test_what_failed_in_order_comes_next() -> None:
    cache = filled(0, 6)
    run = taken(cache, 4)
    cache.finish(run, run.messages[2:])
    assert (cache.lowest, cache.count) == (2, 4)
    assert offsets(taken(cache)) == [2, 3]
    assert offsets(taken(cache)) == [4, 5]


def test_what_is_held_keeps_the_offset_until_its_time() -> None:
    cache = filled(0, 4)
    run = taken(cache)
    cache.finish(run, [run.messages[1], run.messages[3]], due=5.0)
    assert (cache.lowest, cache.count, cache.due) == (1, 2, 5.0)
    assert cache.take(9, 4.9) is None
    first, second = taken(cache, now=5.0), taken(cache, now=5.0)
    assert [offsets(first), offsets(second)] == [[1], [3]]
    cache.finish(first)
    assert cache.lowest == 3
    cache.finish(second)
    assert cache.lowest == 4


def test_a_queue_that_goes_is_finished_below_what_was_begun_and_forgotten_above() -> None:
    cache = filled(0, 12)
    slow, fast, last = taken(cache, 4), taken(cache, 4), taken(cache, 2)
    next(slow.left)
    cache.cut(slow)  # 1, 2 and 3 are a hole: 4 to 7 are about to be consumed
    list(fast.left)
    cache.finish(fast)
    next(last.left)
    cache.drain()
    assert cache.offsets() == {0, 1, 2, 3, 8}
    cache.finish(last)
    assert offsets(taken(cache)) == [1, 2, 3]
    cache.finish(cache.open[-1])
    cache.finish(slow)
    assert cache.is_idle
    assert cache.lowest == 9


def test_bytes_are_counted_as_messages_are() -> None:
    cache = filled(0, 10)
    size = len(message(0).record)
    assert cache.size == 10 * size
    run = taken(cache, 3)
    next(run.left)
    cache.cut(run)
    cache.finish(run)
    assert cache.size == 9 * size
    while run := cache.take(2, 0.0):  # type: ignore[assignment]  # None ends it
        cache.finish(run)
    assert (cache.size, cache.count) == (0, 0)


READY, OPEN, HELD, DONE = "ready", "open", "held", "done"


class Mirror(RuleBasedStateMachine):
    """A queue of which some messages are wanted, some runs fail, some are cut, and which may have to go."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ProcessQueue(0)
        self.known: dict[int, str] = {}
        self.due: dict[int, float] = {}
        self.begun: list[tuple[MessageRun, set[int]]] = []  # what its worker has had of each run
        self.now = 0.0
        self.is_draining = False

    @precondition(lambda self: not self.is_draining)
    @rule(wanted=st.lists(st.booleans(), max_size=6))
    def pull(self, wanted: list[bool]) -> None:
        begin = self.cache.next
        found = [begin + at for at, is_wanted in enumerate(wanted) if is_wanted]
        self.cache.put(messages(*found), begin + len(wanted))
        self.known.update(dict.fromkeys(found, READY))

    @rule(count_max=st.integers(1, 5))
    def take(self, count_max: int) -> None:
        run = self.cache.take(count_max, self.now)
        due = [offset for offset, word in self.known.items() if word == HELD and self.due[offset] <= self.now]
        ready = sorted(offset for offset, word in self.known.items() if word == READY)
        if run is None:
            assert not due
            assert not ready
            return
        got = offsets(run)
        if due:
            assert len(got) == 1
            assert self.due[got[0]] == min(self.due[offset] for offset in due)
        else:
            assert got == ready[: len(got)]
            assert len(got) <= count_max
        self.known.update(dict.fromkeys(got, OPEN))
        self.begun.append((run, set()))

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        run, had = data.draw(st.sampled_from(self.begun))
        had.update(each.queue_offset for each in [next(run.left, None)] if each is not None)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        run, had = data.draw(st.sampled_from(self.begun))
        all_of_it = set(offsets(run))
        self.cache.cut(run)
        self.known.update(dict.fromkeys(all_of_it - had, READY))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), fate=st.sampled_from(["done", "again", "held"]))
    def finish(self, data: st.DataObject, fate: str) -> None:
        place = data.draw(st.integers(0, len(self.begun) - 1))
        run, had = self.begun.pop(place)
        had.update(each.queue_offset for each in run.left)
        assert sorted(had) == offsets(run)
        failed: list[MessageExt] = []
        if fate == "again" and len(self.begun) == 0:
            failed = run.messages[data.draw(st.integers(0, len(run.messages))) :]
        elif fate == "held":
            failed = [each for each in run.messages if data.draw(st.booleans())]
        due = self.now + 5 if fate == "held" else None
        failed_at = {each.queue_offset for each in failed}
        self.cache.finish(run, failed, due)
        for offset in had:
            self.known[offset] = DONE if offset not in failed_at else HELD if due else READY
            self.due[offset] = due or 0.0

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: not self.is_draining)
    @rule()
    def drain(self) -> None:
        self.is_draining = True
        self.cache.drain()
        kept = self.cache.offsets()
        begun_or_done = {offset for offset, word in self.known.items() if word in (DONE, HELD)}
        begun_or_done.update(*(had for _, had in self.begun))
        for offset in [offset for offset, word in self.known.items() if word != DONE and offset not in kept]:
            assert all(offset > other for other in begun_or_done)  # nothing above it is to come twice
            del self.known[offset]
        for offset in kept:
            if self.known[offset] == OPEN and not any(offset in offsets(run) for run, _ in self.begun):
                self.known[offset] = READY

    @invariant()
    def agrees(self) -> None:
        unfinished = {offset for offset, word in self.known.items() if word != DONE}
        assert self.cache.offsets() == unfinished
        assert self.cache.count == len(unfinished)
        assert self.cache.lowest == min(unfinished, default=self.cache.next)
        assert self.cache.is_idle == (not unfinished)
        assert self.cache.can_take(self.now) == any(
            word == READY or (word == HELD and self.due[offset] <= self.now)
            for offset, word in self.known.items()
        )
        assert (self.cache.size == 0) == (not unfinished)
        held = list(self.known.values()).count(HELD)
        assert self.cache.held_count == held
        assert (self.cache.held_size == 0) == (not held)
        if self.is_draining:
            done = [offset for offset, word in self.known.items() if word == DONE]
            assert all(offset < self.cache.next for offset in done)


TestMirror = Mirror.TestCase
TestMirror.settings = settings(max_examples=150, stateful_step_count=40)


@pytest.mark.parametrize("count_max", [1, 3, 64])
def test_all_of_a_pull_is_handed_out_once_and_in_order(count_max: int) -> None:
    cache = filled(0, 50)
    got: list[int] = []
    while run := cache.take(count_max, 0.0):
        got += offsets(run)
        cache.finish(run)
    assert got == list(range(50))


@pytest.mark.parametrize(("begun", "in_hand"), [(1, [0]), (3, [0, 1, 2]), (4, [3]), (6, [3, 4, 5]), (7, [6])])
def test_what_is_with_the_listener_is_the_last_list_that_was_begun(begun: int, in_hand: list[int]) -> None:
    cache = filled(0, 7)
    run = taken(cache)
    run.batch = 3
    for _ in range(begun):
        next(run.left)
    cache.cut(run)
    assert [each.queue_offset for each in run.in_hand] == in_hand
    cache.settle(run, len(run.in_hand))
    assert cache.lowest == in_hand[0]
    assert cache.offsets() == set(range(in_hand[0], 7))
    cache.finish(run)
    assert cache.lowest == begun


def test_of_a_run_that_is_cut_whole_nothing_is_with_the_listener() -> None:
    cache = filled(0, 7)
    run = taken(cache)
    cache.cut(run)
    assert run.in_hand == []
    cache.settle(run, 0)
    assert (cache.lowest, cache.count) == (0, 7)
