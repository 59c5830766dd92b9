"""Of a topic that has a rule, such as the sink's ledger, what is of use outlives retention, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.queues import Appenders
from mq.api.topic import Permission
from mq.broker import leader
from mq.broker.local import LocalBroker
from mq.errors import StoreFull
from mq.sink_ledger import KEPT_MS, TOPIC, Entry, newer
from tests.support.eventually import eventually
from tests.support.insides import add_compaction_rule, compaction_of, log_end, set_compaction
from tests.support.store.small_store import (
    LOG_FILE_SIZE,
    expire_at,
    fill,
    log_files,
    messages_of,
    open_small,
    overwrite_log,
    send,
)

LEDGER = mq.MessageQueue(TOPIC, "mq", 0)


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        broker.create_topic(TOPIC, 1)
        yield broker


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say(broker: LocalBroker, txn: str, epoch: int, **more: object) -> Entry:
    entry = Entry(txn, txn, epoch, 0, 1, time_ms=now_ms())._replace(**more)  # type: ignore[arg-type]  # by name
    send(broker, TOPIC, 0, entry.encode(), keys=txn)
    return entry


def ledger(broker: LocalBroker) -> list[Entry]:
    found = [Entry.decode(message.body) for message in messages_of(broker.topic(TOPIC).queues[0])]
    return [entry for entry in found if entry is not None]


def newest(broker: LocalBroker, txn: str) -> Entry | None:
    return newer(None, [message.body for message in broker.query(TOPIC, txn)], txn)


def expire_all(broker: LocalBroker, at_ms: int | None = None) -> None:
    """Have what is there too old, and the log begin with the file that was its newest."""
    fill(broker, "A", 40)
    begin, end = log_files(broker.path)[0], log_end(broker)
    at_ms = now_ms() + 3_600_000 if at_ms is None else at_ms
    expire_at(broker, at_ms)
    assert not begin.exists()
    assert int(log_files(broker.path)[0].name) == (end - 1) // LOG_FILE_SIZE * LOG_FILE_SIZE


def test_the_newest_entry_of_each_moves_on_again_and_again(broker: LocalBroker) -> None:
    for epoch in range(3):
        entries = [say(broker, txn, epoch) for txn in ("one", "two")]
    for _ in range(3):
        expire_all(broker)
        assert ledger(broker) == entries
        assert [newest(broker, entry.txn) for entry in entries] == entries


class Latest:
    """Keep the greatest number of each name, "name=number", unless it is 0."""

    topic = "NUMBERS"

    def subject(self, body: bytes) -> str | None:
        return body.decode().partition("=")[0] if b"=" in body else None

    def newest(self, bodies: Iterable[bytes], subject: str) -> bytes:
        of_subject = [body for body in bodies if self.subject(body) == subject]
        return max(of_subject, key=lambda body: int(body.partition(b"=")[2]))

    def is_of_use(self, body: bytes, now_ms: int) -> bool:
        return not body.endswith(b"=0")


def test_a_topic_is_compacted_by_its_own_rule(broker: LocalBroker) -> None:
    """The broker takes topics and rules from elsewhere, as many as there are."""
    add_compaction_rule(broker, Latest())
    broker.create_topic("NUMBERS", 1)
    entry = say(broker, "one", 0)
    for body in (b"a=2", b"b=0", b"a=7", b"a=3", b"none"):
        send(broker, "NUMBERS", 0, body, keys=body[:1].decode())
    for _ in range(2):
        expire_all(broker)
        assert [message.body for message in messages_of(broker.topic("NUMBERS").queues[0])] == [b"a=7"]
        assert ledger(broker) == [entry]


def test_what_is_not_about_to_go_stays_where_it_is(broker: LocalBroker) -> None:
    say(broker, "one", 0)
    fill(broker, "A", 40)
    later = say(broker, "one", 1)
    begin = log_files(broker.path)[1]
    with compaction_of(broker).compacted(int(begin.name), now_ms()):
        assert [entry.epoch for entry in ledger(broker)] == [0, 1]
    expire_all(broker)
    assert ledger(broker) == [later]


def test_an_older_entry_that_moved_on_meanwhile_is_not_the_newest(broker: LocalBroker) -> None:
    old = say(broker, "one", 4)
    newest_one = say(broker, "one", 5)
    send(broker, TOPIC, 0, old.encode(), keys="one")
    for _ in range(2):
        expire_all(broker)
        assert ledger(broker) == [newest_one]


def test_an_entry_that_no_sink_needs_is_removed(broker: LocalBroker) -> None:
    say(broker, "batch-1", 0, lasting=False)
    unfinished = say(broker, "batch-2", 0, lasting=False, files=("0/a",), skip=2)
    rests = say(broker, "rests", 9)
    send(broker, TOPIC, 0, b"no entry", keys="rests")
    expire_all(broker)
    assert ledger(broker) == [unfinished, rests]
    expire_all(broker, now_ms() + KEPT_MS + 60_000)
    assert ledger(broker) == []


def test_they_are_on_disk_before_anything_is_deleted(broker: LocalBroker) -> None:
    say(broker, "one", 0)
    fill(broker, "A", 40)
    order: list[str] = []
    set_compaction(broker, sync=lambda: order.append("synced"))
    with compaction_of(broker).compacted(LOG_FILE_SIZE, now_ms()):
        order.append("deleted")
    assert order == ["synced", "deleted"]
    with compaction_of(broker).compacted(0, now_ms()):
        order.append("nothing to do")
    assert order[2:] == ["nothing to do"]


def test_a_full_disk_is_no_reason_to_keep_everything(broker: LocalBroker) -> None:
    entry = say(broker, "one", 0)
    real, errors = Appenders(broker.appender), [StoreFull("no room", path="commitlog")]

    def append(*arguments: Any) -> object:
        if errors:
            raise errors.pop()
        return real(*arguments)

    set_compaction(broker, append=append)
    expire_all(broker)
    assert ledger(broker) == [entry]


def test_an_index_that_has_no_room_keeps_nothing(broker: LocalBroker) -> None:
    """It is asked before anything is deleted; what is deleted is what makes the room."""
    entry = say(broker, "one", 0)

    def query(*_: object) -> list[mq.MessageExt]:
        raise StoreFull("no room", path="index")

    set_compaction(broker, query=query)
    expire_all(broker)
    assert ledger(broker) == [entry]


@pytest.mark.parametrize("perm", ["r", "w"])
def test_a_ledger_that_may_not_be_used_holds_nothing_up(broker: LocalBroker, perm: Permission) -> None:
    say(broker, "one", 0)
    broker.create_topic(TOPIC, 1, perm=perm)
    expire_all(broker)
    broker.create_topic(TOPIC, 1, perm="rw")
    assert ledger(broker) == []


def test_a_damaged_entry_holds_nothing_up(broker: LocalBroker) -> None:
    for txn in ("one", "two", "three"):
        say(broker, txn, 0)
    damaged = messages_of(broker.topic(TOPIC).queues[0])[1]
    overwrite_log(broker.path, damaged.log_offset + 92, b"?")
    expire_all(broker)
    assert [entry.txn for entry in ledger(broker)] == ["one", "three"]


def test_the_leader_does_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "RETENTION_INTERVAL", 0.02)
    with open_small(directory, retention_hours=0) as broker:
        broker.create_topic("A", 1)
        broker.create_topic(TOPIC, 1)
        entry = say(broker, "one", 3)
        first = log_files(directory)[0]
        until = time.monotonic() + 30
        while first.exists():
            assert time.monotonic() < until, "nothing is deleted"
            fill(broker, "A", 20)
        # It may be put elsewhere between the two steps of a look.
        eventually(lambda: newest(broker, "one") == entry, lambda: newest(broker, "one"), seconds=30)
        begin = broker.min_offset(LEDGER)
    assert begin > 0
