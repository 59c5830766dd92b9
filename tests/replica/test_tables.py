"""What a replica takes over from its master besides the log: which topics there are, where their queues begin
and end, and which files are old. It must be of this master, and of now."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker import leader
from mq.broker.local import LocalBroker
from mq.errors import ReplicaDiverged
from mq.remoting.codec.bodies.settings import GroupSettings
from mq.remoting.replica import directory as replica_directory
from mq.remoting.replica import replica_threads
from mq.remoting.replica.master import Master
from mq.remoting.replica.replica import Replica
from mq.store.check import problems
from mq.store.log.follow import FollowedLog, Taken
from mq.store.store import Store
from tests.support.cluster.ports import free_port
from tests.support.replicas import eventually, follow, level, served
from tests.support.store.small_store import fill, open_small

pytestmark = pytest.mark.rounds

INTERVAL = 0.05
ROUNDS = 3  # of looks at the master's tables, after which all is as it will be


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has the tables taken over often; counts how often the master was asked for them."""
    count = [0]
    groups = Master.groups

    def counted(master: Master) -> dict[str, GroupSettings]:
        count[0] += 1
        return groups(master)

    monkeypatch.setattr(Master, "groups", counted)
    monkeypatch.setattr(replica_threads, "TABLES_INTERVAL", INTERVAL)
    monkeypatch.setattr(replica_threads, "LOOK_INTERVAL", INTERVAL)
    return count


def in_step(replica: Replica, master: LocalBroker, syncs: list[int]) -> None:
    level(replica, master)
    before = syncs[0]
    eventually(lambda: syncs[0] >= before + ROUNDS, lambda: str(replica.error))


def bodies(broker: mq.Broker, topic: str) -> list[bytes]:
    return [
        message.body
        for queue in broker.topic(topic).queues
        for message in queue.read(queue.min_offset, count_max=1000).messages
    ]


def consume(broker: LocalBroker, topic: str) -> None:
    with mq.PullConsumer(broker, "billing") as consumer:
        consumer.subscribe(topic)
        eventually(lambda: bool(consumer.poll(1.0)))
        consumer.commit()


def test_another_store_at_the_masters_address_changes_nothing(
    tmp_path: Path, directory: Path, syncs: list[int]
) -> None:
    port, ha_port = free_port((-2, 1)), free_port()
    with open_small(tmp_path / "master") as broker, served(broker, port, ha_port) as server:
        fill(broker, "orders", 30)
        consume(broker, "orders")
        replica = follow(server, directory)
        in_step(replica, broker, syncs)
    with open_small(tmp_path / "other") as other, served(other, port, ha_port):
        fill(other, "others", 2)
        eventually(lambda: replica.is_over, lambda: str(replica.error))
        assert isinstance(replica.error, ReplicaDiverged)
        time.sleep(10 * INTERVAL)
        replica.close()
    with mq.open(directory) as promoted:
        assert promoted.topics() == ["orders"]
        assert len(bodies(promoted, "orders")) == 30
        assert sum(promoted.group("billing").offsets("orders").values()) > 0


