"""The log of a replica, appended piece by piece from what a master's files hold."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mq
from mq.errors import ConfigMismatch, NotPermitted, StoreCorrupted, StoreLocked
from mq.store.check import problems
from mq.store.log.follow import FollowedLog
from mq.store.store import Store
from tests.support.store.followed import log_of, mixed_log, units_of
from tests.support.store.small_store import LOG_FILE_SIZE, fill, open_small

MIXED_FILE_SIZE = 512 << 10


def made_log(path: Path) -> bytes:
    """The log of a store with two topics, one of which is deleted and made again."""
    with open_small(path) as broker:
        fill(broker, "orders", 60, 3)
        fill(broker, "others", 20, 2)
        broker.delete_topic("others")
        fill(broker, "others", 10, 2, prefix="again")
        fill(broker, "orders", 30, 3)
        end = broker.replication.log_range[1]
    return log_of(path)[:end]


@contextmanager
def following(path: Path, file_size: int = LOG_FILE_SIZE) -> Iterator[tuple[Store, FollowedLog]]:
    store = Store(path, follow=True, commitlog_file_size=file_size)
    try:
        yield store, FollowedLog(store)
    finally:
        store.close()


@pytest.mark.parametrize("step", [1000, 37, 5000, 1 << 20])
def test_a_log_followed_in_pieces_is_the_same(tmp_path: Path, directory: Path, step: int) -> None:
    data = made_log(tmp_path / "master")
    with following(directory) as (_, log):
        pending = bytearray()
        for at in range(0, len(data), step):
            pending += data[at : at + step]
            end = log.end
            taken = log.append(end, pending)
            del pending[: taken.end - end]
        assert not pending
    assert log_of(directory)[: len(data)] == data
    with mq.open(directory) as broker:
        assert [queue.max_offset for queue in broker.topic("others").queues] == [5, 5]
        assert broker.topic("others").queues[0].read(0).messages[0].body == b"again 0"
        assert [queue.max_offset for queue in broker.topic("orders").queues] == [30, 30, 30]
        assert broker.query("orders", "message59")[0].body == b"message 59"


@pytest.mark.parametrize("seed", range(6))
def test_records_of_all_kinds_are_the_same_in_pieces_of_any_size(
    tmp_path: Path, directory: Path, seed: int
) -> None:
    chance = random.Random(seed)
    data = mixed_log(tmp_path / "master", chance, MIXED_FILE_SIZE, 1500)
    small = tmp_path / "small"
    for path, sizes in ((directory, (100_000, 400_000)), (small, (500, 2000))):
        with following(path, MIXED_FILE_SIZE) as (_, log):
            wanted = 0
            while (at := log.end) < len(data):
                wanted = log.append(at, data[at : at + max(chance.randint(*sizes), wanted)]).wanted
        assert log_of(path)[: len(data)] == data
        assert list(problems(path)) == []
    assert units_of(directory) == units_of(small) != {}


def test_a_log_may_begin_at_any_file(tmp_path: Path, directory: Path) -> None:
    data = made_log(tmp_path / "master")
    begin = 2 * LOG_FILE_SIZE
    with following(directory) as (_, log):
        log.begin_at(begin)
        log.append(begin, data[begin:])
        assert (log.begin, log.end) == (begin, len(data))
    with mq.open(directory) as broker:
        queue = broker.topic("orders").queues[0]
        assert 0 < queue.min_offset < queue.max_offset == 30
        assert queue.read(queue.min_offset).messages[0].queue_offset == queue.min_offset


def test_nothing_but_its_master_appends_to_it(tmp_path: Path, directory: Path) -> None:
    data = made_log(tmp_path / "master")
    with following(directory) as (_, log):
        log.append(0, data)
        with mq.open(directory) as reader, mq.Producer(reader) as producer:
            assert reader.topic("orders").queues[0].read(0).messages
            for send in (producer.send, producer.send_oneway):
                with pytest.raises((NotPermitted, mq.SendFailed), match="is a replica"):
                    send(mq.Message("orders", b"mine"))
            with pytest.raises(NotPermitted, match="is a replica"):
                reader.create_topic("mine")
            with pytest.raises(NotPermitted, match="is a replica"):
                reader.group("billing").reset("orders", to="latest")
        assert log.end == len(data)


def test_two_followers_are_one_too_many(directory: Path) -> None:
    with following(directory), pytest.raises(StoreLocked, match="another process keeps"):
        Store(directory, follow=True)


def test_a_master_that_is_open_is_no_replica(directory: Path) -> None:
    with open_small(directory), pytest.raises(StoreLocked, match="open as a master"), following(directory):
        pass


def test_a_replica_becomes_a_master_when_it_is_opened(tmp_path: Path, directory: Path) -> None:
    data = made_log(tmp_path / "master")
    with following(directory) as (_, log):
        log.append(0, data)
    with mq.open(directory) as broker:
        assert fill(broker, "orders", 1) == [len(data)]


def test_files_of_another_size_are_refused(tmp_path: Path, directory: Path) -> None:
    data = made_log(tmp_path / "master")
    with following(directory, 8192) as (_, log):
        with pytest.raises(ConfigMismatch, match="commitlog_file_size"):
            log.append(0, data)
        with pytest.raises(ConfigMismatch, match="commitlog_file_size"):
            log.begin_at(LOG_FILE_SIZE)


@pytest.mark.parametrize("at", [5, 30, 60, 89, 95])
def test_a_damaged_record_is_not_appended(tmp_path: Path, directory: Path, at: int) -> None:
    data = bytearray(made_log(tmp_path / "master")[:2000])
    first = int.from_bytes(data[:4], "big")
    data[first + at] ^= 0xFF
    with following(directory) as (_, log):
        with pytest.raises((StoreCorrupted, ConfigMismatch)):
            log.append(0, data)
        assert log.end == first


def test_a_followed_log_rejects_noise(directory: Path) -> None:
    with following(directory) as (_, log):
        for _ in range(200):
            with pytest.raises((StoreCorrupted, ConfigMismatch)):
                log.append(0, b"\x7f" + os.urandom(500))
        assert log.end == 0


def test_what_is_compared_ends_where_it_differs(tmp_path: Path, directory: Path) -> None:
    data = bytearray(made_log(tmp_path / "master"))
    with following(directory) as (_, log):
        log.append(0, data)
        assert log.compare(100, data[100:]) == len(data) - 100
        data[7000] ^= 1
        assert log.compare(100, data[100:]) == 6900
        first, last, time_ms = log.boundaries(100, 7000)
        assert 100 <= first < last <= 7000
        assert time_ms > 0
    assert list(problems(directory)) == []
