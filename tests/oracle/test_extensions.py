"""Extensions of queue units: mq reads those of RocketMQ's library, the library those of mq, and both write
the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.native import ffi, lib
from mq.store.queue.extensions import Extension, read_extension
from mq.store.queue.filters_version import filters_version
from tests.oracle.agreement import messages_of, string_hash
from tests.oracle.sending import open_store
from tests.support import oracle
from tests.support.appending import append_one
from tests.support.insides import queue_number, set_bitmap_source, store_of
from tests.support.oracle import Report, Sizes, put

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

SIZES = Sizes(queue_file_units=20, consume_queue_ext_file_size=512, property_crc=True)
TAGS = [None, "TagA", "标签", "polygenelubricants"]
BITS = ["", "ff", "00" * 14, "80" * 30]
TIME_MS = 1_700_000_000_123


class Told:
    """A source of bitmaps that does as the messages say, like that of the library's side."""

    def __init__(self, broker: LocalBroker) -> None:
        self.store = store_of(broker)

    def version(self) -> int:
        return filters_version(self.store)

    def bits(self, topic: str, properties: bytes, /) -> bytes:
        for piece in properties.split(b"\x02"):
            if piece.startswith(b"BITS\x01"):
                return bytes.fromhex(piece[5:].decode())
        return b""


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_store(directory, SIZES) as broker:
        assert isinstance(broker, LocalBroker)
        broker.create_topic("TopicA", 2)
        set_bitmap_source(broker, Told(broker))
        yield broker


def send(broker: LocalBroker, number: int) -> None:
    bits = BITS[number // 2 % len(BITS)]
    message = mq.Message(
        "TopicA", b"%d" % number, tags=TAGS[number % len(TAGS)], properties={"BITS": bits} if bits else None
    )
    append_one(broker, "TopicA", number % 2, message, message.body, 0)


def extensions(broker: LocalBroker, queue_id: int) -> list[Extension | None]:
    """Of every unit of a queue."""
    queue = broker.topic("TopicA").queues[queue_id]
    log, number = store_of(broker).log, queue_number(broker, queue.message_queue)
    values, size = ffi.new("int64_t[2]"), ffi.new("int32_t *")
    found = []
    for offset in range(queue.max_offset):
        assert lib.mq_queue_unit(log, number, offset, values, size, values + 1) == 0
        found.append(read_extension(log, number, values[1]))
    return found


def told(report: Report, queue_id: int) -> list[Extension | None]:
    """The same as the library tells it."""
    return [
        None
        if record.extension_tags_code is None or record.extension_time_ms is None
        else Extension(
            record.extension_tags_code, record.extension_time_ms, bytes.fromhex(record.extension_bits or "")
        )
        for record in report.queue("TopicA", queue_id)
    ]


def test_the_library_finds_the_extensions_of_mq(broker: LocalBroker, directory: Path, tmp_path: Path) -> None:
    for number in range(130):
        send(broker, number)
    ours = [extensions(broker, queue_id) for queue_id in (0, 1)]
    assert len(list((directory / "consumequeue_ext" / "TopicA" / "0").iterdir())) >= 3
    for end in ("running", "closed"):
        report = oracle.read(Path(shutil.copytree(directory, tmp_path / end)), SIZES)
        assert [told(report, queue_id) for queue_id in (0, 1)] == ours
        assert all(one is not None for queue in ours for one in queue)
        broker.close()


def test_mq_writes_the_bytes_that_the_library_writes(
    broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    for number in range(130):
        send(broker, number)
    messages = sorted(
        [message for queue_id in (0, 1) for message in messages_of(broker, "TopicA", queue_id)],
        key=lambda message: message.log_offset,
    )
    broker.close()
    steps = [
        put(
            message.topic,
            message.stored_body,
            queue_id=message.queue_id,
            properties=message.encoded.decode(),
            born_time_ms=message.born_time_ms,
            born_host=message.born_host,
            store_time_ms=message.store_time_ms,
            store_host=message.store_host,
        )
        for message in messages
    ]
    library = tmp_path / "library"
    library.mkdir()
    oracle.write(library, SIZES, steps)
    for part in ("consumequeue", "consumequeue_ext"):
        ours, theirs = (
            {
                path.relative_to(root): path.read_bytes()
                for path in sorted((root / part).rglob("0" * 10 + "*"))
            }
            for root in (directory, library)
        )
        assert {path.name for path in ours} >= {f"{0:020}"}
        assert ours == theirs


@pytest.mark.parametrize("end", ["close", "kill"])
def test_mq_finds_the_extensions_of_the_library_and_they_take_turns(end: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    steps = [
        put(
            "TopicA",
            b"%d" % number,
            queue_id=number % 2,
            properties={"TAGS": TAGS[number % 4] or "none", "BITS": BITS[number // 2 % 4]}
            if BITS[number // 2 % 4]
            else {"TAGS": TAGS[number % 4] or "none"},
            store_time_ms=TIME_MS + number,
        )
        for number in range(100)
    ]
    oracle.write(root, SIZES, steps, end="close" if end == "close" else "kill")
    with open_store(root, SIZES) as broker:
        assert isinstance(broker, LocalBroker)
        for queue_id in (0, 1):
            assert extensions(broker, queue_id) == [
                Extension(
                    string_hash(TAGS[number % 4] or "none"),
                    TIME_MS + number,
                    bytes.fromhex(BITS[number // 2 % 4]),
                )
                for number in range(queue_id, 100, 2)
            ]
        found = broker.topic("TopicA").queues[1].read(0, count_max=100, expression="TagA").messages
        assert [message.body for message in found] == [b"%d" % number for number in range(1, 100, 4)]
        set_bitmap_source(broker, Told(broker))
        for number in range(100, 160):
            send(broker, number)
        ours = [extensions(broker, queue_id) for queue_id in (0, 1)]
    assert list(problems(root)) == []
    report = oracle.read(root, SIZES, close=True)
    assert [told(report, queue_id) for queue_id in (0, 1)] == ours
    assert [len(queue) for queue in ours] == [80, 80]
    with open_store(root, SIZES) as again:
        assert isinstance(again, LocalBroker)
        assert [extensions(again, queue_id) for queue_id in (0, 1)] == ours
