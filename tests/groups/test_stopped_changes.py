"""A process is stopped inside join, subscribe, claim, release and leave, at any line, and goes on later.

Meanwhile every call of another process ends within its own limit, with an error that names the blocking
process, or goes on. Afterwards the queue has one owner, and the group has each member once.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.api.group import Claim, Membership, Subscription
from mq.broker.groups.member import LocalMembership
from mq.broker.groups.member_table import MemberTable
from mq.broker.local import LocalBroker
from mq.store.shared.process_state import process_state
from tests.groups.stopping import GROUP, STEPS, TOPIC
from tests.support import assigned
from tests.support.eventually import eventually
from tests.support.insides import groups_of
from tests.support.processes.outcomes import Calls, outcome, outcomes
from tests.support.store.peer import Peer
from tests.support.store.sizes import SIZES

pytestmark = pytest.mark.crash

LEASE, LIMIT, PATIENCE = 3.0, 0.1, 60.0  # seconds
FEW = 2  # lines of each step, in a quick run
names = count()


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, queue_lease=LEASE, **SIZES) as broker:
        broker.create_topic(TOPIC, 2)
        for queue in broker.topic(TOPIC).queues:
            with mq.Producer(broker) as producer:
                producer.send(mq.Message(TOPIC, b"there"), queue=queue.message_queue)
        yield broker


@pytest.fixture
def peer(broker: LocalBroker) -> Iterator[Peer]:
    with Peer(broker.path, duties=False, queue_lease=LEASE, **SIZES) as peer:
        peer.do(
            "from tests.groups.stopping import *; from tests.groups.stopping import ready, run, run_locked"
        )
        yield peer


def joined(broker: LocalBroker, name: str) -> Membership:
    return broker.consumer_groups.join(
        GROUP,
        client_id=name,
        model="clustering",
        consume_type="push",
        ordered=False,
        subscriptions=[Subscription(TOPIC)],
    )


def queue_of(broker: LocalBroker) -> mq.MessageQueue:
    return mq.MessageQueue(TOPIC, broker.name, 0)


def stops(peer: Peer) -> bool:
    """Whether it has stopped; else it has ended without."""
    assert peer.process.stdout is not None
    deadline = time.monotonic() + PATIENCE
    while not process_state(peer.pid).is_stopped:
        if select.select([peer.process.stdout], [], [], 0.001)[0]:
            return False
        assert time.monotonic() < deadline
    return True


def calls(broker: LocalBroker, other: Membership) -> Calls:
    group, queue = broker.group(GROUP), queue_of(broker)._replace(queue_id=1)

    def come_and_go() -> None:
        joined(broker, f"guest-{next(names)}").leave()

    return {
        "come and go": come_and_go,
        "members": other.members,
        "subscribe": lambda: other.subscribe([Subscription(TOPIC)]),
        "members of the group": group.members,
        "states": lambda: group.states(TOPIC),
        "lag": lambda: group.lag(TOPIC),
        # That it is refused, while the reset beside it is made, is an answer too.
        "commit": lambda: assigned.claimed(broker, GROUP, queue).commit(1),
        "reset": lambda: group.reset(TOPIC, to="earliest"),
        "another group": lambda: joined_elsewhere(broker),
        "send": lambda: broker.topic("beside").send(b"beside"),
    }


def joined_elsewhere(broker: LocalBroker) -> None:
    with mq.PullConsumer(broker, "others") as consumer:
        consumer.subscribe(TOPIC)
        consumer.poll(0)


def taken(broker: LocalBroker, other: Membership, said: str) -> Claim | None:
    """The claim of the other member, for which it waits as long as it is only refused. None: it cannot be
    had, and the error says why."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found: list[Claim | None] = []
        text, _ = outcome(lambda: found.append(other.claim(queue_of(broker))), LIMIT)  # noqa: B023 - at once
        if text:
            assert re.search(said, text), text
            return None
        if found[0] is not None:
            return found[0]
        time.sleep(0.01)
    raise AssertionError("no member is evicted")


