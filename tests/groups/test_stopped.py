"""Members of groups that are stopped, wherever they are, and go on after others took over their queues.

Each holder is a process of its own with all queues of a group of its own. All are stopped at once, all lose
their queues to a consumer of the test, and all go on at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import mq
from mq.store.shared.process_state import process_state
from tests.groups.halting import STOP, TOPIC
from tests.support.eventually import eventually
from tests.support.processes.fail_build import TREE, fail_build, fail_points
from tests.support.processes.nursery import Nursery, Process
from tests.support.store.sizes import SIZES

QUEUES = 2
LEASE = 8.0  # Far from what a successor, which runs, may stand still for.
KINDS = ("push", "ordered", "lists", "pull", "loop", "aio")
# Where it is stopped: with nothing to do, in its listener, when it is about to commit, in the middle of it.
MOMENTS = ("idle", "listener", "OFFSET", "OFFSET_COPY")
POINT = fail_points()


class Moment(NamedTuple):
    """When a listener began or ended with a message."""

    time_ns: int
    what: str
    queue_id: int
    offset: int


class Holder:
    def __init__(self, nursery: Nursery, root: Path, kind: str, moment: str) -> None:
        self.kind, self.moment = kind, moment
        self.group = f"{kind}-{moment}"
        self.trace = root.parent / f"trace of {self.group}"
        self.process: Process = nursery.start(
            "holder",
            environment={"MQ_FAIL": f"{POINT[moment]}:1:stop"} if moment in POINT else {},
            root=root,
            trace=self.trace,
            kind=kind,
            group=self.group,
            lease=LEASE,
            stops=moment == "listener",
            sizes=SIZES,
        )

    def moments(self) -> list[Moment]:
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        fields = [line.split() for line in lines]
        return [Moment(int(at), what, int(queue), int(offset)) for at, what, queue, offset in fields]

    @property
    def is_stopped(self) -> bool:
        return process_state(self.process.pid).is_stopped


class Successor:
    """A consumer of the test, in the group of a holder."""

    def __init__(self, broker: mq.Broker, holder: Holder) -> None:
        self.moments: list[Moment] = []
        self._lock = threading.Lock()
        self.push = mq.PushConsumer(broker, holder.group, threads=1, ordered=holder.kind == "ordered")
        self.push.subscribe(TOPIC, listener=self._handle)

    def _handle(self, message: mq.MessageExt) -> None:
        with self._lock:
            for what in ("begin", "end"):
                self.moments.append(Moment(time.monotonic_ns(), what, message.queue_id, message.queue_offset))


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(TREE, tmp_path / "report", fail_build(), "tests.groups.halting") as nursery:
        yield nursery
        assert nursery.failures() == ""


def send(broker: mq.Broker, body: bytes, count: int = 1) -> None:
    """To each queue so many."""
    with mq.Producer(broker) as producer:
        for queue in broker.topic(TOPIC).queues:
            for _ in range(count):
                producer.send(mq.Message(TOPIC, body), queue=queue.message_queue)


def committed(broker: mq.Broker, group: str) -> list[int]:
    return [offset for _, offset in sorted(broker.consumer_groups.offsets(group, TOPIC).items())]


def owners(broker: mq.Broker, group: str) -> set[int]:
    return {state.owner.pid if state.owner else 0 for state in broker.group(group).states(TOPIC)}


def owned_by(broker: mq.Broker, holder: Holder, pids: set[int]) -> None:
    eventually(
        lambda: owners(broker, holder.group) == pids,
        lambda: (holder.group, owners(broker, holder.group)),
    )


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_each_kind_of_consumer_is_stopped_wherever_it_is(
    directory: Path, nursery: Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mq.groups")
    with ExitStack() as stack:
        broker = stack.enter_context(mq.open(directory, queue_lease=LEASE, **SIZES))
        broker.create_topic(TOPIC, QUEUES)
        holders = [Holder(nursery, directory, kind, moment) for kind in KINDS for moment in MOMENTS]
        for holder in holders:
            owned_by(broker, holder, {holder.process.pid})

        # Every queue has messages behind the one at which it is stopped.
        send(broker, b"first")
        idle = [holder for holder in holders if holder.moment == "idle"]
        eventually(
            lambda: all(committed(broker, holder.group) == [1] * QUEUES for holder in idle),
            lambda: [committed(broker, holder.group) for holder in idle],
        )
        for holder in idle:
            holder.process.halt()
        send(broker, STOP)
        send(broker, b"behind", 4)
        eventually(
            lambda: all(holder.is_stopped for holder in holders),
            lambda: [holder.group for holder in holders if not holder.is_stopped],
        )
        for holder in holders:
            for state in broker.group(holder.group).states(TOPIC):
                assert "which is stopped" in state.reason
                assert "its lease" in state.reason

        successors = {holder.group: Successor(broker, holder) for holder in holders}
        for successor in successors.values():
            stack.enter_context(successor.push)
            successor.push.start()
        end = [6] * QUEUES
        eventually(
            lambda: all(committed(broker, holder.group) == end for holder in holders),
            lambda: {holder.group: committed(broker, holder.group) for holder in holders},
        )
        told = [record.getMessage() for record in caplog.records]
        for holder in holders:
            name = f"process {holder.process.pid} ("
            evictions = [text for text in told if "take over" in text and name in text]
            assert any(holder.group in text for text in evictions)
            assert all("which is stopped" in text for text in evictions)
        before = {holder.group: holder.moments() for holder in holders}

        for holder in holders:
            holder.process.go_on()
        # It is a member again, and has its share.
        for holder in holders:
            owned_by(broker, holder, {holder.process.pid, os.getpid()})
            assert committed(broker, holder.group) == end
        send(broker, b"after", 3)
        end = [9] * QUEUES
        eventually(
            lambda: all(committed(broker, holder.group) == end for holder in holders),
            lambda: {holder.group: committed(broker, holder.group) for holder in holders},
        )
        for holder in holders:
            holder.process.stop()
            assert holder.process.wait(60)
        for holder in holders:
            check(holder, before[holder.group], successors[holder.group].moments)
            assert broker.group(holder.group).lag(TOPIC) == 0


def check(holder: Holder, before: list[Moment], others: list[Moment]) -> None:
    """What it began before it was stopped, and what was done after."""
    of_holder = holder.moments()
    since = of_holder[len(before) :]
    begun = {each[2:] for each in before if each.what == "begin"}
    taken = {each[2:] for each in others if each.what == "begin"}
    again = [each for each in since if each.what == "begin"]
    # The message in the listener goes on to its end; nothing of before is begun any more.
    assert not [each for each in again if each.offset < 6 or each[2:] in taken], (holder.group, again)
    for queue_id in range(QUEUES):
        everything = {(queue_id, offset) for offset in range(9)}
        assert everything <= begun | taken | {each[2:] for each in again}, holder.group
    counts = Counter(each[2:] for each in (*of_holder, *others) if each.what == "begin")
    assert {place for place, count in counts.items() if count > 1} <= begun, holder.group
    if holder.kind == "ordered":
        for moments in (of_holder, others):
            for queue_id in range(QUEUES):
                offsets = [each.offset for each in moments if each[1] == "begin" and each[2] == queue_id]
                assert offsets == sorted(set(offsets)), holder.group