def test_no_file_is_deleted_at_the_word_of_a_master_whose_log_was_not_compared(
    tmp_path: Path, directory: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another one's: its HA port does not answer."""
    monkeypatch.setattr(leader, "FIRST_RETENTION", INTERVAL)
    monkeypatch.setattr(leader, "RETENTION_INTERVAL", INTERVAL)
    with open_small(directory) as own:
        fill(own, "orders", 300)
        log_range = own.replication.log_range
    with open_small(tmp_path / "master") as broker:
        fill(broker, "orders", 300)
        broker.expire(retention_hours=0)
        assert broker.replication.log_range[0] > 0
        with served(broker) as server:
            wrong = mq.remoting.replicate("127.0.0.1:1", directory, broker=server.address, timeout=0.5)
            time.sleep(10 * INTERVAL)
            assert wrong.error is not None
            wrong.close()
    with mq.open(directory) as own:
        assert own.replication.log_range == log_range
        assert len(bodies(own, "orders")) == 300


def tell_no_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a RocketMQ master, which does not say where a topic begins."""
    topics = Master.topics
    monkeypatch.setattr(
        Master,
        "topics",
        lambda master: {
            name: replace(settings, begin_log_offset=None) for name, settings in topics(master).items()
        },
    )


@pytest.mark.parametrize("told", [True, False], ids=["by-mq", "by-rocketmq"])
def test_a_topic_made_anew_has_none_of_the_old_messages_after_a_recovery(
    tmp_path: Path, directory: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """A RocketMQ master does not tell where the new one begins: what tells is that it was away meanwhile."""
    if not told:
        tell_no_begins(monkeypatch)
    with open_small(tmp_path / "master") as broker, served(broker) as server:
        replica = follow(server, directory)
        broker.create_topic("orders", 2)
        fill(broker, "orders", 20, 2)
        fill(broker, "others", 5)
        in_step(replica, broker, syncs)
        broker.delete_topic("orders")
        if not told:
            in_step(replica, broker, syncs)
        broker.create_topic("orders", 2)
        fill(broker, "orders", 3, prefix="again")
        fill(broker, "others", 2)
        in_step(replica, broker, syncs)
        replica.close()
    (directory / "mq" / "control").unlink()  # As after a reboot, and as where a tail is truncated.
    (directory / "abort").touch()
    with mq.open(directory) as promoted:
        assert bodies(promoted, "orders") == [b"again 0", b"again 1", b"again 2"]
        assert promoted.topic("orders").send(b"next").queue_offset <= 3
        assert list(problems(directory)) == []


def test_a_queue_has_none_of_the_old_messages_though_nobody_saw_the_topic_away(
    tmp_path: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tells after a recovery is that the queue goes on with a later part of the log."""
    directory = tmp_path / "copy"  # verify tells the two topics apart no more
    tell_no_begins(monkeypatch)
    with open_small(tmp_path / "master") as broker, served(broker) as server:
        fill(broker, "orders", 10)
        fill(broker, "others", 5)
        broker.delete_topic("orders")
        fill(broker, "orders", 3, prefix="again")
        with follow(server, directory) as replica:
            in_step(replica, broker, syncs)
    (directory / "mq" / "control").unlink()
    (directory / "abort").touch()
    with mq.open(directory) as promoted:
        assert bodies(promoted, "orders") == [b"again 0", b"again 1", b"again 2"]


def test_a_queue_goes_on_where_the_master_was_though_all_of_it_was_deleted_there(
    tmp_path: Path, directory: Path, syncs: list[int]
) -> None:
    with open_small(tmp_path / "master") as broker:
        fill(broker, "quiet", 30)
        consume(broker, "quiet")
        fill(broker, "busy", 300)
        broker.expire(retention_hours=0)
        quiet = broker.topic("quiet").queues[0]
        assert (quiet.min_offset, quiet.max_offset) == (30, 30)
        with served(broker) as server, follow(server, directory) as replica:
            in_step(replica, broker, syncs)
    with mq.open(directory) as promoted:
        quiet = promoted.topic("quiet").queues[0]
        assert (quiet.min_offset, quiet.max_offset) == (30, 30)
        fill(promoted, "quiet", 2, prefix="new")
        assert [message.body for message in quiet.read(30).messages] == [b"new 0", b"new 1"]
    assert list(problems(directory)) == []


def test_a_message_of_such_a_queue_comes_after_that(
    tmp_path: Path, directory: Path, syncs: list[int]
) -> None:
    with open_small(tmp_path / "master") as broker:
        fill(broker, "quiet", 30)
        fill(broker, "busy", 300)
        broker.expire(retention_hours=0)
        with served(broker) as server, follow(server, directory) as replica:
            in_step(replica, broker, syncs)
            fill(broker, "quiet", 3, prefix="new")
            in_step(replica, broker, syncs)
    with mq.open(directory) as promoted:
        assert promoted.topic("quiet").queues[0].min_offset == 30
        assert bodies(promoted, "quiet") == [b"new 0", b"new 1", b"new 2"]
    assert list(problems(directory)) == []


def test_a_topic_that_was_deleted_before_the_replica_began_stays_away(
    tmp_path: Path, directory: Path, syncs: list[int]
) -> None:
    with open_small(tmp_path / "master") as broker:
        fill(broker, "gone", 10)
        broker.delete_topic("gone")
        fill(broker, "orders", 3)
        with served(broker) as server, follow(server, directory) as replica:
            in_step(replica, broker, syncs)
    with mq.open(directory) as promoted:
        assert promoted.topics() == ["orders"]
        promoted.create_topic("gone", 1)
        assert bodies(promoted, "gone") == []


def test_topics_come_and_go_under_load(tmp_path: Path, directory: Path, syncs: list[int]) -> None:
    """What is told of topics is never of now: none may be deleted that was made since."""
    with open_small(tmp_path / "master") as broker:
        with served(broker) as server, follow(server, directory) as replica:
            for number in range(40):
                fill(broker, f"topic-{number % 3}", 4, prefix=f"{number}")
                if number % 4 == 3:
                    broker.delete_topic(f"topic-{number % 3}")
                    fill(broker, f"topic-{number % 3}", 2, prefix=f"{number}again")
            in_step(replica, broker, syncs)
        expected = {topic: bodies(broker, topic) for topic in broker.topics()}
    with mq.open(directory) as promoted:
        assert {topic: bodies(promoted, topic) for topic in promoted.topics()} == expected
    assert list(problems(directory)) == []


def test_it_goes_on_where_the_store_could_not_be_opened_again(
    tmp_path: Path, directory: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EMFILE, "Too many open files")]

    def opened(*arguments: Any, **options: Any) -> Store:
        if not opens and failures:
            raise failures.pop()
        opens[:] = opens[1:]
        return Store(*arguments, **options)

    opens = [True]
    with open_small(tmp_path / "master") as broker, served(broker) as server:
        fill(broker, "orders", 10)
        with follow(server, directory) as replica:
            in_step(replica, broker, syncs)
        with mq.open(directory) as own:
            fill(own, "orders", 5, prefix="own")
        fill(broker, "orders", 3, prefix="later")
        monkeypatch.setattr(replica_directory, "Store", opened)
        with follow(server, directory) as replica:
            level(replica, broker)
            assert not failures


