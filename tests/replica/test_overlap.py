"""Where a follower begins to compare, and the byte that it cannot ask a RocketMQ master for."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import mq
from mq.remoting.replica.overlap import Overlap, first_byte
from tests.support.store.small_store import LOG_FILE_SIZE, fill, open_small


@given(begin=st.integers(0, 1 << 40), length=st.integers(0, 1 << 40))
def test_an_overlap_grows_until_it_is_the_whole_log(begin: int, length: int) -> None:
    overlap = Overlap(begin, begin + length)
    for _ in range(20):
        assert begin <= overlap.start <= overlap.end
        assert overlap.asked or not overlap.end
        overlap = overlap.grown()
    assert overlap.is_whole_log


def test_an_overlap_begins_before_the_end_of_a_shorter_master() -> None:
    assert Overlap(0, 1 << 40).grown(master_end=1 << 30).start < 1 << 30


def test_the_first_byte_of_a_log_follows_from_the_others(directory: Path) -> None:
    with open_small(directory) as broker:
        fill(broker, "orders", 3)
    log = (directory / "commitlog" / f"{0:020}").read_bytes()
    assert first_byte(log[1:], LOG_FILE_SIZE) == log[0] == 0
    assert first_byte(log[1:50], LOG_FILE_SIZE) is None


def test_it_does_where_the_first_record_is_large(directory: Path) -> None:
    with mq.open(directory, commitlog_file_size=64 << 20, message_size_max=32 << 20) as broker:
        for size in ((1 << 24) - 120, 20 << 20):
            broker.create_topic("orders", 1)
            sent = broker.topic("orders").send(b"x" * size)
            assert sent.queue_offset in (0, 1)
    data = (directory / "commitlog" / f"{0:020}").read_bytes()
    second = int.from_bytes(data[:4], "big")
    for at in (0, second):
        assert first_byte(data[at + 1 : at + 200], 64 << 20) == data[at]
