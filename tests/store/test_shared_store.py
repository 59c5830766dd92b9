"""Processes come and go in any order, and die at any time; the attached ones share one store.

The other processes are real ones (peer.py). What one of them was told is stored is there for all others,
before and after its death, and the first one in after all died has nothing to scan.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.directory.checkpoint import read_checkpoint
from mq.store.queue.consumequeue import queue_directories, remove_queues
from mq.store.shared.members import Members
from tests.support.insides import members_of, store_of, was_recovered
from tests.support.store.peer import Peer
from tests.support.store.small_store import contents, copy_beside_others, fill, open_small, send

SOON = 120.0


def until(condition: Callable[[], bool]) -> None:
    """Something that another process does in its own time has been done."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_one_process_sends_another_reads_at_once(directory: Path) -> None:
    with Peer(directory) as first, Peer(directory) as second:
        first.do("broker.create_topic('A', 2)")
        for number in range(20):
            sender, reader = (first, second) if number % 3 else (second, first)
            assert sender.send("A", 0, b"%d" % number) == number
            assert (
                reader.ask(f"broker.topic('A').queues[0].read({number}).messages[0].body") == b"%d" % number
            )
        assert first.ask("contents(broker)") == second.ask("contents(broker)")


def test_offsets_of_several_senders_are_dense_and_each_keeps_its_order(directory: Path) -> None:
    peers = [Peer(directory) for _ in range(3)]
    peers[0].do("broker.create_topic('A', 2)")
    for number, peer in enumerate(peers):
        peer.post("do", f"fill(broker, 'A', 300, 2, 'from{number}')")
    for peer in peers:
        peer.answer()
    found = peers[0].ask("contents(broker)")
    for queue_id in range(2):
        low, high, messages = found["A", queue_id]
        assert (low, high) == (0, 450)
        assert [offset for offset, _ in messages] == list(range(450))
        for number in range(3):
            own = [int(body.split()[1]) for _, body in messages if body.startswith(b"from%d " % number)]
            assert own == list(range(queue_id, 300, 2))
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("count", [1, 3])
def test_after_all_died_the_next_one_attaches_without_looking_at_the_log(directory: Path, count: int) -> None:
    peers = [Peer(directory) for _ in range(count)]
    peers[0].do("broker.create_topic('A', 2)")
    for number, peer in enumerate(peers):
        peer.do(f"fill(broker, 'A', 50, 2, 'from{number}')")
    want = peers[0].ask("contents(broker)")
    for peer in peers:
        peer.kill()
    assert (directory / "abort").exists()
    with open_small(directory) as broker:
        assert not was_recovered(broker)
        assert contents(broker) == want
        assert len(broker.query("A", "from049")) == 1
        assert send(broker, "A", 0, b"next").queue_offset == want["A", 0][1]


def test_derived_files_deleted_after_all_died_are_made_again(directory: Path) -> None:
    with Peer(directory) as peer:
        peer.do("broker.create_topic('A', 2); fill(broker, 'A', 90, 2)")
        want = peer.ask("contents(broker)")
        peer.kill()
    shutil.rmtree(directory / "consumequeue")
    shutil.rmtree(directory / "index", ignore_errors=True)
    with open_small(directory) as broker:
        assert contents(broker) == want
        assert [found.body for found in broker.query("A", "message7")] == [b"message 7"]


