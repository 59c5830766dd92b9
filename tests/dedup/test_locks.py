"""The lock of a bucket: who has it, and who takes it from whom."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.dedup.table import BUCKET_COUNT, BUCKET_SIZE, BUCKETS_AT, LOCK_SIZE, SentKeys
from tests.dedup.dedup_actors import SMALL
from tests.support.insides import store_of
from tests.support.processes.children import Child, call, say

NUMBER = 5  # of a bucket
PLACE = BUCKETS_AT + BUCKET_COUNT * BUCKET_SIZE + NUMBER * LOCK_SIZE


def clock_ms() -> int:
    return 1


def word(root: Path) -> int:
    data = (root / "mq" / "dedup").read_bytes()
    return int(struct.unpack_from("=q", data, PLACE)[0])


def set_word(root: Path, value: int) -> None:
    with (root / "mq" / "dedup").open("r+b") as file:
        file.seek(PLACE)
        file.write(struct.pack("=q", value))


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SMALL) as broker:
        yield broker


@pytest.fixture
def keys(broker: LocalBroker) -> Iterator[SentKeys]:
    keys = SentKeys(store_of(broker), clock_ms=clock_ms)
    yield keys
    keys.close()


@pytest.fixture
def others(broker: LocalBroker) -> Iterator[SentKeys]:
    """An opening of its own, as another process has one."""
    keys = SentKeys(store_of(broker), clock_ms=clock_ms)
    yield keys
    keys.close()


def is_free(keys: SentKeys) -> bool:
    try:
        with keys.locked(NUMBER, 0.0):
            return True
    except mq.RequestTimeout:
        return False


def test_a_lock_is_one_owners_until_it_is_given_back(
    broker: LocalBroker, keys: SentKeys, others: SentKeys
) -> None:
    with keys.locked(NUMBER, 0.0):
        owner = word(broker.path)
        assert 1 << 62 <= owner < (1 << 62) + (1 << 61)
        assert not is_free(others)
        with others.locked(NUMBER + 1, 0.0):
            assert word(broker.path) == owner
    assert word(broker.path) == 0
    with others.locked(NUMBER, 0.0):
        assert word(broker.path) not in (0, owner)


@pytest.mark.parametrize("value", [-1, -(1 << 63), 1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1])
def test_a_lock_of_nobody_is_to_be_had(broker: LocalBroker, keys: SentKeys, value: int) -> None:
    set_word(broker.path, value)
    assert is_free(keys)
    assert word(broker.path) == 0


def test_a_lock_of_a_closed_broker_is_to_be_had(
    broker: LocalBroker, keys: SentKeys, others: SentKeys
) -> None:
    with keys.locked(NUMBER, 0.0):
        owner = word(broker.path)
    set_word(broker.path, owner)
    assert not is_free(others)
    keys.close()
    assert is_free(others)


def hold(root: str) -> None:
    with mq.open(root, **SMALL) as broker:
        keys = SentKeys(store_of(broker), clock_ms=clock_ms)
        with keys.locked(NUMBER, 0.0):
            say("held")
            signal.pause()


def test_a_lock_of_a_killed_process_is_to_be_had(broker: LocalBroker, keys: SentKeys) -> None:
    with Child(hold, str(broker.path)) as child:
        assert child.hear() == "held"
        assert not is_free(keys)
        child.kill()
        assert word(broker.path) != 0
        assert is_free(keys)
        assert word(broker.path) == 0


def fork_with_a_lock(root: str) -> bool:
    """Whether a lock is still its owner's after a forked child has let go of its copy of the guard."""
    with mq.open(root, **SMALL) as broker:
        keys, others = (SentKeys(store_of(broker), clock_ms=clock_ms) for _ in range(2))
        with keys.locked(NUMBER, 0.0) as _:
            pid = os.fork()
            if pid:
                _, status = os.waitpid(pid, 0)
                return status == 0 and not is_free(others)
        os._exit(0)


def test_a_forked_child_gives_no_lock_back(directory: Path) -> None:
    assert call(fork_with_a_lock, str(directory)) is True


def test_a_table_that_is_made_anew_leaves_locks_alone(broker: LocalBroker, keys: SentKeys) -> None:
    with keys.locked(NUMBER, 0.0):
        with (broker.path / "mq" / "dedup").open("r+b") as file:
            file.write(b"damaged")
        later = SentKeys(store_of(broker), clock_ms=clock_ms)
        assert not is_free(later)
    assert is_free(later)
    later.close()
