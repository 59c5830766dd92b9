"""Half messages and op records against a dict: producers begin and end, rounds check, and processes die.

The store is one in memory (fake_half_store.py), on a clock that is set. What is asked about, how often, and
what is given up is known beforehand from the dict; in the end no ended transaction is checked, and
every open one is.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mq.api.transactions import HalfMessage
from mq.broker.transactions.check_loop import Rules
from mq.broker.transactions.half_queues import name_of, named
from tests.txn.fake_half_store import Died, FakeHalfStore

SECOND = 1000
INTERVAL = 30 * SECOND
RULES = Rules(timeout_ms=6 * SECOND, check_max=3, retention_ms=3600 * SECOND)


@dataclass
class Transaction:
    born_ms: int
    immunity_ms: int | None
    times: int = 0
    place: int = 0  # of the newest copy
    store_ms: int = 0
    has_ended: bool = False
    is_given_up: bool = False


class CheckRounds(RuleBasedStateMachine):
    """See the head of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FakeHalfStore()
        self.model: dict[int, Transaction] = {}

    @initialize()
    def take_over(self) -> None:
        self.rounds = self.store.rounds(RULES, INTERVAL)

    @rule(immunity=st.sampled_from([None, None, 0, 20, 100]), is_known=st.booleans())
    def prepare(self, immunity: int | None, is_known: bool) -> None:
        place = self.store.prepare(immunity, is_known=is_known)
        now = self.store.now
        own = None if immunity is None else immunity * SECOND
        self.model[place] = Transaction(now, own, place=place, store_ms=now)

    @precondition(lambda self: any(not each.has_ended for each in self.model.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        undecided = [name for name, each in self.model.items() if not each.has_ended]
        name = data.draw(st.sampled_from(undecided))
        halves = self.store.queues[self.store.halves]
        copies = [message.queue_offset for message in halves if name_of(message) == name]
        self.store.finish(data.draw(st.sampled_from(copies)))
        self.model[name].has_ended = True

    @rule(seconds=st.sampled_from([1, 3, 7, 15, 30, 31]))
    def pass_time(self, seconds: int) -> None:
        self.store.now += seconds * SECOND

    @rule()
    def set_the_clock_back(self) -> None:
        self.store.now -= 10 * SECOND

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def make_room(self, data: st.DataObject) -> None:
        self.store.table.forget(data.draw(st.sampled_from(sorted(self.model))))

    @rule()
    def step(self) -> None:
        store, table = self.store, self.store.table
        now = store.now
        is_due = not table.round_ms <= now < table.round_ms + INTERVAL
        expected = self._expected(now) if is_due else set()
        end = store.end(store.halves)
        table.asked.clear()
        wait_ms = self.rounds.step()
        assert 0 < wait_ms <= INTERVAL
        copies = {
            message.queue_offset: message
            for message in store.queues[store.halves][end:]
            if HalfMessage(message).times_checked != self.model[name_of(message)].times
        }
        asked = {place for begin, until in table.asked for place in range(begin, until)}
        assert {name_of(copies[place]) for place in asked & set(copies)} == expected
        assert set(copies) <= asked
        for place, message in copies.items():
            assert HalfMessage(message).times_checked == self.model[name_of(message)].times + 1
            assert place > self.model[name_of(message)].place
        self._learn()

    def _expected(self, now: int) -> set[int]:
        """The transactions to check in a round at this time; those given up are recorded."""
        expected = set()
        for name, each in sorted(self.model.items(), key=lambda item: item[1].place):
            if each.has_ended or each.is_given_up:
                continue
            age_ms = now - each.born_ms
            if each.times >= RULES.check_max:
                each.is_given_up = True
                continue
            if each.store_ms == now:
                break
            kept_ms = RULES.timeout_ms if each.immunity_ms is None else each.immunity_ms
            if age_ms < 0 or age_ms > min(kept_ms, RULES.retention_ms):
                expected.add(name)
            elif each.immunity_ms is None:
                break
        return expected

    def _learn(self) -> None:
        """Where the copies are by now."""
        for name, message in self.store.newest().items():
            each = self.model[name]
            each.place, each.store_ms = message.queue_offset, message.store_time_ms
            each.times = HalfMessage(message).times_checked

    @rule()
    def let_a_round_pass(self) -> None:
        self.store.now += INTERVAL
        self.step()

    @rule(steps=st.integers(0, 12))
    def die_in_the_middle(self, steps: int) -> None:
        before = {name: each.is_given_up for name, each in self.model.items()}
        now, table = self.store.now, self.store.table
        if not table.round_ms <= now < table.round_ms + INTERVAL:
            self._expected(now)
        self.store.steps_left = steps
        try:
            self.rounds.step()
        except Died:
            for name, was in before.items():
                # Given up for good once the cursor is behind it.
                each = self.model[name]
                each.is_given_up = was or (
                    each.is_given_up and each.place < self.store.begin(self.store.halves)
                )
        self.store.steps_left = None
        self._learn()
        self.take_over()

    @rule()
    def reboot(self) -> None:
        """The table is gone, with the transactions ended since the last op record: they are to be checked
        again."""
        table = self.store.table
        for name in set(table.to_write) & set(self.model):
            self.model[name].has_ended = False
        table.states.clear()
        table.to_write.clear()
        self.take_over()

    @rule()
    def save_at_the_end(self) -> None:
        self.step()
        self.rounds.save()

    @invariant()
    def who_has_not_ended_is_open(self) -> None:
        undecided = {name for name, each in self.model.items() if not each.has_ended and not each.is_given_up}
        assert self.store.open_names() == undecided

    @invariant()
    def copies_say_what_they_are_of(self) -> None:
        for message in self.store.queues[self.store.halves]:
            name = named(message)
            assert name is None or name < message.queue_offset


CheckRounds.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestCheckRounds = CheckRounds.TestCase
