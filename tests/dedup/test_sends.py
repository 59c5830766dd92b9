"""What a send under a key does behind its border: when it queries the index, what it waits for, what it makes
of dead claims, damage, a full disk and a flush that is still to come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.broker.once.append_once import Dedup
from mq.store.dedup import table as dedup_table
from mq.store.dedup.table import LEFT, SentKeys, digest_of
from mq.store.queue import reader
from mq.store.shared.lock_guards import append_lock
from tests.dedup import dedup_actors
from tests.dedup.dedup_actors import SMALL, held, order
from tests.support.arrivals import wait_for
from tests.support.insides import dedup_append, log_end, set_dedup_clock, store_of
from tests.support.processes.children import Died, call
from tests.support.store.small_store import FOR_EVER_MS, expire_at, open_small

WINDOW = 3600.0
Append = Callable[..., mq.SendResult]


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory, **SMALL) as broker:
        broker.create_topic("orders", 1)
        yield broker


def producer_of(broker: mq.Broker, window: float = WINDOW, **options: Any) -> mq.Producer:
    # Longer than the usual 3 s, in which a slow machine may stand still.
    return mq.Producer(broker, dedup_window=window, **{"timeout": 60.0, **options})


def count_of(broker: mq.Broker) -> int:
    return broker.topic("orders").queues[0].max_offset


def test_a_table_that_was_there_from_the_first_message_on_knows(
    broker: LocalBroker, asked: list[str]
) -> None:
    producer = producer_of(broker)
    for number in range(200):
        producer.send(order(b"one"), dedup_key=f"key-{number % 100}")
    assert count_of(broker) == 100
    assert asked == []


def test_a_table_that_is_younger_than_the_window_does_not(broker: LocalBroker, asked: list[str]) -> None:
    mq.Producer(broker).send(order(b"plain"))
    now = [1_700_000_000_000]
    set_dedup_clock(broker, lambda: now[0])
    producer = producer_of(broker, 60)
    producer.send(order(b"one"), dedup_key="key-1")
    assert asked == ["key-1"]
    now[0] += 59_999
    producer.send(order(b"one"), dedup_key="key-2")
    assert asked == ["key-1", "key-2"]
    now[0] += 2
    producer.send(order(b"one"), dedup_key="key-3")
    assert asked == ["key-1", "key-2"]


@pytest.mark.parametrize("delay_level", [0, 5])
def test_the_index_is_asked_for_what_was_sent_before_the_table_alone(
    directory: Path, asked: list[str], delay_level: int
) -> None:
    with mq.open(directory, **SMALL) as broker:
        producer = producer_of(broker)
        results = [
            producer.send(order(b"one", delay_level=delay_level), dedup_key=f"key-{number}")
            for number in range(5)
        ]
    (directory / "mq" / "dedup").unlink()
    with mq.open(directory, **SMALL) as broker:
        producer = producer_of(broker)
        producer.send(order(b"one"), dedup_key="fresh-0")
        assert asked == ["fresh-0"], "the first one has the index looked into in C"
        fresh = [producer.send(order(b"one"), dedup_key=f"fresh-{number}") for number in range(20)]
        for number, result in enumerate(results):
            again = producer.send(order(b"one"), dedup_key=f"key-{number}")
            assert again.offset_msg_id == result.offset_msg_id
        assert asked == ["fresh-0", *(f"key-{number}" for number in range(5))]
        for number, result in enumerate(fresh):
            again = producer.send(order(b"one"), dedup_key=f"fresh-{number}")
            assert again.offset_msg_id == result.offset_msg_id


def test_the_usual_send_is_one_call_of_c(broker: LocalBroker) -> None:
    def slow(*_arguments: Any) -> mq.SendResult:
        raise AssertionError("it was stored by Python")

    producer = producer_of(broker)
    producer.send(order(b"one"), dedup_key="key-0")
    with dedup_append(broker, slow):
        for number in range(50):
            result = producer.send(order(b"%d" % number, tags="t"), dedup_key=f"key-{number + 1}")
            (stored_one,) = broker.query("orders", f"key-{number + 1}")
            assert (result.msg_id, result.offset_msg_id) == (stored_one.msg_id, stored_one.offset_msg_id)
            assert stored_one.dedup_key == f"key-{number + 1}"
            assert (stored_one.keys, stored_one.tags) == ((f"key-{number + 1}",), "t")
        assert producer.send(order(b"again"), dedup_key="key-50") == result
        with pytest.raises(AssertionError):
            producer.send(order(b"with keys", keys="own"), dedup_key="key-51")
    assert count_of(broker) == 51
    broker.create_topic("orders", 3)  # All queues take turns from now on.
    for number in range(100, 112):
        producer.send(order(b"one"), dedup_key=f"key-{number}")
    assert [queue.max_offset for queue in broker.topic("orders").queues if queue.max_offset] != [63]


def test_a_table_of_another_boot_is_not_believed(
    directory: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with mq.open(directory, **SMALL) as broker:
        first = producer_of(broker).send(order(b"one"), dedup_key="key-1")
    monkeypatch.setattr(dedup_table, "boot_id", lambda: b"another boot----")
    with mq.open(directory, **SMALL) as broker:
        producer = producer_of(broker)
        assert producer.send(order(b"one"), dedup_key="key-1").offset_msg_id == first.offset_msg_id
        assert asked == ["key-1"]
        producer.send(order(b"one"), dedup_key="key-1")
        assert asked == ["key-1"], "what the index said is known from then on"


def test_an_older_table_is_not_believed(directory: Path) -> None:
    path = directory / "mq" / "dedup"
    copies = []
    for number in range(3):
        with mq.open(directory, **SMALL) as broker:
            broker.create_topic("orders", 1)
            producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}")
            copies.append(path.read_bytes())
            producer_of(broker).send(order(b"one"), dedup_key=f"later-{number}")
        copies.append(path.read_bytes())
    for copy in copies[:-1]:
        path.write_bytes(copy)
        with mq.open(directory, **SMALL) as broker:
            for number in range(3):
                producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}")
                producer_of(broker).send(order(b"one"), dedup_key=f"later-{number}")
            assert count_of(broker) == 6


def test_nor_is_one_after_a_kill(directory: Path) -> None:
    with pytest.raises(Died):
        call(dedup_actors.send_and_die, str(directory))
    path = directory / "mq" / "dedup"
    path.write_bytes(path.with_name("older").read_bytes())
    with mq.open(directory) as broker:
        for key in ("first", "second"):
            producer_of(broker).send(order(b"one"), dedup_key=key)
        assert count_of(broker) == 2


def test_a_table_that_was_closed_is_believed(directory: Path, asked: list[str]) -> None:
    """Whatever was opened and closed meanwhile, and in whatever order."""
    with mq.open(directory, **SMALL) as broker:
        broker.create_topic("orders", 1)
        producer_of(broker).send(order(b"one"), dedup_key="key-0")
        with mq.open(directory, **SMALL) as other:
            producer_of(other).send(order(b"one"), dedup_key="key-1")
            broker.close()
            producer_of(other).send(order(b"one"), dedup_key="key-2")
            with mq.open(directory, **SMALL) as third:
                producer_of(third).send(order(b"one"), dedup_key="key-3")
    with mq.open(directory, **SMALL) as broker:  # Sends under no key.
        mq.Producer(broker).send(order(b"two"))
    with mq.open(directory, **SMALL) as broker:
        for number in range(5):
            producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}")
        assert count_of(broker) == 6
    assert asked == []


def test_an_index_that_is_built_again_has_the_keys(directory: Path) -> None:
    with mq.open(directory, **SMALL) as broker:
        results = [producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}") for number in range(50)]
    for path in [*(directory / "index").iterdir(), directory / "mq" / "dedup", directory / "mq" / "control"]:
        path.unlink()
    with mq.open(directory, **SMALL) as broker:
        for number, result in enumerate(results):
            again = producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}")
            assert again.offset_msg_id == result.offset_msg_id


def test_a_window_ends_in_the_index_too(directory: Path) -> None:
    with mq.open(directory, **SMALL) as broker:
        broker.create_topic("orders", 1)
        first = producer_of(broker).send(order(b"one"), dedup_key="key-1")
        stored_ms = broker.message(first.msg_id).store_time_ms
    (directory / "mq" / "dedup").unlink()
    for later, is_first in ((299_999, True), (300_000, False)):
        with mq.open(directory, **SMALL) as broker:
            now = stored_ms + later
            set_dedup_clock(broker, partial(int, now))
            again = producer_of(broker, 300).send(order(b"one"), dedup_key="key-1")
            assert (again.msg_id == first.msg_id) == is_first
        (directory / "mq" / "dedup").unlink()


def test_a_delayed_message_counts_from_its_sending_in_the_index_too(directory: Path) -> None:
    with mq.open(directory, **SMALL, message_delay_level="50ms") as broker:
        topic = broker.create_topic("orders", 1)
        first = producer_of(broker).send(order(b"one", delay_level=1), dedup_key="key-1")
        [message] = wait_for(topic.queues[0], 1)
        assert message.store_time_ms >= message.born_time_ms + 50
    for later, is_first in ((299_999, True), (300_000, False)):
        (directory / "mq" / "dedup").unlink()
        with mq.open(directory, **SMALL) as broker:
            set_dedup_clock(broker, partial(int, message.born_time_ms + later))
            again = producer_of(broker, 300).send(order(b"one"), dedup_key="key-1")
            assert (again.msg_id == first.msg_id) == is_first


@pytest.mark.parametrize("stored", [False, True])
def test_a_claim_that_was_left_is_looked_into(broker: LocalBroker, asked: list[str], stored: bool) -> None:
    """As an interrupted process leaves it."""

    def interrupted(append: Append, *arguments: Any) -> mq.SendResult:
        if stored:
            append(*arguments)
        raise KeyboardInterrupt

    producer = producer_of(broker)
    with dedup_append(broker, interrupted), pytest.raises(KeyboardInterrupt):
        producer.send(order(b"one"), dedup_key="key-1")
    producer.send(order(b"two"), dedup_key="key-1")
    producer.send(order(b"three"), dedup_key="key-1")
    assert count_of(broker) == 1
    assert broker.query("orders", "key-1")[0].body == (b"one" if stored else b"two")
    assert asked == ["key-1"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_window_begins_when_the_first_one_is_stored(broker: LocalBroker, dies: bool) -> None:
    """However long its process was stopped in the middle."""
    now_ms = time.time_ns() // 1_000_000 - 700_000
    set_dedup_clock(broker, lambda: now_ms)

    def stopped(append: Append, *arguments: Any) -> mq.SendResult:
        nonlocal now_ms
        now_ms += 700_000
        result = append(*arguments)
        if dies:
            raise KeyboardInterrupt
        return result

    producer = producer_of(broker, 600.0)
    with dedup_append(broker, stopped), pytest.raises(KeyboardInterrupt) if dies else nullcontext():
        producer.send(order(b"one"), dedup_key="key-1")
    for _ in range(2):
        producer.send(order(b"two"), dedup_key="key-1")
    assert count_of(broker) == 1


@pytest.mark.parametrize(
    ("error", "is_left"),
    [
        (mq.StoreFull("full", path="x"), False),
        (OSError("of a signal handler, perhaps"), True),
        (mq.StorePoisoned("perhaps stored"), True),
    ],
)
def test_an_error_frees_the_key_unless_it_may_be_stored(
    broker: LocalBroker, error: Exception, is_left: bool
) -> None:
    if is_left:
        error.unique_id = "0" * 32  # type: ignore[attr-defined]  # of MQError

    def failing(*_arguments: Any) -> mq.SendResult:
        raise error

    producer = producer_of(broker)
    with dedup_append(broker, failing), pytest.raises(type(error)):
        producer.send(order(b"one"), dedup_key="key-1")
    keys, digest = SentKeys(store_of(broker), clock_ms=clock_ms), digest_of("key", "orders", "key-1")
    said, _ = keys.bucket().look(digest, 0)
    assert (said == LEFT) == is_left
    producer.send(order(b"one"), dedup_key="key-1")
    assert count_of(broker) == 1


@pytest.mark.parametrize("is_usual", [True, False])  # The usual send is one call of C.
def test_a_send_that_fails_leaves_what_a_longer_window_knows(
    broker: LocalBroker, directory: Path, is_usual: bool
) -> None:
    patient, hasty = producer_of(broker), producer_of(broker, 0.001, timeout=0.05, retries=0)
    first = patient.send(order(b"one"), dedup_key="key-1")
    hasty.send(
        order(b"other"), dedup_key="key-2", timeout=60.0
    )  # From the second one on, C sends those with a key.
    time.sleep(0.005)
    if is_usual:
        with (
            mq.open(directory, **SMALL) as other,
            append_lock(store_of(other).log, directory),
            pytest.raises(mq.StoreLocked),
        ):
            hasty.send(order(b"two"), dedup_key="key-1")
    else:
        with pytest.raises(mq.MessageInvalid):
            hasty.send(mq.Message("orders", b"two", delay_ms=1 << 50), dedup_key="key-1")
    assert patient.send(order(b"one"), dedup_key="key-1") == first
    assert count_of(broker) == 2


def test_a_wait_for_another_process_has_a_limit(broker: LocalBroker, directory: Path) -> None:
    producer, patient = producer_of(broker, timeout=0.05), producer_of(broker)
    first = patient.send(order(b"one"), dedup_key="key-1")
    with mq.open(directory, **SMALL) as other:
        keys = SentKeys(store_of(other), clock_ms=clock_ms)
        first_one = held(keys, digest_of("key", "orders", "key-1"), 0)
        for shard_key in (None, 1):
            with pytest.raises(mq.RequestTimeout):
                producer.send(order(b"one"), dedup_key="key-1", shard_key=shard_key)
        with pytest.raises(mq.RequestTimeout):
            producer.send_async(order(b"one"), dedup_key="key-1").result()
        patient.send(order(b"one"), dedup_key="key-2")
        first_one.close()
        assert patient.send(order(b"one"), dedup_key="key-1").msg_id == first.msg_id
        keys.close()


def test_a_damaged_first_message_does_not_count(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_of(broker)
    first = producer.send(order(b"one"), dedup_key="key-1")
    with monkeypatch.context() as patch:
        patch.setattr(reader.Reader, "record", lambda *_: None)
        second = producer.send(order(b"one"), dedup_key="key-1")
    assert second.msg_id != first.msg_id
    assert producer.send(order(b"one"), dedup_key="key-1").msg_id == second.msg_id


@pytest.mark.parametrize(
    "word", [{"dedup_key": "key"}, {"unique_id": "0123456789ABCDEF" * 2}], ids=["key", "id"]
)
def test_a_message_of_a_deleted_topic_does_not_count_before_the_topic_is_made_again(
    broker: LocalBroker, directory: Path, word: dict[str, Any]
) -> None:
    """The topic is made by the send itself, after the look for an earlier message."""
    producer_of(broker).send(order(b"one"), **word)
    with mq.open(directory, **SMALL) as other:
        other.delete_topic("orders")
        producer_of(other).send(order(b"two"), **word)
    found = [m.body for queue in broker.topic("orders").queues for m in queue.read(0).messages]
    assert found == [b"two"]


def test_a_message_that_retention_took_does_not_count(broker: LocalBroker) -> None:
    producer = producer_of(broker)
    first = producer.send(order(b"one"), dedup_key="key-1")
    while len(list((broker.path / "commitlog").iterdir())) < 4:
        mq.Producer(broker).send(order(b"x" * 100_000))
    assert broker.expire(retention_hours=0) > 0
    second = producer.send(order(b"one"), dedup_key="key-1")
    assert second.msg_id != first.msg_id
    assert producer.send(order(b"one"), dedup_key="key-1").msg_id == second.msg_id


def test_the_second_one_is_answered_when_the_first_ones_message_is_on_disk(
    directory: Path,
) -> None:
    with mq.open(directory, flush="sync", flush_interval=3600, **SMALL) as broker:
        producer = producer_of(broker)
        first = producer.send(order(b"one", wait=False), dedup_key="key-1")
        end = log_end(broker)
        assert store_of(broker).visible_end() < end
        assert producer.send(order(b"one"), dedup_key="key-1").msg_id == first.msg_id
        assert store_of(broker).visible_end() == end


def test_a_broker_that_only_reads_refuses(directory: Path, broker: LocalBroker) -> None:
    with mq.open(directory, read_only=True, **SMALL) as reading:
        queue = mq.MessageQueue("orders", "mq", 0)
        with pytest.raises(mq.NotPermitted):
            reading.append_once(queue, order(b"one"), b"one", 0, "key-1", 1000)
        with pytest.raises(mq.NotPermitted):
            mq.Once(reading, "billing")
    assert not (directory / "mq" / "once").exists()


def test_a_closed_broker_refuses(broker: LocalBroker) -> None:
    producer = producer_of(broker)
    producer.send(order(b"one"), dedup_key="key-1")
    broker.close()
    with pytest.raises(mq.BrokerClosed):
        producer.send(order(b"one"), dedup_key="key-1")


def in_a_forked_child(root: str) -> list[str]:
    """Names of the errors there, and in the parent afterwards."""
    with mq.open(root, **SMALL) as broker, producer_of(broker) as producer:
        once = mq.Once(broker, "billing")
        producer.send(order(b"one"), dedup_key="key-1")
        reading, writing = os.pipe()
        with once("held"):
            if os.fork() == 0:
                names = []
                calls: list[Callable[[], object]] = [
                    lambda: producer.send(order(b"one"), dedup_key="key-1"),
                    lambda: once.seen("key"),
                    lambda: once("key").__enter__(),
                    lambda: mq.Once(broker, "billing"),
                ]
                for refused in calls:
                    try:
                        refused()
                    except mq.MQError as error:
                        names.append(type(error).__name__)
                with mq.open(root, **SMALL) as own:
                    try:
                        with mq.Once(own, "billing", wait=0)("held"):
                            names.append("let in")
                    except mq.Retry:
                        names.append("Retry")
                os.write(writing, " ".join(names).encode())
                os._exit(0)
            os.wait()
        assert once.seen("held")
        producer.send(order(b"one"), dedup_key="key-1")
        return os.read(reading, 1000).decode().split()


def test_a_forked_child_is_refused_and_takes_no_lock_along(directory: Path) -> None:
    assert call(in_a_forked_child, str(directory)) == ["ForkedBroker"] * 4 + ["Retry"]


# Damage.


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 4097, 1 << 20])
def test_a_table_that_is_cut_is_made_anew(directory: Path, size: int) -> None:
    with mq.open(directory, **SMALL) as broker:
        first = producer_of(broker).send(order(b"one"), dedup_key="key-1")
    os.truncate(directory / "mq" / "dedup", size)
    with mq.open(directory, **SMALL) as broker:
        again = producer_of(broker).send(order(b"one"), dedup_key="key-1")
        assert again.offset_msg_id == first.offset_msg_id


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"mqdedup1"])
def test_a_table_of_garbage_is_not_believed(directory: Path, fill: bytes) -> None:
    with mq.open(directory, **SMALL) as broker:
        results = [producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}") for number in range(20)]
    path = directory / "mq" / "dedup"
    for begin in (0, 4096):  # with the header and without
        with path.open("r+b") as file:
            size = path.stat().st_size
            file.seek(begin)
            file.write((fill * size)[: size - begin])
        with mq.open(directory, **SMALL) as broker:
            for number, result in enumerate(results):
                again = producer_of(broker).send(order(b"one"), dedup_key=f"key-{number}")
                assert again.offset_msg_id == result.offset_msg_id


def test_another_thing_in_the_place_of_the_table_is_named(directory: Path) -> None:
    with mq.open(directory, **SMALL) as broker:
        broker.create_topic("orders", 1)
        (directory / "mq" / "dedup").mkdir()
        with pytest.raises(mq.StoreCorrupted, match="dedup"):
            producer_of(broker).send(order(b"one"), dedup_key="key-1")
        (directory / "mq" / "dedup").rmdir()
        producer_of(broker).send(order(b"one"), dedup_key="key-1")


def test_deleted_files_of_the_index_are_let_go(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that has forgotten keys has the index looked into, of which retention takes files."""
    monkeypatch.setitem(Dedup.__init__.__kwdefaults__, "bucket_count", 4)  # type: ignore[arg-type]  # it has some

    def deleted_files() -> int:
        found = 0
        for fd in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # One that was closed just now.
                link = str(fd.readlink())
                found += str(directory / "index") in link and "(deleted)" in link
        return found

    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        producer = producer_of(broker)
        held_files, taken = [], 0
        for round_ in range(8):
            before = {*(directory / "index").iterdir()} if (directory / "index").is_dir() else set()
            for number in range(200):
                producer.send(order(b"%d" % number), dedup_key=f"key-{round_}-{number}")
            broker.query("orders", "key-0")
            expire_at(broker, FOR_EVER_MS)
            taken += len(before - {*(directory / "index").iterdir()})
            producer.send(order(b"again"), dedup_key=f"key-{round_}-0")
            held_files.append(deleted_files())
        assert taken > 8
        assert max(held_files) < taken / 2, (held_files, taken)
        producer.close()
    assert deleted_files() == 0
