"""Records of transactions, byte for byte: half messages, op records, copies, committed messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mq
from mq.api.transactions import HalfMessage
from mq.broker.local import LocalBroker
from mq.broker.transactions.check_loop import Ledger
from mq.broker.transactions.half_queues import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, names_of, places_in
from mq.message import MessageExt
from mq.properties import decode
from mq.store.log.reappend import Copies
from tests.support import assigned
from tests.support.insides import store_of, writer_of
from tests.support.records import encode_record
from tests.support.store.encoder import Record, properties
from tests.txn.half_messages import COMMIT, GROUP, ROLLBACK, prepared, records, stored


@pytest.fixture
def message() -> mq.Message:
    return mq.Message("orders", b"one", tags="paid", keys=["a", "b"], properties={"who": "me"}, flag=7)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


class TestHalfMessages:
    def test_what_is_stored(self, directory: Path, message: mq.Message) -> None:
        with mq.open(directory) as broker:
            log_offset, queue_offset = prepared(broker, message)
            (half,) = records(broker, HALF_TOPIC)
        assert (half.log_offset, half.queue_offset, half.queue_id) == (log_offset, queue_offset, 0)
        assert (half.sys_flag, half.flag, half.body) == (0, 7, b"one")
        stored = decode(half.encoded)
        assert stored.pop("__transactionId__") == stored.pop("UNIQ_KEY") == half.msg_id
        assert stored.pop("__CRC32#")
        assert stored == {
            "TAGS": "paid",
            "KEYS": "a b",
            "who": "me",
            "TRAN_MSG": "true",
            "PGROUP": "payers",
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
        }
        seen = HalfMessage(half)
        assert (seen.topic, seen.queue_id, seen.group, seen.times_checked) == ("orders", 0, "payers", 0)

    def test_the_id_of_one_that_does_not_name_its_transaction_is_the_unique_id(self) -> None:
        """As a broker of 4.9 has it."""
        record = encode_record("orders", 0, 0, 0, b"one", b"UNIQ_KEY\x01" + b"0A" * 16 + b"\x02")
        assert HalfMessage(MessageExt(record, "a")).transaction_id == "0A" * 16

    def test_a_given_id_is_in_both_places(self, directory: Path, message: mq.Message) -> None:
        given_id = "0A" * 16
        with mq.open(directory) as broker:
            prepared(broker, message, given_id)
            (half,) = records(broker, HALF_TOPIC)
        stored = decode(half.encoded)
        assert stored["UNIQ_KEY"] == stored["__transactionId__"] == given_id

    def test_what_is_committed(self, directory: Path, message: mq.Message) -> None:
        with mq.open(directory) as broker:
            prepared(broker, mq.Message("orders", b"first"))
            place = prepared(broker, message)
            broker.transactions.ender("payers")(*place, COMMIT)
            half = records(broker, HALF_TOPIC)[1]
            (found,) = records(broker, "orders")
        assert found.sys_flag == 8
        assert found.prepared_transaction_offset == half.log_offset
        assert (found.queue_offset, found.body, found.flag) == (0, b"one", 7)
        assert (found.born_time_ms, found.born_host) == (half.born_time_ms, half.born_host)
        assert decode(found.encoded[:-20]) == decode(half.encoded[:-20])
        assert found.msg_id == half.msg_id
        assert found.tags == "paid"

    def test_a_compressed_one_stays_so(self, directory: Path) -> None:
        body = b"x" * 10_000
        with (
            mq.open(directory) as broker,
            mq.TransactionProducer(broker, "payers", lambda _: COMMIT) as producer,
        ):
            producer.send(mq.Message("orders", body), lambda *_: COMMIT)
            found = [m for queue in broker.topic("orders").queues for m in queue.read(0).messages]
        assert [(m.body, m.sys_flag & 0xF) for m in found] == [(body, 9)]

    def test_what_follows_a_checksum_that_is_not_the_last_is_kept(self, directory: Path) -> None:
        """As a RocketMQ broker leaves it that stored one of ours once more."""
        stale = b"KEYS\1a\2__CRC32#\0011234567890\2PGROUP\1payers\2REAL_TOPIC\1orders\2REAL_QID\0010\2"
        with mq.open(directory) as broker:
            queue = broker.publishable("orders")[0]
            transactions = broker.transactions
            transactions.halves.make()
            message = MessageExt(Record(HALF_TOPIC, b"one", stale, born_time=1, store_time=1).encode(), "mq")
            copies = Copies(store_of(broker))
            copy = copies.append(HALF_TOPIC, 0, message, stale, reconsume_times=0)
            broker.transactions.ender("payers")(copy.log_offset, copy.queue_offset, COMMIT)
            (found,) = broker.puller(queue)(0, 1, 1 << 20, None, 0.0).messages
        assert found.encoded.count(b"__CRC32#") == 1
        assert decode(found.encoded)["PGROUP"] == "payers"
        assert found.keys == ("a",)


class TestDelayedOnes:
    """As RocketMQ's client may send them: mq's own refuses."""

    def half(self, broker: LocalBroker, **delay: str) -> tuple[int, int]:
        given = {"PGROUP": "payers", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "0A" * 16}
        encoded = properties(**given, **delay)
        transactions = broker.transactions
        transactions.halves.make()
        message = MessageExt(Record(HALF_TOPIC, b"one", encoded, born_time=1, store_time=1).encode(), "mq")
        copy = Copies(store_of(broker)).append(HALF_TOPIC, 0, message, encoded, reconsume_times=0)
        return copy.log_offset, copy.queue_offset

    @pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY"])
    def test_they_come_when_they_are_due_and_once(self, directory: Path, name: str) -> None:
        now = time.time_ns() // 1_000_000
        value = {"TIMER_DELAY_MS": 400, "TIMER_DELIVER_MS": now + 400, "DELAY": 1}[name]
        with mq.open(directory, message_delay_level="400ms") as broker:
            queue = broker.create_topic("orders", 1).queues[0]
            place = self.half(broker, **{name: str(value)})
            for _ in range(2):
                broker.transactions.ender("payers")(*place, COMMIT)
            with pytest.raises(mq.NotPermitted, match="COMMIT"):
                broker.transactions.ender("payers")(*place, ROLLBACK)
            (found,) = queue.read(0, wait=60.0).messages
            assert found.body == b"one"
            assert found.store_time_ms >= now + 400
            (directory / "mq" / "transactions").unlink()
        with mq.open(directory) as broker:
            broker.transactions.ender("payers")(*place, COMMIT)
            assert broker.topic("orders").queues[0].max_offset == 1
            assert broker.transactions.undecided() == []


class TestOpRecords:
    def test_what_is_stored(self, directory: Path) -> None:
        with mq.open(directory) as broker:
            places = [prepared(broker, mq.Message("orders", b"x")) for _ in range(4)]
            for place, state in zip(places[1:], (COMMIT, ROLLBACK, COMMIT), strict=True):
                broker.transactions.ender("payers")(*place, state)
        with mq.open(directory, read_only=True) as broker:
            ops = records(broker, OP_TOPIC)
        # One, unless the ends are seconds apart.
        assert b"".join(op.body for op in ops) == b"1,2,3,"
        for op in ops:
            assert (op.tags, op.sys_flag) == ("d", 0)
            assert decode(op.encoded)["WAIT"] == "true"

    def test_both_forms_are_read(self) -> None:
        assert places_in(b"123") == [123]
        assert places_in(b"0,1,5,") == [0, 1, 5]
        assert places_in(b"") == places_in(b",") == places_in(b"x,-1,1.5,") == []
        assert places_in(b"7,,9") == [7, 9]
        assert places_in(b"9" * 30 + b",4") == places_in(b"9" * 5000 + b",4") == [4]
        assert places_in(b"3,8,4,", end=8) == [3, 4]

    def test_what_no_op_record_can_tell_of_does_not_matter(
        self, directory: Path, message: mq.Message
    ) -> None:
        """Neither places that there are not, nor copies of a half message that come before it."""
        with mq.open(directory) as broker:
            broker.create_topic("orders", 1)
            log_offset, place = prepared(broker, message)
            halves = broker.transactions.halves
            half = halves.read(place, 1)
            assert half is not None
            copy = halves.copy(half, 10**14, 1)
            writer_of(broker).append_to(halves.op_number(), b"%d,%d," % (10**15, 10**17), b"TAGS\x01d\x02")
            [left] = broker.transactions.undecided()
            assert left.message.queue_offset == copy
            broker.transactions.ender("payers")(log_offset, place, ROLLBACK)
            broker.transactions.ender("payers")(left.message.log_offset, copy, ROLLBACK)
            broker.transactions.rounds.save()
            assert broker.transactions.undecided() == []

    @settings(max_examples=20)
    @given(places=st.lists(st.integers(0, 1 << 46), max_size=3000))
    def test_they_hold_all_and_are_short(
        self, tmp_path_factory: pytest.TempPathFactory, places: list[int]
    ) -> None:
        with mq.open(tmp_path_factory.mktemp("told")) as broker:
            transactions = broker.transactions
            told = list(transactions.halves.tell(transactions.table(), places, Ledger(1 << 46, 0)))
            ops = records(broker, OP_TOPIC) if places else []
        assert [place for op in ops for place in places_in(op.body)] == places
        assert told == [(op.queue_offset, max(places_in(op.body))) for op in ops]
        assert all(0 < len(op.body) <= 4096 and op.body.endswith(b",") for op in ops)
        assert all(len(op.body) > 4000 for op in ops[:-1])


class TestNames:
    def half(self, place: int, unique_id: str, **more: str) -> MessageExt:
        encoded = properties(PGROUP=more.pop("group", "payers"), UNIQ_KEY=unique_id, **more)
        return MessageExt(Record(HALF_TOPIC, b"", encoded, queue_offset=place).encode(), "mq")

    def test_a_copy_names_its_original(self) -> None:
        assert names_of(lambda: [self.half(5, "a"), self.half(9, "a", TRAN_PREPARED_QUEUE_OFFSET="5")]) == {
            9: 5
        }

    def test_else_its_unique_id_does(self) -> None:
        """A RocketMQ broker that was killed leaves two copies, of which its offsets know neither."""
        first = self.half(14, "a", TRANSACTION_CHECK_TIMES="1")
        second = self.half(20, "a", TRANSACTION_CHECK_TIMES="2")
        other = self.half(21, "b", TRANSACTION_CHECK_TIMES="1")
        assert names_of(lambda: [first, self.half(15, "c"), second, other]) == {20: 14}

    def test_one_of_another_group_is_another(self) -> None:
        second = self.half(20, "a", TRANSACTION_CHECK_TIMES="2", group="others")
        assert names_of(lambda: [self.half(14, "a"), second]) == {}

    def test_what_was_sent_twice_is_no_copy(self) -> None:
        assert names_of(lambda: [self.half(14, "a"), self.half(15, "a")]) == {}


GIVEN_UP_SOON: dict[str, Any] = {
    "transaction_timeout": 0.001,
    "transaction_check_interval": 0.05,
    "transaction_check_max": 1,
}


def test_a_message_given_up_keeps_its_properties(directory: Path) -> None:
    with mq.open(directory, **GIVEN_UP_SOON) as broker:
        prepared(broker, mq.Message("orders", b"one", tags="paid"))
        wait_until(lambda: [each.given_up for each in broker.transactions.undecided()] == [True])
        found = records(broker, GIVEN_UP_TOPIC)
        halves = records(broker, HALF_TOPIC)
    assert [HalfMessage(half).times_checked for half in halves] == [0, 1]
    (waiting,) = found
    ours = {"__CRC32#": None}
    assert {**decode(waiting.encoded), **ours} == {**decode(halves[1].encoded), **ours}
    assert decode(waiting.encoded)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"


def test_one_is_resumed_in_the_middle_of_the_round_that_gave_it_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open until the round has committed how far it is, as one is that was resumed before."""
    with mq.open(directory, **GIVEN_UP_SOON) as broker:
        halves, resumed = broker.transactions.halves, threading.Event()
        flush = halves.flush

        def held() -> None:
            flush()
            if halves.end(halves.given_up):
                assert resumed.wait(60)

        monkeypatch.setattr(halves, "flush", held)
        prepared(broker, mq.Message("orders", b"one"))
        try:
            wait_until(lambda: halves.end(halves.given_up) == 1)
            (waiting,) = broker.transactions.undecided()
            assert waiting.given_up
            for _ in range(2):
                broker.transactions.resume(waiting.message.msg_id)
            assert [each.given_up for each in broker.transactions.undecided()] == [False]
        finally:
            resumed.set()
        wait_until(lambda: halves.end(halves.given_up) == 2)
        assert [HalfMessage(half).times_checked for half in records(broker, HALF_TOPIC)] == [0, 1, 0, 1]


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_is_committed_goes_to_a_queue_that_the_topic_has_by_then(directory: Path, flush: Any) -> None:
    """Also where commits went to all queues before, and from the second one on."""
    with ExitStack() as stack:
        broker = stack.enter_context(mq.open(directory, flush=flush))
        producer = stack.enter_context(mq.TransactionProducer(broker, GROUP, lambda _: COMMIT))
        broker.create_topic("orders", 4)

        def begun() -> list[Any]:
            halves: list[AbstractContextManager[object]] = []
            halves += [producer.begin(mq.Message("orders", b"%d" % number)) for number in range(8)]
            for half in halves:
                half.__enter__()
            return halves

        def commit(halves: list[AbstractContextManager[object]]) -> None:
            for half in halves:
                half.__exit__(None, None, None)

        commit(begun())
        assert [queue.max_offset for queue in broker.topic("orders").queues] == [2, 2, 2, 2]
        for queue in broker.topic("orders").queues:
            assigned.commit(broker, "billing", queue.message_queue, 2)
        halves = begun()
        assert len(broker.create_topic("orders", 1).queues) == 1
        commit(halves)
        assert len(stored(broker)) == 2 + 8
        assert broker.group("billing").lag("orders") == 8
