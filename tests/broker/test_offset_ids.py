"""Offset ids: each names a message of the store that gave it, and none of another one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.directory.settings import Settings
from tests.support.appending import append_many, prepare_one
from tests.support.insides import store_of
from tests.support.store.small_store import open_small


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[LocalBroker, LocalBroker]]:
    """Two stores that are open in one process, with the same messages in them."""
    with open_small(tmp_path / "a") as first, open_small(tmp_path / "b") as second:
        for broker in (first, second):
            broker.create_topic("orders", 1)
        yield first, second


def send_plain(broker: LocalBroker) -> mq.SendResult:
    return broker.topic("orders").send(b"one")


def send_with_key(broker: LocalBroker) -> mq.SendResult:
    with mq.Producer(broker, dedup_window=600) as producer:
        return producer.send(mq.Message("orders", b"two"), dedup_key="two")


def send_again(broker: LocalBroker) -> mq.SendResult:
    send_with_key(broker)
    return send_with_key(broker)


def send_delayed(broker: LocalBroker) -> mq.SendResult:
    return broker.topic("orders").send(b"three", delay_ms=3_600_000)


def send_at_level(broker: LocalBroker) -> mq.SendResult:
    return broker.topic("orders").send(b"four", delay_level=18)


def send_batch(broker: LocalBroker) -> mq.SendResult:
    return append_many(broker, "orders", 0, [mq.Message("orders", b"%d" % n) for n in range(3)])


def send_in_transaction(broker: LocalBroker) -> mq.SendResult:
    queue = broker.publishable("orders")[0]
    return prepare_one(broker, queue, "group", mq.Message("orders", b"five"), b"five", 0)


SENDS: list[Callable[[LocalBroker], mq.SendResult]] = [
    send_plain, send_with_key, send_again, send_delayed, send_at_level, send_batch, send_in_transaction
]  # fmt: skip


@pytest.mark.parametrize("send", SENDS)
def test_the_id_of_every_kind_of_send_is_found_in_its_store_alone(
    two: tuple[LocalBroker, LocalBroker], send: Callable[[LocalBroker], mq.SendResult]
) -> None:
    results = [send(broker) for broker in two]
    for broker, other, result in zip(two, reversed(two), results, strict=True):
        for single, offset_id in zip(result.split(), result.offset_msg_id.split(","), strict=True):
            found = broker.message(offset_id)
            assert found.offset_msg_id == offset_id == single.offset_msg_id
            assert found.msg_id == single.msg_id
            assert offset_id.startswith(store_of(broker).settings.address.hex().upper() + "00002A9F")
            with pytest.raises(mq.MessageNotFound, match="another store gave it"):
                other.message(offset_id)


def test_a_place_that_is_in_the_middle_of_a_record_is_no_message(
    two: tuple[LocalBroker, LocalBroker],
) -> None:
    first, second = two
    first.topic("orders").send(b"a longer message than the other")
    result = first.topic("orders").send(b"one")
    for _ in range(3):
        second.topic("orders").send(b"one")
    with pytest.raises(mq.MessageNotFound):
        second.message(result.offset_msg_id)
    forged = store_of(second).settings.address.hex() + result.offset_msg_id[8:]
    with pytest.raises(mq.MessageNotFound, match="never sent here"):
        second.message(forged)


def test_ids_of_an_older_version_are_found_beside_new_ones(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(Settings, "address", bytes([127, 0, 0, 1]))
        with open_small(directory) as broker:
            broker.create_topic("orders", 1)
            old = broker.topic("orders").send(b"old").offset_msg_id
    assert old.startswith("7F00000100002A9F")
    with open_small(directory) as broker:
        new = broker.topic("orders").send(b"new").offset_msg_id
        assert new[:8] != old[:8]
        assert [broker.message(each).body for each in (old, new)] == [b"old", b"new"]
        with pytest.raises(mq.MessageNotFound):  # The id says the one, the record the other.
            broker.message(old[:16] + new[16:])


def test_ids_stay_good_in_a_copy_and_after_a_kill(tmp_path: Path) -> None:
    with open_small(tmp_path / "a") as broker:
        result = broker.create_topic("orders", 1).send(b"one")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        with open_small(tmp_path / name) as broker:
            assert broker.message(result.offset_msg_id).body == b"one"
            assert broker.message(result.offset_msg_id.lower()).body == b"one"


def test_what_a_copy_and_its_original_give_from_then_on_are_different_ids(tmp_path: Path) -> None:
    with open_small(tmp_path / "a") as broker:
        broker.create_topic("orders", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with open_small(tmp_path / "a") as broker:
        given = broker.topic("orders").send(b"pay alice").offset_msg_id
    with open_small(tmp_path / "b") as broker:
        assert broker.topic("orders").send(b"pay bobby").offset_msg_id[16:] == given[16:]
        with pytest.raises(mq.MessageNotFound):
            broker.message(given)


def test_an_address_is_one_of_the_machines_own() -> None:
    seen = {Settings(store_id).address for store_id in ("000001" + "0" * 26, "000000" + "0" * 26, "f" * 32)}
    assert seen == {bytes([127, 0, 0, 2])}
    assert Settings("0a0b0c" + "0" * 26).address + bytes([0, 0, 42, 159]) == bytes.fromhex("7f0a0b0c00002a9f")