def case(broker: LocalBroker, peer: Peer, step: str, line: int) -> bool:
    """Whether it has stopped at such a line."""
    peer.do(f"joiner = ready(broker, {step!r})")
    other = joined(broker, "other")
    peer.post("do", f"lines = run(joiner.{step}, {line})")
    claim, is_stopped = None, stops(peer)
    if is_stopped:
        try:
            said = rf"process {peer.pid} \(.*\), which is stopped"
            for name, (text, seconds) in outcomes(calls(broker, other), LIMIT).items():
                assert not text or re.search(said, text), (step, line, name, text)
                assert seconds < PATIENCE / 2, (step, line, name)
            claim = taken(broker, other, said)
        finally:
            os.kill(peer.pid, signal.SIGCONT)
    where = step, line
    peer.answer()
    is_its_own = claim is not None and claim.is_current() and claim.commit(1)
    owned_there = peer.ask("joiner.owns()")
    assert not (is_its_own and owned_there), where
    if claim is not None:
        assert is_its_own, where  # It was told that it is the owner, and no other member was.
    there = [] if step == "leave" else ["stopped"]

    def are_there() -> bool:
        for _ in there:
            peer.do("joiner.membership.members()")  # It finds out that it was evicted, and joins again.
        return [each.client_id for each in other.members()] == ["other", *there]

    eventually(are_there, lambda: (where, [each.client_id for each in other.members()]))
    if step not in ("release", "leave"):
        assert not (claim is None and step == "take") or owned_there, where
    peer.do("joiner.leave()")
    if claim is None:
        eventually(
            lambda: other.claim(queue_of(broker)) is not None, lambda: (where, "the queue is not free")
        )
    other.leave()
    assert broker.group(GROUP).members() == []
    return is_stopped


@pytest.mark.timeout(300)
def test_a_member_is_stopped_while_it_changes_its_group(broker: LocalBroker, peer: Peer) -> None:
    broker.create_topic("beside", 1)
    for step in STEPS:
        size = lines_of(peer, step)
        assert size > 5
        for number in range(FEW):
            case(broker, peer, step, size * (2 * number + 1) // (2 * FEW))


@pytest.mark.rounds
@pytest.mark.timeout(3600)
def test_a_member_is_stopped_at_every_line_of_a_change(broker: LocalBroker, peer: Peer) -> None:
    broker.create_topic("beside", 1)
    stopped = 0
    for step in STEPS:
        for line in range(lines_of(peer, step)):
            stopped += case(broker, peer, step, line)
    print(f"  stopped at {stopped} lines")
    assert stopped > 100


def lines_of(peer: Peer, step: str) -> int:
    peer.do(f"joiner = ready(broker, {step!r}); lines = run(joiner.{step}); joiner.leave()")
    size = peer.ask("len(lines)")
    assert isinstance(size, int)
    return size


def test_a_member_that_leaves_while_another_looks_for_the_dead_is_gone(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving takes no lock, so the other one may be stopped between its look and what it does by that."""
    member = joined(broker, "leaves")
    member_table, lives = groups_of(broker).made(GROUP), MemberTable.lives

    def late(self: MemberTable, fd: int, place: int) -> bool:
        member.leave()
        return lives(self, fd, place)

    monkeypatch.setattr(MemberTable, "lives", late)
    with member_table.file.changing() as fd:
        assert member_table.evict_dead(fd) == []
    assert member_table.file.taken() == []


def test_a_join_that_fails_at_last_leaves_no_member(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_membership: LocalMembership) -> None:
        raise mq.StoreLocked("locked", path=str(broker.path))

    with monkeypatch.context() as patched:
        patched.setattr(LocalMembership, "members", refused)
        with pytest.raises(mq.StoreLocked):
            joined(broker, "refused")
    assert broker.group(GROUP).members() == []
    joined(broker, "refused").leave()


def test_a_call_that_is_refused_says_so(broker: LocalBroker, peer: Peer) -> None:
    """And what it was about to do is not done: of a call that is stopped with the group locked."""
    other = joined(broker, "other")
    peer.do("joiner = ready(broker, 'join')")
    peer.post("do", "run_locked(joiner.join)")
    assert stops(peer)
    try:
        text, seconds = outcome(lambda: joined(broker, "refused"), LIMIT)
        assert re.match(rf"StoreLocked: .*process {peer.pid} \(.*\), which is stopped", text), text
        assert seconds < PATIENCE / 2
        assert [each.client_id for each in broker.group(GROUP).members()] == ["other"]
    finally:
        os.kill(peer.pid, signal.SIGCONT)
    peer.answer()
    assert [each.client_id for each in other.members()] == ["other", "stopped"]
    peer.do("joiner.leave()")
