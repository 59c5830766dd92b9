"""Groups over processes that die: the live members, the owners of queues, and the remains.

What every broker must answer about groups is in tests/contract; this is what only a directory that several
processes share can get wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mq
from mq.api.group import Claim, Membership, Subscription
from mq.broker.groups import member_table, queue_status
from mq.broker.groups.member_table import MemberTable
from mq.broker.local import LocalBroker
from mq.store.shared.group_file import LAYOUT, MAPPED_SIZE, READY, GroupFile
from mq.store.shared.group_slots import SLOTS_AT
from tests.support import assigned
from tests.support.insides import groups_of, store_of
from tests.support.joining import JOIN, QUEUES, SOON, client_ids, join, taken_over
from tests.support.store.peer import Peer
from tests.support.store.small_store import open_small, overwrite, send

TAKEOVER = 0.25  # the promise
TAKEOVER_LATEST = 10.0  # the worst of a few on a busy machine: a member that is not notified waits longer


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("orders", 4)
        yield broker


def claimed(membership: Membership, queue_id: int = 0) -> Claim:
    claim = membership.claim(QUEUES[queue_id])
    assert claim is not None
    return claim


def group_file(directory: Path) -> Path:
    return directory / "mq" / "groups" / "billing"


# Death.


def test_the_queues_of_a_killed_member_are_taken_over_at_once(
    broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    membership = join(broker)

    def usual() -> float:
        """How long it takes, in the middle of a few."""
        times = []
        for number in range(8):
            peer = peers(f"peer {number}", 0)
            assert membership.claim(QUEUES[0]) is None
            assert len(membership.members()) == 2
            peer.kill()
            claim, took = taken_over(broker, membership)
            assert client_ids(broker) == ["here"]
            claim.release()
            times.append(took)
        assert max(times) <= TAKEOVER_LATEST
        return sorted(times)[len(times) // 2]

    # In one of a few rounds: the end of a process takes a busy machine as long as that.
    assert any(usual() <= TAKEOVER for _ in range(3))


def test_sleeping_members_wake_when_another_dies(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    victim = peers("victim", 0, 1)
    sleepers = [peers("one"), peers("two")]
    for sleeper in sleepers:
        sleeper.do("assert member.claim(queues[0]) is None and len(member.members()) == 3")
        # Start before the death: afterwards there is nothing to wait for.
        sleeper.do("version = member.version()")
        sleeper.post("do", "broker.waiter().wait([], [(member, version)], 20.0)")
    victim.kill()
    for sleeper in sleepers:
        sleeper.answer()
        assert sleeper.ask("member.version() > version")
        assert sleeper.ask("sorted(each.client_id for each in member.members())") == ["one", "two"]
    assert sum(sleeper.ask("member.claim(queues[0]) is not None") for sleeper in sleepers) == 1


def test_a_leaving_member_hands_over_at_once(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    peer = peers("peer", 0)
    membership = join(broker)
    assert membership.claim(QUEUES[0]) is None
    peer.do("claims[0].commit(0)")
    peer.post("do", "member.leave()")
    _, took = taken_over(broker, membership)
    assert took <= TAKEOVER_LATEST
    peer.answer()


def test_a_released_queue_wakes_the_member_that_waits_for_it(
    broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    claim = claimed(join(broker))
    peer = peers("peer")
    peer.do("assert member.claim(queues[0]) is None; version = member.version()")
    peer.post(
        "do",
        "broker.waiter().wait([], [(member, version)], 20.0); assert member.claim(queues[0]) is not None",
    )
    claim.release()
    began = time.monotonic()
    peer.answer()
    assert time.monotonic() - began < SOON / 2


def test_a_broker_that_closes_takes_its_members_along(directory: Path, broker: LocalBroker) -> None:
    with open_small(directory) as second:
        left = join(second, "second")
        claimed(left)
        assert client_ids(broker) == ["second"]
    assert client_ids(broker) == []
    with pytest.raises(mq.BrokerClosed):
        left.members()
    left.leave()
    claimed(join(broker))


@pytest.mark.parametrize("module", [member_table, queue_status], ids=["members", "owners"])
def test_a_look_at_a_group_while_another_thread_closes_the_broker(
    broker: LocalBroker, peers: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    peers("peer", 0)
    owner_of = module.byte_owner

    def closed_meanwhile(fd: int, at: int) -> int | None:
        owner: int | None = owner_of(fd, at)
        broker.close()
        return owner

    group = broker.group("billing")
    assert group.lag("orders") == 0
    monkeypatch.setattr(module, "byte_owner", closed_meanwhile)
    with pytest.raises(mq.BrokerClosed):
        group.lag("orders")


def test_a_join_while_another_thread_closes_the_broker(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once while there is room made for the group, and once when its place is taken."""
    populate, enter = GroupFile._populate, MemberTable.enter

    def closed_before(file: GroupFile, start: int, size: int) -> None:
        file.close()
        populate(file, start, size)

    def closed_behind(table: MemberTable, *arguments: Any) -> int | None:
        place = enter(table, *arguments)
        table.file.close()
        return place

    for owner, name, late in ((GroupFile, "_populate", closed_before), (MemberTable, "enter", closed_behind)):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, late)
            with pytest.raises(mq.BrokerClosed):
                join(broker)


