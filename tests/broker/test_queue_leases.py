"""A member's right to its queues lapses: that of a process that is stopped passes on to others. When it goes
on, it finds out before it commits anything.

What consumers make of it is in tests/groups/test_stopped.py.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mq
from mq.api.group import Subscription
from mq.broker.groups.claim import LocalClaim
from mq.broker.groups.member import LocalMembership
from mq.broker.local import LocalBroker
from mq.fastpath import while_unchanged
from mq.store.log.reappend import Copies
from mq.store.native import ffi, lib
from mq.store.shared.group_file import EVICTED, LEASE, LIFE, GroupFile, place_word
from mq.store.shared.group_slots import CHECK, COMMITTED, OFFSET_MAX, RESETS, SLOT_SIZE, TURN, slot_word
from mq.store.shared.lease import Lapse, grace
from mq.store.shared.lock_guards import append_lock
from mq.store.shared.process_state import process_state
from tests.support import assigned
from tests.support.insides import log_end, store_of
from tests.support.joining import QUEUES, client_ids, join, taken_over
from tests.support.store.peer import Peer
from tests.support.store.small_store import open_small, send

SHORT = 4.0  # Far from what a process that runs may stand still for.
PATIENCE = 60.0


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, queue_lease=SHORT) as broker:
        broker.create_topic("orders", 4)
        yield broker


@contextmanager
def stopped(peer: Peer) -> Iterator[None]:
    os.kill(peer.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: process_state(peer.pid).is_stopped)
        yield
    finally:
        os.kill(peer.pid, signal.SIGCONT)


def wait_until(told: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not told():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stopped_member_is_evicted_and_commits_nothing_more(
    broker: LocalBroker, peers: Callable[..., Peer], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(9):
        send(broker, "orders", 0, b"%d" % number)
    member = join(broker)
    peer = peers("peer", 0, 1, queue_lease=SHORT)
    assert peer.ask("[claim.commit(3) for claim in claims]") == [True, True]
    assert member.claim(QUEUES[0]) is None
    with caplog.at_level(logging.WARNING, "mq.groups"), stopped(peer):
        assert "which is stopped" in broker.group("billing").states("orders")[0].reason
        claim, _ = taken_over(broker, member)
        assert client_ids(broker) == ["here"]
        wait_until(lambda: f"peer, process {peer.pid}" in caplog.text)
        assert claim.committed() == 3
        assert claim.commit(5)
    # Before it was told anything.
    assert peer.ask("[claim.commit(8) for claim in claims]") == [False, False]
    assert peer.ask("[claim.is_lost() for claim in claims]") == [True, True]
    peer.do("claims[0].correct(1); claims[0].set_status('late'); claims[0].release()")
    assert peer.ask("list(claims[0].while_held(iter([1, 2])))") == []
    state = broker.group("billing").states("orders")[0]
    assert (state.committed, state.reason, state.owner and state.owner.client_id) == (5, "", "here")
    # It is a member again, with nothing.
    assert peer.ask("[each.client_id for each in member.members()]") == ["here", "peer"]
    assert peer.ask("member.claim(queues[0])") is None
    peer.do("again = member.claim(queues[1])")
    assert peer.ask("(again.committed(), again.commit(4), again.is_lost())") == (3, True, False)
    claim.release()
    assert peer.ask("member.claim(queues[0]).committed()") == 5
    assert not claim.commit(6)


def test_a_member_that_is_evicted_can_leave(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    member = join(broker)
    peer = peers("peer", 0, queue_lease=SHORT)
    with stopped(peer):
        claim, _ = taken_over(broker, member)
    peer.do("member.leave()")
    assert client_ids(broker) == ["here"]
    assert claim.commit(0)
    peer.do("member = broker.consumer_groups.join('billing', client_id='peer', model='clustering',"
            " consume_type='push', ordered=False, subscriptions=[Subscription('orders')])")  # fmt: skip
    assert client_ids(broker) == ["here", "peer"]


def test_a_group_without_members_keeps_its_messages_for_the_next_member(
    broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    peer = peers("peer", 0, queue_lease=SHORT)
    with stopped(peer):
        wait_until(lambda: "lease has lapsed" in broker.group("billing").states("orders")[0].reason)
        assert client_ids(broker) == ["peer"]
        taken_over(broker, join(broker))
        assert client_ids(broker) == ["here"]


def test_a_broadcasting_member_has_no_lease(broker: LocalBroker) -> None:
    member = join(broker, model="broadcasting")
    assert isinstance(member, LocalMembership)
    assert member.member_table.file.words[place_word(member.place) + LEASE] == 0
    time.sleep(2 * SHORT)
    assert client_ids(broker) == ["here"]


def test_a_member_that_runs_keeps_its_queues_and_its_thread_ends_with_it(broker: LocalBroker) -> None:
    member, other = join(broker, "first"), join(broker, "second")
    claim = member.claim(QUEUES[0])
    assert claim is not None
    time.sleep(2 * SHORT)
    assert client_ids(broker) == ["first", "second"]
    assert other.claim(QUEUES[0]) is None
    assert claim.commit(0)


def evict(broker: LocalBroker, member: LocalMembership) -> None:
    member_table, at = member.member_table, place_word(member.place)
    with member_table.file.changing() as fd:
        words = member_table.file.words
        assert member_table.evict(fd, member.place, words[at + LIFE], words[at + LEASE] + 1) is None
        assert member_table.evict(fd, member.place, words[at + LIFE], words[at + LEASE]) is not None


def test_an_evicted_member_has_another_version_whatever_it_had_seen(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 4)
        member = join(broker)
        assert isinstance(member, LocalMembership)
        claim = member.claim(QUEUES[0])
        assert isinstance(claim, LocalClaim)
        versions = [member.version()]
        for _ in range(3):
            evict(broker, member)
            versions.append(member.version())
            assert claim.is_lost()
            assert not member.renew()
            assert [each.client_id for each in member.members()] == ["here"]
            versions.append(member.version())
            assert member.renew()
            claim = member.claim(QUEUES[0])
            assert isinstance(claim, LocalClaim)
            assert claim.commit(versions[-1])
        assert versions == sorted(set(versions))
        member.subscribe([Subscription("orders", "paid")])
        assert [each.subscriptions for each in broker.consumer_groups.members("billing")] == [
            (Subscription("orders", "paid"),)
        ]


def test_an_eviction_and_a_renewal_exclude_each_other(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 4)
        member = join(broker)
        assert isinstance(member, LocalMembership)
        member_table, at = member.member_table, place_word(member.place)
        words = member_table.file.words
        seen = words[at + LIFE], words[at + LEASE]
        assert member.renew()
        with member_table.file.changing() as fd:
            assert member_table.evict(fd, member.place, *seen) is None
        assert client_ids(broker) == ["here"]
        evict(broker, member)
        assert words[at + LEASE] == EVICTED
        assert not member.renew()
        assert client_ids(broker) == []


def test_a_lease_of_queues_is_an_option_with_limits(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"queue_lease is 0\.01: it must be"):
        mq.open(directory, queue_lease=0.01)


# When a lease counts as lapsed.


def test_a_lease_must_have_been_seen_lapsed_for_a_while() -> None:
    lapse, second = Lapse(10.0), 10**9
    assert grace(10.0) == 1.0
    assert [lapse.is_sure("a", at * second // 2) for at in range(3)] == [False, False, True]
    # It was renewed, or another one's, in between.
    assert not lapse.is_sure("b", 2 * second)
    assert not lapse.is_sure(None, 3 * second)
    assert not lapse.is_sure("b", 3 * second)
    assert lapse.is_sure("b", 4 * second)


def test_a_machine_that_was_halted_between_two_checks_evicts_no_member() -> None:
    lapse, second = Lapse(10.0), 10**9
    assert not lapse.is_sure("a", 0)
    assert not lapse.is_sure("a", 100 * second)
    assert lapse.is_sure("a", 101 * second)


# What is committed, in its slot: see mq/store/native/control/group_slots.h.


class Slot:
    def __init__(self, **words: int) -> None:
        self.words = ffi.new("int64_t[]", SLOT_SIZE // 8)
        for name, value in words.items():
            self.words[{"committed": COMMITTED, "check": CHECK, "turn": TURN}[name]] = value

    @property
    def committed(self) -> int:
        return int(lib.mq_slot_value(self.words)) - 1

    def commit(self, turn: int, offset: int, resets: int = 0) -> bool:
        return bool(lib.mq_slot_commit(self.words, turn, resets, offset))


TURNS = st.builds(lambda use, turn: use << 32 | turn, st.integers(0, 200), st.integers(0, 600))


@given(TURNS, st.lists(st.integers(0, OFFSET_MAX - 1), max_size=8))
def test_the_greatest_offset_counts_and_that_of_another_turn_does_not(turn: int, offsets: list[int]) -> None:
    slot = Slot(turn=turn)
    assert lib.mq_slot_apply(slot.words, turn) == 0
    greatest = -1
    for offset in offsets:
        assert slot.commit(turn, offset)
        greatest = max(greatest, offset)
        assert slot.committed == greatest
        slot.words[TURN] = turn = turn + 1
        assert slot.committed == greatest
        assert not slot.commit(turn - 1, OFFSET_MAX - 1)
        assert lib.mq_slot_apply(slot.words, turn - 1) == -1
        assert lib.mq_slot_apply(slot.words, turn) == 0
        assert slot.committed == greatest
    assert not slot.commit(turn, 5, resets=1)
    if offsets:
        assert lib.mq_slot_correct(slot.words, turn, 0, 1)
        assert slot.committed == 1


@pytest.mark.parametrize("written", [COMMITTED, CHECK])
def test_what_an_earlier_owner_writes_late_counts_as_nothing(written: int) -> None:
    early, late = Slot(turn=7), Slot(turn=7)
    assert early.commit(7, 3)
    assert late.commit(7, 3)
    late.words[TURN] = 8
    assert lib.mq_slot_apply(late.words, 8) == 0
    assert late.commit(8, 9)
    late.words[written] = early.words[written]
    assert late.committed == 9
    assert late.commit(8, 10)
    assert late.committed == 10


@pytest.mark.parametrize("turns", [1, 2, 100])
@pytest.mark.parametrize("written", [COMMITTED, CHECK])
def test_what_an_earlier_owner_writes_late_counts_as_nothing_in_later_turns(written: int, turns: int) -> None:
    """A turn ends where a lock is not let go in time, too: nothing may be committed in it."""
    slot = Slot(turn=255)
    assert slot.commit(255, 3)
    late = slot.words[written]
    slot.words[TURN] = 256
    assert lib.mq_slot_apply(slot.words, 256) == 0
    assert slot.commit(256, 9)
    slot.words[written] = late
    slot.words[TURN] = 256 + turns
    assert slot.committed == 9
    assert lib.mq_slot_apply(slot.words, 256 + turns) == 0
    assert slot.committed == 9


def test_a_reset_of_one_turn_is_not_applied_in_another() -> None:
    slot = Slot(turn=2)
    assert slot.commit(2, 9)
    slot.words[1], slot.words[RESETS] = 4, 1
    assert slot.committed == 3
    assert not slot.commit(2, 12)
    assert lib.mq_slot_apply(slot.words, 1) == -1
    assert lib.mq_slot_apply(slot.words, 2) == 1
    assert slot.committed == 3
    assert slot.commit(2, 5, resets=1)
    assert slot.committed == 5


def test_messages_end_with_the_word_that_guards_them() -> None:
    word = ffi.new("int64_t *", 5)
    address = int(ffi.cast("uintptr_t", word))
    guarded = while_unchanged(iter(count()), word, address, 5)
    assert [next(guarded), next(guarded)] == [0, 1]
    word[0] = 6
    assert list(guarded) == []
    kept: Any = while_unchanged(iter([1]), word, address, 6)
    assert list(kept) == [1]
    with pytest.raises(TypeError, match="iterator"):
        while_unchanged([1], word, address, 5)  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize("delay_level", [18, -1])  # Level 18 delivers nothing while this lasts.
def test_what_another_member_has_by_now_is_not_handed_back(broker: LocalBroker, delay_level: int) -> None:
    """Its right is looked at under the lock: it ends here while the call waits for that."""
    send(broker, "orders", 0, b"failed")
    (message,) = broker.topic("orders").queues[0].read(0).messages
    member = join(broker)
    claim = member.claim(QUEUES[0])
    assert isinstance(claim, LocalClaim)
    # So that all is there that this takes.
    assert assigned.send_back(broker, message, "billing", delay_level=delay_level)
    end, stored = log_end(broker), list[bool]()

    def hand_back() -> None:
        stored.append(claim.send_back(message, delay_level=delay_level))

    def waits_for_the_lock() -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is not None and frame.f_code is Copies.append.__code__

    thread = threading.Thread(target=hand_back)
    with append_lock(store_of(broker).live(), broker.path):
        thread.start()
        wait_until(waits_for_the_lock)
        time.sleep(0.05)
        file = GroupFile.existing(store_of(broker), broker.path / "mq" / "groups" / "billing")
        assert file is not None
        file.words[slot_word(claim.number) + TURN] += 1
    thread.join(PATIENCE)
    assert stored == [False]
    assert claim.is_lost()
    assert claim.send_back(message, delay_level=delay_level) is False
    assert log_end(broker) == end
    # One that was released has ended well: what is left of it is handed back.
    again = member.claim(QUEUES[1])
    assert again is not None
    again.release()
    assert again.send_back(message, delay_level=delay_level) is True
    assert log_end(broker) > end