def test_only_the_last_one_out_closes_the_store(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        with Peer(directory) as peer:
            peer.send("A", 0, b"one")
        assert (directory / "abort").exists()
        assert send(broker, "A", 0, b"two").queue_offset == 1
    assert not (directory / "abort").exists()


def test_a_store_left_by_a_dead_one_is_closed_by_the_last_one_that_lives(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        peer = Peer(directory)
        peer.send("A", 0, b"one")
        peer.kill()
    assert not (directory / "abort").exists()


def test_members_are_those_that_live(directory: Path) -> None:
    with open_small(directory) as broker:
        members = members_of(broker)
        assert isinstance(members, Members)
        own = members.place
        with Peer(directory) as first:
            second = Peer(directory)
            assert {member.pid for member in members.alive()} >= {first.pid, second.pid}
            assert len(members.alive()) == 3
            second.kill()
            assert [member.pid for member in members.alive()].count(second.pid) == 0
            assert len(members.alive()) == 2
            third = Peer(directory)
            # The place of the dead one is free again.
            assert sorted(member.place for member in members.alive()) == [0, 1, 2]
            third.close()
        assert [member.place for member in members.alive()] == [own]


def test_two_brokers_of_one_process_are_two_members(directory: Path) -> None:
    with open_small(directory) as one, open_small(directory) as two:
        assert members_of(one).alive() == members_of(two).alive()
        assert len(members_of(one).alive()) == 2
        one.create_topic("A", 1)
        assert send(two, "A", 0, b"x").queue_offset == 0
        assert send(one, "A", 0, b"y").queue_offset == 1
        assert contents(one) == contents(two)


def test_many_that_open_at_once_all_get_in(directory: Path) -> None:
    brokers: list[LocalBroker] = []
    errors: list[BaseException] = []

    def come() -> None:
        try:
            brokers.append(open_small(directory))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=come) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    brokers[0].create_topic("A", 1)
    assert [broker.topic("A").send(b"x").queue_offset for broker in brokers] == list(range(12))
    for broker in brokers:
        broker.close()


def test_the_holder_of_the_open_lock_keeps_other_processes_waiting(directory: Path) -> None:
    with open_small(directory) as broker:
        came: list[mq.Broker] = []
        thread = threading.Thread(target=lambda: came.append(open_small(directory)))
        with store_of(broker).open_lock.opening():
            thread.start()
            thread.join(0.3)
            assert thread.is_alive()
        thread.join()
        came[0].close()


def test_a_death_while_holding_the_open_lock_releases_it(directory: Path) -> None:
    peer = Peer(directory)
    peer.do("open_lock = store_of(broker).open_lock.opening()")
    peer.kill()
    with open_small(directory) as broker:
        broker.create_topic("A", 1)


def test_duties_pass_to_another_process_when_the_leader_dies(directory: Path) -> None:
    first = Peer(directory, flush_interval=0.01)
    first.do("broker.create_topic('A', 1)")
    first.send("A", 0, b"one")
    until(lambda: bool(first.ask(FLUSHED)))  # So it is the leader.
    with Peer(directory, flush_interval=0.01) as second:
        first.kill()
        checkpoint = read_checkpoint(directory)
        sent = second.ask("broker.topic('A').send(b'two') and store_of(broker).word(lib.MQ_LAST_STORE_TIME)")
        until(lambda: bool(second.ask(FLUSHED)))
        until(lambda: bool(second.ask(INDEXED)))
        until(lambda: bool(second.ask(f"store_of(broker).word(lib.MQ_QUEUES_FLUSHED_TIME) >= {sent}")))
        until(lambda: read_checkpoint(directory).physic_time >= sent > checkpoint.physic_time)
        until(lambda: read_checkpoint(directory).logics_time >= sent)


FLUSHED = "flushed_end(broker) == log_end(broker)"
INDEXED = "store_of(broker).word(lib.MQ_INDEXED_END) == log_end(broker)"


def test_a_reader_beside_writers_sees_what_they_send(directory: Path) -> None:
    with open_small(directory) as writer:
        writer.create_topic("A", 1)
        with open_small(directory, read_only=True) as reader:
            assert not was_recovered(reader)
            for number in range(100):
                send(writer, "A", 0, b"%d" % number)
                assert reader.topic("A").queues[0].read(number).messages[0].body == b"%d" % number
            assert [found.body for found in reader.query("A", "none")] == []
            with pytest.raises(mq.NotPermitted):
                reader.topic("A").send(b"x")
            with pytest.raises(mq.NotPermitted):
                reader.create_topic("B")
            with pytest.raises(mq.NotPermitted):
                reader.delete_topic("A")
            with pytest.raises(mq.NotPermitted):
                reader.expire()


def test_a_read_only_process_keeps_no_other_out(directory: Path) -> None:
    with open_small(directory) as writer:
        writer.create_topic("A", 1)
        send(writer, "A", 0, b"one")
    with open_small(directory, read_only=True) as reader:
        queue = reader.topic("A").queues[0]
        assert [message.body for message in queue.read(0).messages] == [b"one"]
        with Peer(directory) as peer:
            assert peer.send("A", 0, b"two") == 1
            assert [message.body for message in queue.read(0).messages] == [b"one", b"two"]
            with open_small(directory, read_only=True) as another:
                assert contents(another) == contents(reader)
        assert not (directory / "abort").exists()
        assert [message.body for message in queue.read(0).messages] == [b"one", b"two"]


def test_a_reader_leaves_a_closed_store_as_it_is(directory: Path) -> None:
    with open_small(directory) as writer:
        writer.create_topic("A", 1)
        fill(writer, "A", 30)
    with open_small(directory, read_only=True) as reader:
        assert reader.topic("A").queues[0].max_offset == 30
        assert not (directory / "abort").exists()
    assert not (directory / "abort").exists()
    with open_small(directory) as writer:
        assert not was_recovered(writer)


def test_a_reader_of_a_store_that_died_sees_all_of_it(directory: Path) -> None:
    peer = Peer(directory)
    peer.do("broker.create_topic('A', 1); fill(broker, 'A', 60)")
    want = peer.ask("contents(broker)")
    peer.kill()
    with open_small(directory, read_only=True) as reader:
        assert contents(reader) == want
    with open_small(directory) as writer:
        assert not was_recovered(writer)
        assert contents(writer) == want


def test_a_store_may_be_moved_while_it_is_closed(tmp_path: Path, directory: Path) -> None:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 60)
        want = contents(broker)
    (tmp_path / "before").rename(directory)
    with open_small(directory) as broker:
        assert contents(broker) == want
        send(broker, "A", 0, b"next")


