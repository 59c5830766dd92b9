"""SQL92 consumers of brokers that write extensions: what is not for them is passed over by its bits, and
nothing that is for them ever is."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.filter_bitmaps import BLOOM, ConsumerFilters
from mq.broker.local import LocalBroker
from mq.filter.sql import compiled
from mq.store.native import ffi, lib
from mq.store.queue.extensions import Extension, Marks, read_extension
from mq.store.queue.filters_version import filters_version
from tests.support.appending import append_many, append_one
from tests.support.insides import filters_of, log_end, poll_loop_of, queue_number, reader_of, store_of
from tests.support.store.peer import Peer
from tests.support.store.small_store import SMALL, log_offset_of

OPTIONS: dict[str, Any] = {"enable_consume_queue_ext": True}
SQL = "number > 10"
NO_SQL = "number % 2 = 1"


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **OPTIONS) as broker:
        broker.create_topic("A", 1)
        yield broker


def send(broker: LocalBroker, *numbers: int) -> list[mq.SendResult]:
    messages = [mq.Message("A", b"%d" % number, properties={"number": str(number)}) for number in numbers]
    return [append_one(broker, "A", 0, message, message.body, 0) for message in messages]


def extension(broker: LocalBroker, offset: int) -> Extension | None:
    number = queue_number(broker, broker.topic("A").queues[0].message_queue)
    values, size = ffi.new("int64_t[2]"), ffi.new("int32_t *")
    assert lib.mq_queue_unit(store_of(broker).log, number, offset, values, size, values + 1) == 0
    return read_extension(store_of(broker).log, number, values[1])


def wanted_bits(broker: LocalBroker, offset: int) -> bytes:
    found = extension(broker, offset)
    assert found is not None
    return found.bitmap


def consume(consumer: mq.PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.poll(timeout=30.0)
        assert messages
        found += [message.body for message in messages]
    return found


def pulled(broker: LocalBroker, consumer: mq.PullConsumer) -> list[bytes]:
    """What comes out of the log for a consumer, before it looks itself."""
    where = broker.topic("A").queues[0].message_queue
    membership = poll_loop_of(consumer).membership
    assert membership is not None
    claim = membership.claim(where)
    assert claim is not None
    found = claim.puller()(0, 1000, 1 << 20, None, 0.0)
    return [message.body for message in found.messages]


def test_a_consumer_is_spared_what_its_expression_leaves_out(broker: LocalBroker) -> None:
    send(broker, 1, 20)
    with mq.PullConsumer(broker, "group") as consumer:
        consumer.subscribe("A", sql=SQL)
        assert consume(consumer, 1) == [b"20"]
        sent = send(broker, 2, 30, 3, 40)
        assert consume(consumer, 2) == [b"30", b"40"]
        # The first two were sent before any group filtered.
        assert pulled(broker, consumer) == [b"1", b"20", b"30", b"40"]
        assert consumer.poll(timeout=0) == []
        consumer.commit()
        assert list(broker.group("group").offsets("A").values()) == [6]
    assert [wanted_bits(broker, offset) for offset in range(6)] == [b"", b"", *[
        BLOOM.bits(["group#A"] if wants else []) for wants in (False, True, False, True)
    ]]  # fmt: skip
    (one,) = table(broker)["A"].values()
    assert one["mqBornLogOffset"] == log_offset_of(sent[0])


def table(broker: LocalBroker) -> dict[str, Any]:
    found = json.loads((broker.path / "config" / "consumerFilter.json").read_text())["filterDataByTopic"]
    return {topic: of_topic["groupFilterData"] for topic, of_topic in found.items()}


def test_the_file_is_rocketmqs(broker: LocalBroker) -> None:
    ConsumerFilters(store_of(broker)).marks("CID_abc", "TopicTest", SQL)
    text = (broker.path / "config" / "consumerFilter.json").read_text()
    (of_topic,) = json.loads(text)["filterDataByTopic"].values()
    assert of_topic["topic"] == "TopicTest"
    one = of_topic["groupFilterData"]["CID_abc"]
    assert one.pop("bornTime") == one.pop("clientVersion") > 1_600_000_000_000
    assert one == {
        "bloomFilterData": {"bitNum": 112, "bitPos": [103, 61, 29]},
        "consumerGroup": "CID_abc",
        "dead": False,
        "deadTime": 0,
        "expression": SQL,
        "expressionType": "SQL92",
        "mqBornLogOffset": 0,
        "topic": "TopicTest",
    }


def test_each_of_several_groups_has_bits_of_its_own(broker: LocalBroker) -> None:
    filters = ConsumerFilters(store_of(broker))
    for group, sql in (("low", "number < 5"), ("high", "number > 3"), ("none", "number IS NULL")):
        filters.marks(group, "A", sql)
    send(broker, 1, 4, 9)
    assert [wanted_bits(broker, offset) for offset in range(3)] == [
        BLOOM.bits(["low#A"]),
        BLOOM.bits(["low#A", "high#A"]),
        BLOOM.bits(["high#A"]),
    ]


def test_a_batch_has_bits_for_each(broker: LocalBroker) -> None:
    ConsumerFilters(store_of(broker)).marks("group", "A", SQL)
    messages = [mq.Message("A", b"x", properties={"number": str(number)}) for number in (1, 20, 3, 40)]
    append_many(broker, "A", 0, messages)
    assert [any(wanted_bits(broker, offset)) for offset in range(4)] == [False, True, False, True]


def test_a_message_without_a_filtering_group_has_no_bits(broker: LocalBroker) -> None:
    ConsumerFilters(store_of(broker)).marks("group", "B", SQL)
    send(broker, 1)
    assert wanted_bits(broker, 0) == b""


def test_senders_of_other_processes_know_a_filter_at_once(broker: LocalBroker, directory: Path) -> None:
    """Or they store no bits: a consumer that goes by bits from where it is born on misses nothing."""
    with Peer(directory, **OPTIONS, **dict.fromkeys(SMALL)) as peer:
        peer.do("def put(n): return send(broker, 'A', 0, b'x').queue_offset")
        peer.ask("put(1)")
        for turn in range(5):
            ConsumerFilters(store_of(broker)).marks(f"group{turn}", "A", f"number = {turn}")
            peer.ask("put(1)")
            assert wanted_bits(broker, turn + 1) == bytes(14)
        filters = ConsumerFilters(store_of(broker))
        marks = filters.marks("all", "A", "number IS NULL")
        offset = peer.ask("put(1)")
        where = broker.topic("A").queues[0].message_queue
        found = reader_of(broker).marked_pull(where, marks, 0, 100, 1 << 20, 0.0).messages
        # The bits of earlier messages may be unset; those of the last one are set for sure.
        assert [message.queue_offset for message in found] == list(range(offset + 1))
        assert BLOOM.may_hold(wanted_bits(broker, offset), marks.positions)


def test_bits_of_a_set_of_filters_that_is_out_of_date_are_not_stored(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = filters_of(broker)
    other = ConsumerFilters(store_of(broker))
    other.marks("first", "A", SQL)
    send(broker, 20)

    def late(topic: str, properties: bytes, /) -> bytes:
        bits = ConsumerFilters.bits(sender, topic, properties)
        other.marks("second", "A", "number > 15")  # Between the computation and the append.
        return bits

    with monkeypatch.context() as patched:
        patched.setattr(sender, "bits", late)
        send(broker, 20)
    send(broker, 20)
    assert [len(wanted_bits(broker, offset)) for offset in range(3)] == [14, 0, 14]


def test_a_changed_expression_is_born_anew(broker: LocalBroker) -> None:
    filters = ConsumerFilters(store_of(broker))
    first = filters.marks("group", "A", SQL)
    assert filters.marks("group", "A", SQL) == first
    version = filters_version(store_of(broker))
    send(broker, 1, 20)
    second = filters.marks("group", "A", "number < 10")
    assert second == Marks(first.positions, 14, log_end(broker))
    assert filters_version(store_of(broker)) == version + 1
    assert list(table(broker)["A"]) == ["group"]


def test_a_consumer_that_changes_its_expression_misses_nothing(broker: LocalBroker) -> None:
    with mq.PullConsumer(broker, "group", auto_commit=False) as consumer:
        consumer.subscribe("A", sql=SQL)
        assert consumer.poll(timeout=0) == []
        send(broker, 1, 20)
        assert consume(consumer, 1) == [b"20"]
        consumer.subscribe("A", sql="number < 10")
        assert consumer.poll(timeout=0) == []
        send(broker, 2, 30)
        assert consume(consumer, 1) == [b"2"]
        consumer.seek(broker.topic("A").queues[0].message_queue, 0)
        assert consume(consumer, 2) == [b"1", b"2"]


@pytest.mark.parametrize("sql", ["UNIQ_KEY IS NOT NULL", "number > 10 OR UNIQ_KEY IS NOT NULL"])
def test_what_asks_for_properties_that_are_added_later_may_want_anything(
    broker: LocalBroker, sql: str
) -> None:
    ConsumerFilters(store_of(broker)).marks("group", "A", sql)
    send(broker, 1)
    assert wanted_bits(broker, 0) == BLOOM.bits(["group#A"])


def test_what_does_not_compile_here_may_want_anything(broker: LocalBroker) -> None:
    with pytest.raises(mq.FilterSyntaxError):
        compiled(NO_SQL)
    filters = ConsumerFilters(store_of(broker))
    filters.marks("group", "A", NO_SQL)
    filters.marks("other", "A", SQL)
    send(broker, 1)
    assert wanted_bits(broker, 0) == BLOOM.bits(["group#A"])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"filterDataByTopic": 3}', '{"filterDataByTopic": {"A": {}}}', "\xff"]
)
def test_a_damaged_file_costs_bits_and_nothing_else(
    broker: LocalBroker, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = broker.path / "config" / "consumerFilter.json"
    filters = ConsumerFilters(store_of(broker))
    filters.marks("group", "A", SQL)
    path.write_bytes(text.encode("latin-1"))
    send(broker, 1)
    assert wanted_bits(broker, 0) == b""
    assert "is made anew" in caplog.text
    marks = filters.marks("group", "A", SQL)
    assert marks.since == log_end(broker)
    send(broker, 1)
    assert wanted_bits(broker, 1) == bytes(14)


def test_a_filter_that_a_broker_left_is_born_here(broker: LocalBroker) -> None:
    """Its file has no place for the log offset."""
    filters = ConsumerFilters(store_of(broker))
    filters.marks("group", "A", SQL)
    path = broker.path / "config" / "consumerFilter.json"
    found = json.loads(path.read_text())
    del found["filterDataByTopic"]["A"]["groupFilterData"]["group"]["mqBornLogOffset"]
    path.write_text(json.dumps(found))
    send(broker, 1)
    assert filters.marks("group", "A", SQL).since == log_end(broker)


@pytest.mark.parametrize("between", ["another expression", "deleted"])
def test_an_older_file_hides_nothing(directory: Path, between: str) -> None:
    """What was sent since has no bits of the filter that it knows, or those of another expression."""
    path = directory / "config" / "consumerFilter.json"
    with mq.open(directory, **OPTIONS) as broker:
        broker.create_topic("A", 1)
        for group in ("other", "group"):
            filters_of(broker).marks(group, "A", SQL)
    older = path.read_bytes()
    with mq.open(directory, **OPTIONS) as broker:
        if between == "deleted":
            filters_of(broker).forget("group")
        else:
            filters_of(broker).marks("group", "A", "number < 10")
        send(broker, 1, 20)
    path.write_bytes(older)
    with mq.open(directory, **OPTIONS) as broker, mq.PullConsumer(broker, "group") as consumer:
        send(broker, 30)
        consumer.subscribe("A", sql=SQL)
        assert consume(consumer, 2) == [b"20", b"30"]


def test_a_file_of_another_store_hides_nothing(directory: Path, tmp_path: Path) -> None:
    with mq.open(tmp_path / "other", **OPTIONS) as broker:
        broker.create_topic("A", 1)
        filters_of(broker).marks("group", "A", SQL)
    with mq.open(directory, **OPTIONS) as broker:
        broker.create_topic("A", 1)
        filters_of(broker).marks("other", "A", SQL)
        send(broker, 20)
    names = [path / "config" / "consumerFilter.json" for path in (tmp_path / "other", directory)]
    names[1].write_bytes(names[0].read_bytes())
    with mq.open(directory, **OPTIONS) as broker, mq.PullConsumer(broker, "group") as consumer:
        consumer.subscribe("A", sql=SQL)
        assert consume(consumer, 1) == [b"20"]


def test_a_filter_is_the_same_after_the_store_was_closed(directory: Path) -> None:
    with mq.open(directory, **OPTIONS) as broker:
        broker.create_topic("A", 1)
        marks = filters_of(broker).marks("group", "A", SQL)
        filters_of(broker).marks("other", "A", SQL)
        filters_of(broker).forget("other")
        send(broker, 1)
    with mq.open(directory, **OPTIONS) as broker:
        assert filters_of(broker).marks("group", "A", SQL) == marks


def test_a_push_consumer_gets_all_that_it_wants(broker: LocalBroker) -> None:
    got: queue.Queue[bytes] = queue.Queue()
    ConsumerFilters(store_of(broker)).marks("group", "A", SQL)
    send(broker, *range(30))
    with mq.PushConsumer(broker, "group") as consumer:
        consumer.subscribe("A", sql=SQL, listener=lambda message: got.put(message.body))
        consumer.start()
        assert {got.get(timeout=30) for _ in range(19)} == {b"%d" % number for number in range(11, 30)}
    assert got.empty()
    assert broker.group("group").lag("A") == 0


def test_what_one_thread_knew_before_is_not_what_another_one_goes_by(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has read the file and is held up; then a new group begins to filter. The second knows it, and
    still does when the first has gone on: bits without the new group's would keep messages from it."""
    filters = filters_of(broker)
    ConsumerFilters(store_of(broker)).marks("other", "A", SQL)
    has_read, goes_on = threading.Event(), threading.Event()
    knows, goes_further = threading.Event(), threading.Event()
    found: list[tuple[int, bytes]] = []

    def held_up(expression: str) -> Any:
        if threading.current_thread() is first:
            has_read.set()
            assert goes_on.wait(30.0)
        return compiled(expression)

    def ask() -> None:
        version = filters.version()
        knows.set()
        assert goes_further.wait(30.0)
        found.append((version, filters.bits("A", b"number\x0120\x02")))

    first, second = threading.Thread(target=filters.version), threading.Thread(target=ask)
    monkeypatch.setattr("mq.filter.sql.compiled", held_up)
    first.start()
    assert has_read.wait(30.0)
    ConsumerFilters(store_of(broker)).marks("group", "A", SQL)
    second.start()
    knows.wait(0.5)  # Or it waits for the first one: then there is nothing to be seen before.
    goes_on.set()
    first.join(30.0)
    goes_further.set()
    second.join(30.0)
    assert found == [(filters_version(store_of(broker)), BLOOM.bits(["group#A", "other#A"]))]
