"""A replica of a served store: what it has, what it refuses, and what it does where the logs part."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.remoting.replica.framing import encode_report
from mq.remoting.replica.listener import HaListener
from mq.store.log.commitlog import segment_files
from tests.support.cluster.ports import free_port
from tests.support.replicas import eventually, follow, level, served
from tests.support.store.small_store import LOG_FILE_SIZE, fill, open_small

pytestmark = pytest.mark.rounds


def log_of(path: Path, begin: int, end: int) -> bytes:
    """[begin, end) of a log that begins at any file."""
    files = segment_files(path / "commitlog")
    data = b"".join(file.read_bytes() for file in files)
    first = int(files[0].name)
    return data[begin - first : end - first]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[LocalBroker]:
    with open_small(tmp_path / "master") as broker:
        yield broker


def assert_same(master: LocalBroker, path: Path) -> None:
    begin, end = master.replication.log_range
    assert log_of(path, begin, end) == log_of(master.path, begin, end)


def test_a_replica_has_messages_topics_and_offsets(master: LocalBroker, directory: Path) -> None:
    master.create_topic("orders", 3, ordered=True)
    fill(master, "orders", 90, 3)
    with mq.PullConsumer(master, "billing") as consumer:
        consumer.subscribe("orders")
        eventually(lambda: bool(consumer.poll(1.0)))
        consumer.commit()
    committed = master.group("billing").offsets("orders")
    with served(master) as server, follow(server, directory) as replica:
        level(replica, master)
        sent = fill(master, "orders", 3, 3, prefix="later")
        level(replica, master)
        assert replica.lag == 0
        eventually((directory / "config" / "consumerOffset.json").exists)
        eventually((directory / "config" / "topics.json").exists)
        with mq.open(directory, read_only=True) as reader:
            assert reader.topic("orders").queues[0].max_offset == 31
            assert reader.query("orders", "later0")[0].log_offset == sent[0]
        assert (replica.is_connected, replica.error, replica.cuts) == (True, None, ())
        assert replica.offset == master.replication.log_range[1]
    assert_same(master, directory)
    with mq.open(directory) as promoted:
        assert promoted.settings("orders").ordered
        assert promoted.group("billing").offsets("orders") == committed
        fill(promoted, "orders", 1)


def test_a_topic_that_the_master_deletes_is_deleted(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 5)
    fill(master, "gone", 5)
    with served(master) as server, follow(server, directory) as replica:
        level(replica, master)
        path = directory / "config" / "topics.json"
        eventually(lambda: path.exists() and b'"gone"' in path.read_bytes())
        master.delete_topic("gone")
        eventually(lambda: b'"gone"' not in path.read_bytes())
    assert_same(master, directory)


def test_delayed_messages_are_delivered_once_by_the_next_master(master: LocalBroker, directory: Path) -> None:
    with served(master) as server, follow(server, directory) as replica:
        topic = master.create_topic("orders", 1)
        for number in range(5):
            topic.send(b"soon %d" % number, delay_level=1)
        topic.send(b"at a time", deliver_at_ms=1)
        topic.send(b"late", delay_level=2)
        eventually(lambda: topic.queues[0].max_offset >= 6)
        level(replica, master)
    with mq.open(directory) as promoted:
        queue = promoted.topic("orders").queues[0]
        eventually(lambda: queue.max_offset == 7)
        bodies = [message.body for message in queue.read(0).messages]
        assert sorted(bodies) == sorted([b"soon %d" % n for n in range(5)] + [b"at a time", b"late"])


def test_it_goes_on_after_both_ends_were_closed(tmp_path: Path, directory: Path) -> None:
    for number in range(3):
        with open_small(tmp_path / "master") as master:
            fill(master, "orders", 30, 2, prefix=f"{number}")
            with served(master) as server, follow(server, directory) as replica:
                level(replica, master)
                assert replica.cuts == ()
            assert_same(master, directory)


def test_a_tail_that_the_master_has_not_is_cut_and_kept(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 50, 2)
    with served(master) as server:
        with follow(server, directory) as replica:
            level(replica, master)
        end = replica.offset
        with mq.open(directory) as promoted:
            fill(promoted, "orders", 20, 2, prefix="diverged")
            fill(promoted, "only-here", 3)
            other_end = promoted.replication.log_range[1]
        tail = log_of(directory, end, other_end)
        fill(master, "orders", 60, 2, prefix="right")
        with follow(server, directory) as replica:
            level(replica, master)
            eventually(lambda: bool(replica.cuts))
            (begin, until, kept), *more = replica.cuts
            assert (begin, until, more) == (end, other_end, [])
            assert Path(kept).read_bytes() == tail
        assert_same(master, directory)
        with mq.open(directory, read_only=True) as reader:
            assert not reader.query("orders", "diverged1")
            assert reader.query("orders", "right1")


def test_a_replica_that_is_longer_is_cut_as_well(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 50, 2)
    with served(master) as server:
        with follow(server, directory) as replica:
            level(replica, master)
        with mq.open(directory) as promoted:
            fill(promoted, "orders", 200, 2, prefix="diverged")
        with follow(server, directory) as replica:
            eventually(lambda: bool(replica.cuts))
            fill(master, "orders", 5, 2)
            level(replica, master)
    assert_same(master, directory)


def test_another_store_is_not_overwritten(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 5)
    with open_small(directory) as other:
        fill(other, "orders", 50)
    before = log_of(directory, 0, 4000)
    with served(master) as server, pytest.raises(mq.ReplicaDiverged, match="no message in common"):
        follow(server, directory, timeout=30.0)
    assert log_of(directory, 0, 4000) == before


def test_a_master_whose_log_begins_later_is_refused(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 30)
    with served(master) as server:
        with follow(server, directory) as replica:
            level(replica, master)
        end = replica.offset
        fill(master, "orders", 400)
        master.expire(retention_hours=0)
        begin = master.replication.log_range[0]
        assert begin > end
        for broker in (server.address, False):
            with pytest.raises(mq.ReplicaBehind, match="is deleted there") as raised:
                follow(server, directory, broker=broker)
            assert (raised.value.replica_end, raised.value.master_begin) == (end, begin)


def test_a_new_replica_has_all_that_the_master_kept(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 400)
    master.expire(retention_hours=0)
    begin = master.replication.log_range[0]
    assert begin > 0
    with served(master) as server, follow(server, directory) as replica:
        level(replica, master)
        assert int(segment_files(directory / "commitlog")[0].name) == begin
    assert_same(master, directory)


def test_what_the_master_deletes_is_deleted_here(master: LocalBroker, directory: Path) -> None:
    fill(master, "orders", 200)
    with served(master) as server, follow(server, directory) as replica:
        level(replica, master)
        master.expire(retention_hours=0)
        begin = master.replication.log_range[0]
        eventually(lambda: int(segment_files(directory / "commitlog")[0].name) == begin)
    assert_same(master, directory)


def test_the_directory_of_the_master_itself_is_refused(master: LocalBroker) -> None:
    with served(master) as server, pytest.raises(mq.StoreLocked, match="open as a master"):
        follow(server, master.path)


def test_a_port_in_use_is_refused(tmp_path: Path, master: LocalBroker) -> None:
    with served(master) as server, open_small(tmp_path / "other") as other:
        port = int((server.ha_address or "").rpartition(":")[2])
        with pytest.raises(mq.AddressInUse, match=f":{port} is in use"):
            mq.remoting.serve(other, port=free_port((-2, 1)), namesrv_port=0, ha_port=port)
        with pytest.raises(mq.StoreLocked, match="accepted by another server"):
            mq.remoting.serve(master, port=free_port((-2, 1)), namesrv_port=0, ha_port=0)


def test_the_sizes_of_files_are_asked_for(master: LocalBroker, directory: Path) -> None:
    with served(master) as server:
        address = server.ha_address or ""
        with pytest.raises(mq.RemotingError, match="give the broker's address"):
            mq.remoting.replicate(address, directory, broker="127.0.0.1:1", timeout=1.0)
        with follow(server, directory) as replica:
            assert replica.path == directory
        with pytest.raises(mq.ConfigMismatch):
            follow(server, directory, commitlog_file_size=2 * LOG_FILE_SIZE)


def test_a_send_waits_for_replicas(tmp_path: Path, directory: Path) -> None:
    with (
        open_small(tmp_path / "master", flush="sync", replicas=1) as master,
        mq.Producer(master) as producer,
        served(master) as server,
    ):
        message = mq.Message("orders", b"x")
        assert producer.send(message).status is mq.SendStatus.SLAVE_NOT_AVAILABLE
        with follow(server, directory, flush="sync") as replica:

            def is_waited_for() -> bool:
                sent = producer.send(message)
                if sent.status is not mq.SendStatus.SEND_OK:
                    return False
                assert replica.offset >= master.message(sent.offset_msg_id).log_offset
                return True

            eventually(lambda: all(is_waited_for() for _ in range(20)))
            with open_small(tmp_path / "master", flush="sync", replicas=2) as beside:
                assert beside.topic("orders").send(b"x").status is mq.SendStatus.SLAVE_NOT_AVAILABLE
        eventually(lambda: producer.send(message).status is mq.SendStatus.SLAVE_NOT_AVAILABLE)


def test_a_follower_that_is_ahead_of_the_master_has_nothing_that_is_sent(tmp_path: Path) -> None:
    """As a slave of a master that was restored from a copy: it asks for more than there is."""
    with (
        open_small(tmp_path / "master", flush="sync", replicas=1) as master,
        mq.Producer(master) as producer,
        served(master) as server,
    ):
        host, _, port = (server.ha_address or "").rpartition(":")
        for wanted in (1 << 40, 1 << 20):
            with socket.create_connection((host, int(port))) as follower:
                follower.sendall(struct.pack(">q", wanted))
                answer = follower.recv(100)
                assert struct.unpack(">qi", answer) == (master.replication.log_range[1], 0)
                assert producer.send(mq.Message("orders", b"x")).status is not mq.SendStatus.SEND_OK


def test_where_a_follower_begins_to_compare_is_not_acknowledged(master: LocalBroker) -> None:
    """It may find another log there: that it has this one, it says afterwards."""
    fill(master, "orders", 10)
    end = master.replication.log_range[1]
    with HaListener(master) as listener:
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port))) as follower:
            follower.sendall(encode_report(end))
            assert struct.unpack(">qi", follower.recv(100)) == (end, 0)
            assert listener.followers == []
            follower.sendall(encode_report(end))
            eventually(lambda: [acked for _, acked in listener.followers] == [end])


def test_a_replica_that_has_compared_says_so_at_once(
    master: LocalBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(master, "orders", 10)
    end = master.replication.log_range[1]
    with served(master) as server, follow(server, directory) as replica:
        level(replica, master)
    monkeypatch.setattr("mq.remoting.replica.follower.REPORT_SECONDS", 3600.0)
    with HaListener(master) as listener, mq.remoting.replicate(listener.address, directory):
        eventually(lambda: [acked for _, acked in listener.followers] == [end])


def test_a_master_of_another_store_than_its_broker_is_an_error(tmp_path: Path, directory: Path) -> None:
    with open_small(tmp_path / "one") as one, open_small(tmp_path / "other") as other:
        one.create_topic("orders", 1)
        for _ in range(100):
            one.topic("orders").send(bytes(100))
        one.expire(retention_hours=0)
        with served(one) as server, served(other) as empty:
            assert empty.ha_address is not None
            with mq.remoting.replicate(empty.ha_address, directory, broker=server.address) as replica:
                eventually(lambda: replica.error is not None, lambda: replica.offset)
                assert "goes on at log offset 0" in str(replica.error)
                assert not replica.is_over
                other.create_topic("orders", 1).send(b"later")


def test_replicas_are_waited_for_after_the_disk_alone(directory: Path) -> None:
    with pytest.raises(ValueError, match="give flush='sync' as well"):
        mq.open(directory, replicas=1)
    with pytest.raises(ValueError, match="replicas is 9"):
        mq.open(directory, replicas=9, flush="sync")


def test_an_ha_port_without_a_port_before_it_asks_for_the_broker(tmp_path: Path) -> None:
    with pytest.raises(mq.RemotingError, match=r"'127.0.0.1:1': the broker is looked for at the port before"):
        mq.remoting.replicate("127.0.0.1:1", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