# Fork, and what shares no pids.


def test_a_forked_child_keeps_no_claim_of_a_killed_parent(
    broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    peer = peers("peer", 0)
    peer.do("child = os.fork()\nif child == 0: time.sleep(600)")
    child = peer.ask("child")
    try:
        peer.kill()
        taken_over(broker, join(broker))
    finally:
        os.kill(child, 9)


def test_what_a_forked_child_is_told(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    peer = peers("peer", 0)
    peer.do(
        "def told(call):\n"
        "    try: call()\n"
        "    except Exception as error: return type(error).__name__\n"
        "calls = [member.members, broker.waiter().wakeup, member.leave, lambda: member.claim(queues[1]),"
        " claims[0].committed, lambda: claims[0].commit(1), claims[0].release, broker.close]\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(write, ' '.join(str(told(call)) for call in calls).encode()); os._exit(0)\n"
        "answer = os.read(read, 1000).decode(); os.wait()"
    )
    forked = "ForkedBroker"
    assert peer.ask("answer").split() == [forked, "None", "None", forked, forked, forked, "None", "None"]
    # Nothing of that is the parent's loss.
    assert client_ids(broker) == ["peer"]
    assert join(broker).claim(QUEUES[0]) is None
    assert peer.ask("claims[0].commit(3) and claims[0].committed()") == 3


def test_a_child_that_python_does_not_know_of_keeps_no_queue_for_ever(
    broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    """Forked in C, with no hook that closes descriptors: the locks live on, their owner does not."""
    peer = peers("peer", 0)
    peer.do(
        "import ctypes; libc = ctypes.CDLL(None)\n"
        "child = libc.fork()\n"
        "if child == 0: libc.sleep(600); os._exit(0)"
    )
    child = peer.ask("child")
    try:
        peer.kill()
        membership = join(broker)
        assert [member.client_id for member in membership.members()] == ["here"]
        claim = claimed(membership)
        assert claim.commit(1)
        assert join(broker, "third").claim(QUEUES[0]) is None
    finally:
        os.kill(child, 9)


def test_a_member_of_another_pid_namespace_is_missed_when_it_dies(
    broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    peer = peers(
        "peer", 0, before="import mq.broker.groups.member_table as r; r.pid_namespace_here = lambda: 1"
    )
    membership = join(broker)
    assert len(membership.members()) == 2
    assert membership.claim(QUEUES[0]) is None
    peer.kill()
    _, took = taken_over(broker, membership)
    assert took <= TAKEOVER_LATEST
    assert client_ids(broker) == ["here"]


# What is left when all members are dead.


def test_offsets_survive_the_death_of_all_to_the_last_commit(directory: Path, broker: LocalBroker) -> None:
    for number in range(50):
        send(broker, "orders", 0, b"%d" % number)
    broker.close()
    peer = Peer(directory)
    peer.do(JOIN.format("peer", [0]))
    peer.do("for number in range(38): assert claims[0].commit(number)")
    peer.kill()
    with open_small(directory) as after:
        assert after.group("billing").offsets("orders")[QUEUES[0]] == 37
        assert after.group("billing").lag("orders") == 13
        assert claimed(join(after)).committed() == 37
        assert client_ids(after) == ["here"]


def test_offsets_come_back_when_mq_was_deleted_by_hand(directory: Path, broker: LocalBroker) -> None:
    for number in range(5):
        send(broker, "orders", 1, b"%d" % number)
    claimed(join(broker), 1).commit(3)
    broker.close()
    shutil.rmtree(directory / "mq")
    with open_small(directory) as after:
        assert after.groups() == ["billing"]
        assert assigned.committed(after, "billing", QUEUES[1]) == 3
        assert claimed(join(after), 1).committed() == 3


def harm_cut(path: Path) -> None:
    os.truncate(path, 5000)


def harm_empty(path: Path) -> None:
    os.truncate(path, 0)


def harm_stamp(path: Path) -> None:
    overwrite(path, 3, b"\xff")


def harm_layout(path: Path) -> None:
    overwrite(path, 8, struct.pack("@q", LAYOUT + 1))


def harm_epoch(path: Path) -> None:
    overwrite(path, 16, b"another!")


def harm_boot(path: Path) -> None:
    overwrite(path, 24, b"another boot of t")


def harm_ready(path: Path) -> None:
    overwrite(path, 40, struct.pack("@q", 1 << 40))


def harm_all(path: Path) -> None:
    path.write_bytes(b"\xa5" * 100_000)


def harm_name(path: Path) -> None:
    path.unlink()


HARMS = [
    harm_cut,
    harm_empty,
    harm_stamp,
    harm_layout,
    harm_epoch,
    harm_boot,
    harm_ready,
    harm_all,
    harm_name,
]


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_group_file_is_made_anew_from_what_was_saved(
    directory: Path, broker: LocalBroker, harm: Callable[[Path], None]
) -> None:
    for number in range(5):
        send(broker, "orders", 1, b"%d" % number)
    claimed(join(broker), 1).commit(3)
    broker.close()
    assert group_file(directory).stat().st_size >= MAPPED_SIZE
    harm(group_file(directory))
    with open_small(directory) as after:
        assert after.group("billing").offsets("orders")[QUEUES[1]] == 3
        claim = claimed(join(after), 1)
        assert claim.committed() == 3
        assert claim.commit(4)
    with open_small(directory) as again:
        assert assigned.committed(again, "billing", QUEUES[1]) == 4


def test_flipped_bytes_of_members_and_slots_end_in_no_crash(directory: Path, broker: LocalBroker) -> None:
    send(broker, "orders", 0, b"x")
    claimed(join(broker))
    places, slots = 4096, SLOTS_AT
    for at in (*range(places, places + 64, 8), *range(slots, slots + 128, 8), MAPPED_SIZE, MAPPED_SIZE + 20):
        overwrite(group_file(directory), at, b"\xff" * 8)
        with open_small(directory) as second:
            assert [state.queue for state in second.group("billing").states("orders")] == QUEUES
            second.group("billing").members()
            member = join(second, f"after {at}")
            second.consumer_groups.reset("billing", {QUEUES[0]: 0})
            claim = member.claim(QUEUES[0])
            if claim is not None:
                assert claim.committed() == 0
            assert assigned.committed(second, "billing", QUEUES[0]) == 0


def test_of_an_offset_and_its_copy_the_lower_counts(directory: Path, broker: LocalBroker) -> None:
    """So that damage makes a group consume again what it has consumed, and never skip anything."""
    for number in range(9):
        send(broker, "orders", 0, b"%d" % number)
    claimed(join(broker)).commit(5)
    number = groups_of(broker).number(QUEUES[0])
    slot = SLOTS_AT + 128 * number
    for at, value, expected in (
        (slot, 9, 5),
        (slot, -(1 << 60), 5),
        (slot, 3, 2),
        (slot + 56, -9, 2),
        (slot + 56, 1 << 60, 2),
    ):
        overwrite(group_file(directory), at, struct.pack("@q", value))
        assert assigned.committed(broker, "billing", QUEUES[0]) == expected
        assert broker.group("billing").offsets("orders")[QUEUES[0]] == expected
    with open_small(directory) as second:
        groups_of(broker).close()
        claim = claimed(join(second))
        assert claim.committed() == 2
        assert claim.commit(4)
        assert assigned.committed(second, "billing", QUEUES[0]) == 4


def test_a_damaged_header_under_live_members_costs_them_nothing(
    directory: Path, broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    claim = claimed(join(broker))
    claim.commit(7)
    overwrite(group_file(directory), 0, b"damaged!")
    peer = peers("peer", 0)
    assert peer.ask("claims") == [None]
    assert peer.ask("broker.group('billing').offsets('orders')[queues[0]]") == 7
    assert claim.commit(8)
    assert peer.ask("broker.group('billing').offsets('orders')[queues[0]]") == 8
    assert client_ids(broker) == ["here", "peer"]


# Topics that come and go.


def test_a_claim_of_a_topic_made_again_is_of_the_new_one(broker: LocalBroker, directory: Path) -> None:
    for number in range(5):
        send(broker, "orders", 0, b"%d" % number)
    claim = claimed(join(broker))
    assert claim.commit(5)
    with open_small(directory) as other:
        other.delete_topic("orders")
        other.create_topic("orders", 4)
        send(other, "orders", 0, b"new")
    assert not claim.commit(6)
    assert claim.committed() is None
    assert claim.commit(1)
    assert broker.group("billing").offsets("orders") == {QUEUES[0]: 1}
    assert join(broker, "second").claim(QUEUES[0]) is None


def test_a_claim_of_a_deleted_topic_commits_nothing(broker: LocalBroker) -> None:
    claim = claimed(join(broker))
    broker.delete_topic("orders")
    assert not claim.commit(6)
    assert claim.committed() is None
    claim.set_status("gone")
    claim.release()
    assert broker.group("billing").offsets("orders") == {}
    assert broker.group("billing").topics() == ["orders"]  # It still wants it.


# What may be done, and what not.


def test_a_read_only_process_may_list_but_not_join(directory: Path, broker: LocalBroker) -> None:
    send(broker, "orders", 0, b"x")
    claimed(join(broker)).set_status("paused")
    with open_small(directory, read_only=True) as reader:
        group = reader.group("billing")
        assert reader.groups() == ["billing"]
        assert [member.client_id for member in group.members()] == ["here"]
        assert group.offsets("orders") == dict.fromkeys(QUEUES, 0)
        assert (group.states("orders")[0].lag, group.states("orders")[0].reason) == (1, "paused")
        with pytest.raises(mq.NotPermitted):
            join(reader, "reader")
        with pytest.raises(mq.NotPermitted):
            group.reset("orders", to="latest")
        with pytest.raises(mq.NotPermitted):
            assigned.commit(reader, "billing", QUEUES[0], 1)


def test_looking_at_a_group_makes_no_file(directory: Path, broker: LocalBroker) -> None:
    group = broker.group("typo")
    assert (group.members(), group.offsets("orders"), group.topics(), group.lag("orders")) == ([], {}, [], 0)
    assert len(group.states("orders")) == 4
    assert not (directory / "mq" / "groups").exists()


def test_a_client_id_is_used_once_at_a_time(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    peers("here")
    with pytest.raises(mq.GroupInvalid, match="client id 'here'"):
        join(broker)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"client_id": ""}, ValueError),
        ({"model": "anycast"}, ValueError),
        ({"consume_type": "pop"}, ValueError),
        ({"consume_from": "middle"}, ValueError),
        ({"consume_from": True}, ValueError),
        ({"subscriptions": [Subscription("a b")]}, mq.TopicInvalid),
        ({"subscriptions": [Subscription("a", "*", "XPATH")]}, ValueError),
        ({"subscriptions": [Subscription("a"), Subscription("a", "x")]}, ValueError),
        ({"subscriptions": [Subscription("a", "x" * 70_000)]}, ValueError),
    ],
    ids=str,
)
def test_a_consumer_that_cannot_be_is_refused(
    broker: LocalBroker, given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        join(broker, **{"client_id": "here", **given})
    assert client_ids(broker) == []


def test_an_offset_beyond_the_end_is_refused_or_shown(broker: LocalBroker) -> None:
    send(broker, "orders", 0, b"x")
    group = broker.group("billing")
    with pytest.raises(ValueError, match="ends at 1"):
        broker.consumer_groups.reset("billing", {QUEUES[0]: 2})
    for wrong in (-1, 1 << 63):
        with pytest.raises(ValueError, match="offset"):
            assigned.commit(broker, "billing", QUEUES[0], wrong)
    assigned.commit(broker, "billing", QUEUES[0], 400)
    state = group.states("orders")[0]
    assert (state.committed, state.end, state.lag) == (400, 1, 0)
    assert "beyond the end" in state.reason
    group.reset("orders", to="latest")
    assert group.states("orders")[0].committed == 1
    assert "beyond" not in group.states("orders")[0].reason


def test_why_a_queue_does_not_move(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    for queue_id in range(4):
        send(broker, "orders", queue_id, b"x")
    group = broker.group("billing")
    assert {state.reason for state in group.states("orders")} == {
        "no member subscribes: the group has no live consumer"
    }
    peer = peers("peer", 0, 1)
    membership = join(broker)
    assert membership.claim(QUEUES[1]) is None
    claimed(membership, 2).set_status("flow control: 1,000 messages " + "é" * 100)
    first, second, third, fourth = group.states("orders")
    assert (first.owner.pid if first.owner else 0, first.reason) == (peer.pid, "")
    assert second.reason == f"process {os.getpid()} is waiting for pid {peer.pid} to release it"
    assert third.owner is not None
    assert third.owner.pid == os.getpid()
    assert third.reason.startswith("flow control: 1,000 messages é")
    assert (fourth.owner, fourth.reason) == (None, "no member has taken it yet")
    peer.kill()
    taken_over(broker, membership, 1)
    assert group.states("orders")[1].reason == ""
    broker.create_topic("events", 1)
    broker.topic("events").send(b"x")
    assert group.states("events")[0].reason == "no member subscribes"


def test_many_queues_are_waited_for_as_one(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    for count in (126, 127, 300):
        broker.create_topic("many", count)
        queues = [queue.message_queue for queue in broker.topic("many").queues]
        peer = peers(f"peer {count}")
        peer.do("positions = [(queue.message_queue, 0, None) for queue in broker.topic('many').queues]")
        peer.do("began = time.monotonic()")
        peer.post("do", f"broker.waiter().wait(positions, [(member, member.version())], {SOON})")
        send(broker, "many", queues[-1].queue_id, b"x")
        peer.answer()
        assert peer.ask("time.monotonic() - began") < SOON
        broker.delete_topic("many")


def test_waiting_costs_no_time_of_the_processor(broker: LocalBroker, peers: Callable[..., Peer]) -> None:
    peer = peers("peer", 0, 1, 2, 3)
    join(broker).members()
    peer.do(
        "positions = [(queue, 0, None) for queue in queues]; members = [(member, member.version())];"
        " waiter = broker.waiter(); waiter.wait(positions, members, 0.1)"
    )
    peer.do("before = time.process_time(); waiter.wait(positions, [(member, member.version())], 2.0)")
    assert peer.ask("time.process_time() - before") < 0.2


def test_a_group_that_finds_no_space_says_so_and_works_later(tmp_path: Path) -> None:
    """A child with a limit on the size of files, which stands for a full disk."""
    program = f"""
import resource, signal, mq
from mq.api.group import Subscription
from tests.support.store.small_store import SMALL
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with mq.open({str(tmp_path / "store")!r}, **SMALL) as broker:
    broker.create_topic("orders", 4)
    def join():
        return broker.consumer_groups.join("billing", client_id="a", model="clustering", consume_type="push",
                                           ordered=False, subscriptions=[Subscription("orders")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        join()
    except (mq.StoreFull, OSError) as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    member = join()
    print(member.claim(broker.topic("orders").queues[0].message_queue).commit(1))
"""
    root = Path(__file__).parents[2]
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert completed.stdout.split()[1:] == ["True"]


def test_consumer_offsets_are_saved_while_all_go_on(directory: Path, broker: LocalBroker) -> None:
    claimed(join(broker)).commit(5)
    path = directory / "config" / "consumerOffset.json"
    deadline = time.monotonic() + 3 * SOON
    while (
        not path.exists()
        or json.loads(path.read_bytes())["offsetTable"].get("orders@billing", {}).get("0") != 5
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_queue_is_waited_for_before_its_first_message(broker: LocalBroker) -> None:
    """It has a place in the table then, whose word its sender raises: one may come between look and sleep."""
    broker.create_topic("never", 1)
    (queue,) = broker.readable("never")
    member = broker.consumer_groups.join(
        "billing", client_id="a", model="clustering", consume_type="push", ordered=False, subscriptions=()
    )
    assert groups_of(broker).numbers.find("never", 0) == -1
    broker.waiter().wait([(queue, 0, None)], [(member, member.version())], 0.0)
    assert groups_of(broker).numbers.find("never", 0) >= 0


def test_of_two_processes_that_make_room_for_queues_the_larger_number_counts(broker: LocalBroker) -> None:
    """Each in a map of its own; the second comes just when the first has looked how much is ready."""
    path = broker.path / "mq" / "groups" / "group"
    first = GroupFile.made(store_of(broker), path, lambda _: None)
    second = GroupFile(store_of(broker), path)
    thread = threading.Thread(target=second.ready, args=(2000,))
    words, looks = first.words, []

    class Words:
        def __getitem__(self, place: int) -> int:
            found = words[place]
            looks.append(place)
            if len(looks) == 2:
                thread.start()
                thread.join(0.5)  # Or it waits for the first one: then it comes after.
            return int(found)

        def __setitem__(self, place: int, value: int) -> None:
            words[place] = value

    first.words = Words()  # type: ignore[assignment]  # as far as it is used here
    first.ready(1000)
    thread.join(30.0)
    assert looks[:2] == [READY] * 2
    assert first.slots_ready == second.slots_ready == 2048
    first.words = words
    first.raise_to(1999, 7)
    assert second.committed(1999) == 7
    for file in (first, second):
        file.close()
