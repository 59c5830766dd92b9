"""Any sequence of calls: groups, offsets and retries go as they would in a few dicts.

Members join and leave, claim queues and give them up, pull, fail, hand back and commit; offsets are reset,
time passes. The model knows the messages of each queue, the offsets, the owners, and what is to come.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mq
from mq.api.beginning import Beginning
from mq.api.group import Claim, Membership, Subscription
from mq.store.check import problems
from tests.contract.conftest import open_broker
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.memory.broker import DELAYS_MS

GROUP, TOPIC = "billing", "orders"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
QUEUES = 2
TIMES_MAX = 2
NAMES = ["a", "b", "c"]
PATIENCE = 60.0

Stored = tuple[bytes, int]  # body, reconsume_times


@dataclass
class Held:
    """A queue in the hands of a member: where it is, and which reset it has seen."""

    claim: Claim
    position: int
    resets_seen: int


@dataclass
class Joined:
    membership: Membership
    held: dict[mq.MessageQueue, Held] = field(default_factory=dict)
    version: int = -1


class Machine(RuleBasedStateMachine):
    kind = ""

    @initialize(consume_from=st.sampled_from(["first", "last"]))
    def open(self, consume_from: str) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.now_ms = 1_700_000_000_000
        self.broker = self.opened()
        self.consume_from = consume_from
        self.queues: dict[mq.MessageQueue, list[Stored]] = {}
        self.dead: list[Stored] = []
        self.pending: list[tuple[int, int, Stored]] = []  # when it is due, and its delay
        self.offsets: dict[mq.MessageQueue, int] = {}
        self.resets: dict[mq.MessageQueue, int] = {}
        self.members: dict[str, Joined] = {}
        self.sent = 0
        self.begun = False
        for queue in self.broker.create_topic(TOPIC, QUEUES).queues:
            self.queues[queue.message_queue] = []

    def opened(self) -> mq.Broker:
        raise NotImplementedError

    def teardown(self) -> None:
        self.broker.close()
        if self.kind == "local":
            assert [str(problem) for problem in problems(self.directory / "store")] == []
        shutil.rmtree(self.directory)

    def changed(self) -> None:
        """Something that every member is told of has happened."""
        for joined in self.members.values():
            version = joined.membership.version()
            assert version > joined.version
            joined.version = version

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 5))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            message = mq.Message(TOPIC, b"%d" % self.sent)
            result = append_one(self.broker, TOPIC, queue_id, message, message.body, 0)
            self.queues[result.queue].append((message.body, 0))

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if name in self.members:
            return
        membership = self.broker.consumer_groups.join(
            GROUP,
            client_id=name,
            model="clustering",
            consume_type="push",
            ordered=False,
            subscriptions=[Subscription(TOPIC)],
            consume_from=self.consume_from,
        )
        if not any(queue.topic == TOPIC for queue in self.offsets):
            for queue, stored in self.queues.items():
                if queue.topic == TOPIC:
                    self.offsets[queue] = len(stored) if self.consume_from == "last" else 0
        self.members[name] = Joined(membership)
        self.begun = True
        self.changed()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), twice=st.booleans())
    def leave(self, data: st.DataObject, twice: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        joined = self.members.pop(name)
        joined.membership.leave()
        self.changed()
        if twice:
            joined.membership.leave()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        queue = data.draw(st.sampled_from(sorted(self.queues)))
        joined = self.members[name]
        if queue in joined.held:
            return
        claim = joined.membership.claim(queue)
        if self.owner(queue) is not None:
            assert claim is None
            return
        assert claim is not None
        assert claim.queue == queue
        assert claim.committed() == self.offsets.get(queue)
        joined.held[queue] = Held(claim, self.offsets.get(queue, 0), self.resets.get(queue, 0))
        joined.version = max(joined.version, joined.membership.version())

    def owner(self, queue: mq.MessageQueue) -> str | None:
        return next((name for name, joined in self.members.items() if queue in joined.held), None)

    def holder(self, data: st.DataObject) -> tuple[Joined, mq.MessageQueue] | None:
        holders = [(name, queue) for name, joined in self.members.items() for queue in joined.held]
        if not holders:
            return None
        name, queue = data.draw(st.sampled_from(sorted(holders)))
        return self.members[name], queue

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if (found := self.holder(data)) is not None:
            joined, queue = found
            joined.held.pop(queue).claim.release()
            self.changed()

    @rule(
        data=st.data(),
        count=st.integers(1, 6),
        fates=st.lists(st.sampled_from(["done", "done", "fails", "soon", "dead"]), min_size=6, max_size=6),
        commits=st.booleans(),
    )
    def consume(self, data: st.DataObject, count: int, fates: list[str], commits: bool) -> None:
        """What a consumer does: look for a reset, pull, call listeners, hand back, commit."""
        if (found := self.holder(data)) is None:
            return
        joined, queue = found
        held = joined.held[queue]
        stored = self.queues[queue]
        if held.resets_seen != self.resets.get(queue, 0):
            assert not held.claim.commit(held.position)
            assert held.claim.committed() == self.offsets[queue]
            held.position, held.resets_seen = self.offsets[queue], self.resets[queue]
        result = self.broker.puller(queue)(held.position, count, 1 << 20, None, 0.0)
        expected = stored[held.position : held.position + count]
        assert [(each.body, each.reconsume_times) for each in result.messages] == expected
        for message, fate in zip(result.messages, fates, strict=False):
            if fate != "done":
                self.hand_back(message, {"fails": 0, "soon": 1, "dead": -1}[fate])
        held.position += len(expected)
        if commits:
            assert held.claim.commit(held.position)
            self.offsets[queue] = max(held.position, self.offsets.get(queue, 0))

    def hand_back(self, message: mq.MessageExt, level: int) -> None:
        assigned.send_back(self.broker, message, GROUP, delay_level=level, max_reconsume_times=TIMES_MAX)
        times = message.reconsume_times
        if level < 0 or times >= TIMES_MAX:
            self.dead.append((message.body, times + 1))
            return
        self.queues.setdefault(mq.MessageQueue(RETRY, self.broker.name, 0), [])
        delay = DELAYS_MS[(level or 3 + times) - 1]
        self.pending.append((self.now_ms + delay, delay, (message.body, times + 1)))
        self.after_hand_back()

    def after_hand_back(self) -> None:
        pass

    def due(self, now_ms: int) -> None:
        """What is delivered now: level after level, each in its order."""
        retry = mq.MessageQueue(RETRY, self.broker.name, 0)
        delivered = sorted((each for each in self.pending if each[0] <= now_ms), key=lambda each: each[1])
        self.queues[retry] += [stored for _, _, stored in delivered]
        self.pending = [each for each in self.pending if each[0] > now_ms]

    @rule(data=st.data(), offset=st.integers(0, 3))
    def commit_less(self, data: st.DataObject, offset: int) -> None:
        """A smaller offset is ignored, and no error."""
        if (found := self.holder(data)) is not None:
            joined, queue = found
            held = joined.held[queue]
            if held.resets_seen == self.resets.get(queue, 0) and offset <= self.offsets.get(queue, -1):
                assert held.claim.commit(offset)

    @rule(data=st.data())
    def correct(self, data: st.DataObject) -> None:
        if (found := self.holder(data)) is not None:
            joined, queue = found
            held = joined.held[queue]
            if held.resets_seen == self.resets.get(queue, 0):
                held.position = data.draw(st.integers(0, len(self.queues[queue])))
                held.claim.correct(held.position)
                self.offsets[queue] = held.position

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(sorted(self.queues)))
        offset = data.draw(st.integers(0, len(self.queues[queue])))
        self.broker.consumer_groups.reset(GROUP, {queue: offset})
        self.offsets[queue] = offset
        self.resets[queue] = self.resets.get(queue, 0) + 1
        self.begun = True
        self.changed()

    @rule(to=st.sampled_from(["earliest", "latest", "first", "last"]))
    def reset_all(self, to: Beginning) -> None:
        self.broker.group(GROUP).reset(TOPIC, to=to)
        for queue, stored in self.queues.items():
            if queue.topic == TOPIC:
                self.offsets[queue] = len(stored) if to in ("latest", "last") else 0
                self.resets[queue] = self.resets.get(queue, 0) + 1
        self.begun = True
        self.changed()

    @rule(data=st.data())
    def commit_from_outside(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(sorted(self.queues)))
        if self.owner(queue) is None:
            offset = data.draw(st.integers(0, len(self.queues[queue])))
            assigned.commit(self.broker, GROUP, queue, offset)
            self.offsets[queue] = max(offset, self.offsets.get(queue, 0))
            self.begun = True

    @rule(dead_letters=st.booleans())
    def delete(self, dead_letters: bool) -> None:
        group = self.broker.group(GROUP)
        if self.members:
            with pytest.raises(mq.NotPermitted):
                group.delete(dead_letters=dead_letters)
            return
        group.delete(dead_letters=dead_letters)
        self.offsets.clear()
        self.pending.clear()
        self.queues.pop(mq.MessageQueue(RETRY, self.broker.name, 0), None)
        if dead_letters:
            self.dead.clear()

    def retrying(self) -> int:
        """How many messages failed and are to come again: those that wait, and those that are due and not
        consumed."""
        due = {queue: stored for queue, stored in self.queues.items() if queue.topic == RETRY}
        return len(self.pending) + sum(
            len(stored) - self.offsets.get(queue, 0) for queue, stored in due.items()
        )

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        group = self.broker.group(GROUP)
        assert [member.client_id for member in group.members()] == sorted(self.members)
        assert self.broker.groups() == ([GROUP] if self.begun and (self.members or self.offsets) else [])
        for topic in (TOPIC, RETRY):
            queues = {queue: stored for queue, stored in self.queues.items() if queue.topic == topic}
            expected = {queue: self.offsets[queue] for queue in sorted(queues) if queue in self.offsets}
            assert group.offsets(topic) == expected
            if not queues:
                continue
            lags = {queue: len(stored) - self.offsets.get(queue, 0) for queue, stored in queues.items()}
            assert group.lag(topic) == sum(lags.values()) + (self.retrying() if topic == TOPIC else 0)
            for state in group.states(topic):
                owner = state.owner.client_id if state.owner else None
                assert owner == self.owner(state.queue)
                assert state.committed == self.offsets.get(state.queue)
                assert (state.end, state.lag) == (len(queues[state.queue]), lags[state.queue])
        if self.dead:
            found = self.broker.topic(DEAD).queues[0].read(0, count_max=1000).messages
            assert [(each.body, each.reconsume_times) for each in found] == self.dead


class MemoryMachine(Machine):
    kind = "memory"

    def opened(self) -> mq.Broker:
        return open_broker("memory", self.directory, clock=lambda: self.now_ms)

    @rule(seconds=st.sampled_from([1, 9, 29, 60, 7200]))
    def time_passes(self, seconds: int) -> None:
        # One second at a time: what is due first is delivered first.
        for _ in range(seconds if self.pending else 0):
            self.now_ms += 1000
            if any(due <= self.now_ms for due, _, _ in self.pending):
                self.due(self.now_ms)
                self.broker.max_offset(mq.MessageQueue(RETRY, self.broker.name, 0))


class LocalMachine(Machine):
    """Delays are so short that each is over before the next thing happens."""

    kind = "local"

    def opened(self) -> mq.Broker:
        levels: Any = {"message_delay_level": " ".join(["1ms"] * len(DELAYS_MS))}
        return open_broker("local", self.directory / "store", **levels)

    def after_hand_back(self) -> None:
        self.due(1 << 62)
        retry = mq.MessageQueue(RETRY, self.broker.name, 0)
        until = time.monotonic() + PATIENCE
        # One that is just delivered may count twice.
        while (
            self.broker.max_offset(retry) < len(self.queues[retry])
            or sum(self.broker.group(GROUP).retrying().values()) > self.retrying()
        ):
            assert time.monotonic() < until, "a message handed back does not come again, or counts twice"
            time.sleep(0.0005)

    @rule()
    def reopen(self) -> None:
        self.broker.close()
        self.members.clear()
        self.broker = self.opened()


@pytest.mark.parametrize("machine", [MemoryMachine, LocalMachine])
def test_groups_go_as_they_would_in_dicts(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=40))