@pytest.mark.parametrize("state", ["closed", "open", "killed"])
def test_a_copy_is_a_store_of_its_own(tmp_path: Path, directory: Path, state: str) -> None:
    before = tmp_path / "before"
    with Peer(before) as peer:
        peer.do("broker.create_topic('A', 1); fill(broker, 'A', 60)")
        want = peer.ask("contents(broker)")
        if state == "closed":
            peer.close()
        elif state == "killed":
            peer.kill()
        copy_beside_others(before, directory)
        with open_small(directory) as copy:
            assert contents(copy) == want
            assert send(copy, "A", 0, b"for the copy").queue_offset == 60
            if state == "open":
                assert peer.send("A", 0, b"for the first") == 60
                assert peer.ask("contents(broker)")["A", 0][2][-1] == (60, b"for the first")
            assert contents(copy)["A", 0][2][-1] == (60, b"for the copy")
    assert list(problems(before)) == []


def test_a_copy_is_begun_again_where_a_file_went_meanwhile(tmp_path: Path) -> None:
    """Otherwise the tests here that copy open stores fail now and then."""
    (tmp_path / "root").mkdir()
    going = tmp_path / "root" / "going"
    going.touch()
    (tmp_path / "root" / "staying").touch()

    def listed(_root: str, _names: list[str]) -> set[str]:
        going.unlink(missing_ok=True)
        return set()

    copy_beside_others(tmp_path / "root", tmp_path / "copy", ignore=listed)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["staying"]


TAKE_LOCK = """
import fcntl
lock = open(broker.path / "lock", "r+b")
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
"""


def test_the_lock_of_a_broker_keeps_us_out_and_is_named(directory: Path) -> None:
    """RocketMQ's is a POSIX record lock, of a process: so another process takes it here."""
    with Peer(directory) as peer:
        peer.do("broker.close()")
        peer.do(TAKE_LOCK)
        with pytest.raises(mq.StoreLocked) as caught:
            open_small(directory)
        assert caught.value.pid == peer.pid
        peer.do("lock.close()")
        with open_small(directory) as broker:
            broker.create_topic("A", 1)
            # And a broker that starts now does not get it.
            with pytest.raises(BlockingIOError):
                peer.do(TAKE_LOCK)


def test_memory_is_not_believed_after_a_broker_was_here(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 10)
    # A RocketMQ broker writes its lock file when it starts.
    (directory / "lock").write_bytes(b"lock")
    with open_small(directory) as broker:
        assert was_recovered(broker)
        assert broker.topic("A").queues[0].max_offset == 10


@pytest.mark.parametrize("kind", ["consumequeue", "consumequeue_ext"])
def test_a_topic_that_is_deleted_while_queues_are_looked_for_has_none(tmp_path: Path, kind: str) -> None:
    """As a process that opens the directory sees it while another one deletes a topic."""
    for topic in "ABC":
        (tmp_path / kind / topic / "0").mkdir(parents=True)
    found = queue_directories(tmp_path, kind)
    assert next(found) == ("A", 0, tmp_path / kind / "A" / "0")
    remove_queues(tmp_path, "B")
    assert [topic for topic, _, _ in found] == ["C"]