def test_a_truncated_tail_that_cannot_be_kept_takes_no_space(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, and each attempt would leave a file."""
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 3
    pwrite = os.pwrite

    def failing(fd: int, data: bytes, at: int) -> int:
        if failures and "diverged" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise failures.pop()
        return pwrite(fd, data, at)

    with open_small(tmp_path / "master") as broker, served(broker) as server:
        fill(broker, "orders", 10)
        with follow(server, directory) as replica:
            level(replica, broker)
        with mq.open(directory) as own:
            fill(own, "orders", 5, prefix="own")
        fill(broker, "orders", 3, prefix="later")
        monkeypatch.setattr(os, "pwrite", failing)
        with follow(server, directory) as replica:
            level(replica, broker)
            [cut] = replica.cuts
            assert not failures
    assert [str(file) for file in (directory / "mq" / "diverged").iterdir()] == [cut[2]]


def test_a_topic_that_began_behind_the_replicas_log_has_what_is_sent_to_it_as_a_master(
    tmp_path: Path, directory: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are ahead of the log: the master dies while the replica catches up."""
    append = FollowedLog.append
    with open_small(tmp_path / "master") as broker, served(broker) as server:
        fill(broker, "orders", 20)
        with follow(server, directory) as replica:
            in_step(replica, broker, syncs)
            monkeypatch.setattr(FollowedLog, "append", lambda _log, at, _data: Taken(at, 0, 1 << 30))
            fill(broker, "orders", 200)
            broker.delete_topic("orders")
            broker.create_topic("orders", 1)
            broker.create_topic("fresh", 1)
            eventually(lambda: '"fresh"' in (directory / "config" / "topics.json").read_text())
            end = replica.offset
    monkeypatch.setattr(FollowedLog, "append", append)
    with mq.open(directory) as promoted:
        assert promoted.replication.log_range[1] == end
        sent = fill(promoted, "fresh", 40)
        assert len(sent) == 40
        [last] = promoted.topic("fresh").queues[0].read(39).messages
        assert last.keys
        assert [each.body for each in promoted.query("fresh", last.keys[0])] == [last.body]


def test_what_was_deleted_in_the_part_that_the_replica_lacks_stays_away(
    tmp_path: Path, directory: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    append, ready = FollowedLog.append, threading.Event()

    def held_append(log: FollowedLog, at: int, data: bytes | bytearray | memoryview) -> Taken:
        assert ready.wait(60)
        return append(log, at, data)

    with open_small(tmp_path / "master") as broker, served(broker) as server:
        fill(broker, "others", 5)
        with follow(server, directory) as replica:
            in_step(replica, broker, syncs)
        fill(broker, "orders", 5)
        broker.delete_topic("orders")
        broker.create_topic("orders", 1)
        monkeypatch.setattr(FollowedLog, "append", held_append)
        with follow(server, directory) as replica:
            eventually(lambda: '"orders"' in (directory / "config" / "topics.json").read_text())
            ready.set()
            fill(broker, "others", 1)
            in_step(replica, broker, syncs)
    with mq.open(directory) as promoted:
        assert bodies(promoted, "orders") == []
        assert len(bodies(promoted, "others")) == 6


def test_a_topic_that_may_not_be_read_holds_nothing_up(
    tmp_path: Path, directory: Path, syncs: list[int]
) -> None:
    """The master tells no ends of its queues."""
    with open_small(tmp_path / "master") as broker:
        fill(broker, "busy", 300)
        broker.expire(retention_hours=0)
        broker.create_topic("inbox", 1, perm="w")
        consume(broker, "busy") if fill(broker, "busy", 3) else None
        with served(broker) as server, follow(server, directory) as replica:
            in_step(replica, broker, syncs)
    with mq.open(directory) as promoted:
        assert promoted.topics() == ["busy", "inbox"]
        assert promoted.group("billing").offsets("busy")


def test_many_topics_are_deleted_while_the_log_grows(
    tmp_path: Path, directory: Path, syncs: list[int]
) -> None:
    with open_small(tmp_path / "master") as broker:
        for number in range(600):
            broker.create_topic(f"topic-{number}", 1).send(b"x")
        with served(broker) as server, follow(server, directory) as replica:
            in_step(replica, broker, syncs)
            for number in range(550):
                broker.delete_topic(f"topic-{number}")
            in_step(replica, broker, syncs)
    with mq.open(directory) as promoted:
        assert len(promoted.topics()) == 50
    assert len(list((directory / "consumequeue").iterdir())) == 50


def test_a_replica_that_lags_knows_of_no_delivery_that_it_has_not(
    tmp_path: Path, directory: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    append, ready = FollowedLog.append, threading.Event()

    def held_append(log: FollowedLog, at: int, data: bytes | bytearray | memoryview) -> Taken:
        assert ready.wait(60)
        return append(log, at, data)

    now: dict[str, Any] = {"message_delay_level": "1ms", "change_settings": True}
    with open_small(tmp_path / "master", message_delay_level="1h") as broker:
        topic = broker.create_topic("orders", 1)
        topic.send(b"waits", delay_level=1)
        end = broker.replication.log_range[1]
        with served(broker) as server, follow(server, directory) as replica:
            in_step(replica, broker, syncs)
    monkeypatch.setattr(FollowedLog, "append", held_append)

    def tables() -> list[Any]:
        names = "delayOffset.json", "consumerOffset.json"
        return [json.loads((directory / "config" / name).read_text())["offsetTable"] for name in names]

    with open_small(tmp_path / "master", **now) as broker, served(broker) as server:
        replica = follow(server, directory)
        consume(broker, "orders")
        before = syncs[0]
        eventually(lambda: syncs[0] >= before + ROUNDS, lambda: str(replica.error))
        assert replica.offset == end
        assert tables() == [{}, {}]
        ready.set()
        eventually(lambda: all(tables()), lambda: str(tables()))
        replica.close()
    with mq.open(directory, **now) as promoted:
        assert bodies(promoted, "orders") == [b"waits"]
        assert promoted.group("billing").offsets("orders") != {}
