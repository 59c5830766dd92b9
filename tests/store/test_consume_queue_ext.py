"""Extensions of queue units: what is written of each message, what filters make of it, and what is left of it
by crashes, retention and damage."""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.filter_bitmaps import BLOOM
from mq.broker.local import LocalBroker
from mq.filter.tags import tag_hash
from mq.store.check import problems
from mq.store.native import ffi, lib
from mq.store.queue.extensions import (
    Extension,
    Marks,
    extension_files,
    read_extension,
)
from mq.store.queue.filters_version import filters_changed, filters_version
from mq.store.shared.waiting import Wait
from tests.support.appending import append_many
from tests.support.insides import log_end, queue_number, reader_of, set_bitmap_source, store_of, was_recovered
from tests.support.store.peer import Peer
from tests.support.store.small_store import (
    FOR_EVER_MS,
    SMALL,
    as_rocketmq_left_it,
    crash_of,
    messages_of,
    open_small,
    overwrite,
    queue_files,
    send,
    zero_log_from,
)

SIZES: dict[str, Any] = {"consume_queue_ext_file_size": 256, "queue_file_units": 50}
OPTIONS: dict[str, Any] = {**SIZES, "enable_consume_queue_ext": True}
ADDRESS_MIN = -(1 << 63)
EVERY = frozenset({tag_hash("wanted")})
HEAD = struct.Struct(">hqqh")


def open_extending(path: Path, **options: Any) -> LocalBroker:
    return mq.open(path, **{**SMALL, **OPTIONS, **options})


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_extending(directory) as broker:
        broker.create_topic("A", 2)
        yield broker


def number(broker: LocalBroker, topic: str = "A", queue_id: int = 0) -> int:
    return queue_number(broker, broker.topic(topic).queues[queue_id].message_queue)


def code(broker: LocalBroker, offset: int, queue_id: int = 0) -> int:
    """What stands in the unit."""
    values, size = ffi.new("int64_t[2]"), ffi.new("int32_t *")
    found = lib.mq_queue_unit(
        store_of(broker).log, number(broker, queue_id=queue_id), offset, values, size, values + 1
    )
    assert found == 0
    return int(values[1])


def is_address(broker: LocalBroker, offset: int, queue_id: int = 0) -> bool:
    return code(broker, offset, queue_id) < -(1 << 31)


def extension(broker: LocalBroker, offset: int, queue_id: int = 0) -> Extension | None:
    return read_extension(
        store_of(broker).log, number(broker, queue_id=queue_id), code(broker, offset, queue_id)
    )


def bodies(broker: LocalBroker, expression: str = "*", queue_id: int = 0) -> list[bytes]:
    queue, offset, found = broker.topic("A").queues[queue_id], 0, []
    while offset < queue.max_offset:
        result = queue.read(max(offset, queue.min_offset), expression=expression)
        found += [message.body for message in result.messages]
        offset = result.next_offset
    return found


def test_the_unit_has_the_address_and_the_extension_what_the_unit_would_say(broker: LocalBroker) -> None:
    for count in range(3):
        send(broker, "A", 0, b"%d" % count, tags="wanted" if count else None)
    assert [code(broker, offset) for offset in range(3)] == [ADDRESS_MIN + 20 * n for n in range(3)]
    for message in messages_of(broker.topic("A").queues[0]):
        hashed = tag_hash(message.tags) if message.tags else 0
        assert extension(broker, message.queue_offset) == Extension(hashed, message.store_time_ms, b"")
    (file,) = extension_files(broker.path, "A", 0)
    first = messages_of(broker.topic("A").queues[0])[0]
    assert file.read_bytes()[:20] == HEAD.pack(20, 0, first.store_time_ms, 0)
    assert extension_files(broker.path, "A", 1) == []


def test_four_bytes_of_a_file_stay_behind_its_last_extension(broker: LocalBroker) -> None:
    for count in range(30):
        send(broker, "A", 0, b"%d" % count)
    files = extension_files(broker.path, "A", 0)
    assert [int(file.name) for file in files] == [0, 256, 512]
    # Twelve of 20 bytes, and 16 are left, of which an extension may not take any.
    data = files[0].read_bytes()
    assert data[240:242] == b"\xff\xff"
    assert data[242:] == bytes(14)
    assert code(broker, 12) == ADDRESS_MIN + 256
    assert all(extension(broker, offset) for offset in range(30))


def test_a_batch_has_an_extension_for_each(broker: LocalBroker) -> None:
    append_many(broker, "A", 0, [mq.Message("A", b"%d" % n, tags=f"tag{n}") for n in range(15)])
    found = [extension(broker, offset) for offset in range(15)]
    assert [one.tags_code for one in found if one] == [tag_hash(f"tag{n}") for n in range(15)]


def test_tags_are_found_by_their_extensions(broker: LocalBroker) -> None:
    for count in range(40):
        send(broker, "A", 0, b"%d" % count, tags="wanted" if count % 7 == 0 else f"tag{count}")
    assert bodies(broker, "wanted") == [b"%d" % count for count in range(0, 40, 7)]
    assert bodies(broker, "wanted || tag8") == [b"0", b"7", b"8", b"14", b"21", b"28", b"35"]
    assert bodies(broker) == [b"%d" % count for count in range(40)]
    wait = Wait(store_of(broker), [(number(broker), 1, EVERY)])
    assert wait.sleep(0) == 0
    assert wait.offsets == [7]


def test_units_with_and_without_extensions_follow_each_other(broker: LocalBroker, directory: Path) -> None:
    with Peer(directory, **SIZES) as plain, Peer(directory, **OPTIONS) as other:
        for turn in range(5):
            send(broker, "A", 0, b"here %d" % turn, tags="wanted")
            plain.send("A", 0, b"plain")
            other.send("A", 0, b"there")
    assert [is_address(broker, offset) for offset in range(15)] == [True, False, True] * 5
    assert [extension(broker, offset) is not None for offset in range(15)] == [True, False, True] * 5
    assert bodies(broker, "wanted") == [b"here %d" % turn for turn in range(5)]


class Odd:
    """A source of bitmaps that marks every second message as unwanted by all groups."""

    def __init__(self, broker: LocalBroker) -> None:
        self.store = store_of(broker)
        self.turns = itertools.count()
        self.positions = BLOOM.positions("group#A")
        self.late = 0

    def version(self) -> int:
        return filters_version(self.store) - self.late

    def bits(self, topic: str, properties: bytes, /) -> bytes:
        return BLOOM.bits(["group#A"] if next(self.turns) % 2 else [])


def pulled(broker: LocalBroker, marks: Marks) -> list[int]:
    queue = broker.topic("A").queues[0].message_queue
    found = reader_of(broker).marked_pull(queue, marks, 0, 100, 1 << 20, 0.0)
    return [message.queue_offset for message in found.messages]


def test_bits_keep_from_a_pull_what_is_surely_not_wanted(broker: LocalBroker) -> None:
    set_bitmap_source(broker, odd := Odd(broker))
    append_many(broker, "A", 0, [mq.Message("A", b"%d" % n) for n in range(10)])
    end = log_end(broker)
    for count in range(10, 20):
        send(broker, "A", 0, b"%d" % count)
    found = extension(broker, 1)
    assert found is not None
    assert found.bitmap == BLOOM.bits(["group#A"])
    size = BLOOM.bit_count // 8
    assert pulled(broker, Marks(odd.positions, size, 0)) == list(range(1, 20, 2))
    # Of messages before the consumer's filter was born, the bits say nothing; nor do those of another size.
    assert pulled(broker, Marks(odd.positions, size, end)) == [*range(10), *range(11, 20, 2)]
    assert pulled(broker, Marks(odd.positions, size + 1, 0)) == list(range(20))
    assert pulled(broker, Marks((), size, 0)) == list(range(20))
    assert pulled(broker, Marks((1 << 20, -1), size, 0)) == list(range(20))
    assert bodies(broker) == [b"%d" % count for count in range(20)]


def test_bits_that_do_not_know_the_newest_filter_are_not_stored(broker: LocalBroker) -> None:
    set_bitmap_source(broker, odd := Odd(broker))
    for _ in range(2):
        send(broker, "A", 0, b"x")
    odd.late = 1
    assert filters_changed(store_of(broker)) == log_end(broker)
    for _ in range(2):
        send(broker, "A", 0, b"x")
    found = [extension(broker, offset) for offset in range(4)]
    assert [len(one.bitmap) for one in found if one] == [14, 14, 0, 0]
    assert pulled(broker, Marks(odd.positions, 14, 0)) == [1, 2, 3]


def test_a_store_that_is_closed_and_opened_goes_on(broker: LocalBroker, directory: Path) -> None:
    for count in range(17):
        send(broker, "A", 0, b"%d" % count)
    broker.close()
    file = extension_files(directory, "A", 0)[-1]
    assert not any(file.read_bytes()[5 * 20 :])
    with open_extending(directory) as again:
        send(again, "A", 0, b"17")
        assert code(again, 17) == ADDRESS_MIN + 256 + 100
        assert all(extension(again, offset) for offset in range(18))


@pytest.mark.parametrize("vouched", [0, FOR_EVER_MS])
def test_a_recovery_finds_where_extensions_end(
    broker: LocalBroker, directory: Path, tmp_path: Path, vouched: int
) -> None:
    for count in range(17):
        send(broker, "A", 0, b"%d" % count, tags="wanted")
    for root in (
        crash_of(broker, tmp_path / "crashed", physic_time=vouched),
        as_rocketmq_left_it(broker, tmp_path / "closed"),
    ):
        # What a machine that crashes may leave behind the end.
        file = extension_files(root, "A", 0)[-1]
        overwrite(file, 100, HEAD.pack(20, 1, 2, 0))
        (file.parent / f"{512:020}").write_bytes(bytes(256))
        with open_extending(root) as again:
            assert was_recovered(again)
            assert [int(file.name) for file in extension_files(root, "A", 0)] == [0, 256]
            assert not any(file.read_bytes()[100:])
            assert all(extension(again, offset) for offset in range(17))
            send(again, "A", 0, b"17")
            assert code(again, 17) == ADDRESS_MIN + 256 + 100
        assert list(problems(root)) == []


def test_messages_that_a_crash_took_take_their_extensions_along(
    broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    sent = [send(broker, "A", 0, b"%d" % count) for count in range(17)]
    root = crash_of(broker, tmp_path / "crashed")
    zero_log_from(root, int(sent[9].offset_msg_id[-16:], 16))
    with open_extending(root) as again:
        assert bodies(again) == [b"%d" % count for count in range(9)]
        send(again, "A", 0, b"again", tags="wanted")
        assert code(again, 9) == ADDRESS_MIN + 180
        assert len(extension_files(root, "A", 0)) == 1
        assert bodies(again, "wanted") == [b"again"]
    assert list(problems(root)) == []


def test_extensions_that_a_crash_took_are_not_missed(
    broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    """The units that have lost theirs say the same without them."""
    for count in range(17):
        send(broker, "A", 0, b"%d" % count, tags="wanted" if count % 2 else "other")
    root = crash_of(broker, tmp_path / "crashed")
    overwrite(extension_files(root, "A", 0)[0], 100, bytes(156))
    with open_extending(root) as again:
        assert [is_address(again, offset) for offset in range(17)] == [True] * 5 + [False] * 7 + [True] * 5
        assert bodies(again, "wanted") == [b"%d" % count for count in range(1, 17, 2)]
    assert list(problems(root)) == []


@pytest.mark.parametrize("vouched", [0, FOR_EVER_MS])
def test_no_extension_is_put_where_a_lost_one_was(
    broker: LocalBroker, directory: Path, tmp_path: Path, vouched: int
) -> None:
    """A unit that the checkpoint vouches for keeps its address; nothing else may ever lie there."""
    send(broker, "A", 1, b"so that no queue is without files")
    for count in range(90):
        send(broker, "A", 0, b"%d" % count, tags="wanted" if count % 2 else "other")
    root = crash_of(broker, tmp_path / "crashed", physic_time=vouched)
    shutil.rmtree(root / "consumequeue_ext")
    with open_extending(root) as again:
        lost = sum(is_address(again, offset) for offset in range(90)) + is_address(again, 0, 1)
        for _ in range(17):
            send(again, "A", 0, b"new", tags="third")
        assert set(bodies(again, "wanted")) == {b"%d" % count for count in range(1, 90, 2)}
        assert bodies(again, "third") == [b"new"] * 17
    assert bool(lost) == bool(vouched)
    # The next one to open it finds them missing, and has the units say the same without them.
    with open_extending(root) as third:
        assert not any(is_address(third, offset) for offset in range(73))
        assert set(bodies(third, "wanted")) == {b"%d" % count for count in range(1, 90, 2)}
    assert list(problems(root)) == []


def test_files_that_are_taken_away_from_a_live_store_are_made_anew(
    broker: LocalBroker, directory: Path
) -> None:
    for count in range(5):
        send(broker, "A", 0, b"%d" % count, tags="wanted")
    shutil.move(directory / "consumequeue_ext", directory / "mq" / "kept")
    with Peer(directory, **OPTIONS) as peer:
        peer.do("send(broker, 'A', 0, b'5', tags='wanted')")
        assert peer.ask(
            "[m.body for m in broker.topic('A').queues[0].read(0, expression='wanted').messages]"
        ) == [b"%d" % count for count in range(6)]
    (file,) = extension_files(directory, "A", 0)
    assert file.read_bytes()[100:102] == b"\0\x14"
    (kept,) = extension_files(directory / "mq" / "kept" / "..", "A", 0) or [
        directory / "mq" / "kept" / "A" / "0" / f"{0:020}"
    ]
    overwrite(file, 0, kept.read_bytes()[:100])


def test_retention_takes_the_files_of_what_is_gone(broker: LocalBroker, directory: Path) -> None:
    for count in range(100):
        send(broker, "A", 0, b"%d" % count)
    before = len(extension_files(directory, "A", 0))
    assert broker.expire(retention_hours=0) > 0
    files = extension_files(directory, "A", 0)
    queue = broker.topic("A").queues[0]
    assert 0 < queue.min_offset < 100
    assert 0 < len(files) < before
    assert int(files[0].name) <= code(broker, queue.min_offset) - ADDRESS_MIN < int(files[0].name) + 256
    assert all(extension(broker, offset) for offset in range(queue.min_offset, 100))


def test_a_deleted_topic_takes_its_extensions_along(broker: LocalBroker, directory: Path) -> None:
    for _ in range(15):
        send(broker, "A", 0, b"old", tags="old")
    broker.delete_topic("A")
    assert extension_files(directory, "A", 0) == []
    broker.create_topic("A", 2)
    send(broker, "A", 0, b"new", tags="wanted")
    assert code(broker, 0) == ADDRESS_MIN
    assert bodies(broker, "wanted") == [b"new"]


def test_a_read_only_process_finds_tags_by_extensions(
    broker: LocalBroker, directory: Path, tmp_path: Path
) -> None:
    for count in range(17):
        send(broker, "A", 0, b"%d" % count, tags="wanted" if count % 2 else "other")
    root = crash_of(broker, tmp_path / "crashed")
    before = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    with mq.open(root, read_only=True) as reader:
        assert isinstance(reader, LocalBroker)
        assert bodies(reader, "wanted") == [b"%d" % count for count in range(1, 17, 2)]
        assert all(extension(reader, offset) for offset in range(17))
    after = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    assert {path: data for path, data in after.items() if path in before} == before


def test_a_sender_that_is_killed_anywhere_leaves_extensions_that_fit(directory: Path) -> None:
    for turn in range(8):
        peer = Peer(directory, **OPTIONS)
        peer.do("broker.create_topic('A', 2)")
        # Slower the longer it lives: all that it sends is looked at, also where this process is halted.
        peer.post(
            "do",
            "import itertools\n"
            "for number in itertools.count():\n"
            "    send(broker, 'A', 0, b'x' * 50, tags='wanted')\n"
            "    time.sleep(max(0, number - 500) * 1e-5)",
        )
        with open_extending(directory) as broker:
            queue = broker.topic("A").queues[0]
            before = queue.max_offset
            assert queue.read(before, wait=120.0).messages
            peer.kill()
            send(broker, "A", 0, b"%d" % turn, tags="last")
            end = queue.max_offset
            found = [extension(broker, offset) for offset in range(before, end)]
            assert [one.tags_code for one in found if one] == [tag_hash("wanted")] * (end - before - 1) + [
                tag_hash("last")
            ]


HOSTILE = {
    "beyond the end": ADDRESS_MIN + (1 << 40),
    "the largest address": -(1 << 31) - 1,
    "in the middle of one": ADDRESS_MIN + 3,
    "of another message": ADDRESS_MIN + 40,
    "behind the last one": ADDRESS_MIN + 340,
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_a_unit_with_a_wrong_address_is_reported_and_its_message_may_be_wanted(
    broker: LocalBroker, directory: Path, what: str
) -> None:
    for count in range(17):
        send(broker, "A", 0, b"%d" % count, tags="wanted" if count % 2 else "other")
    file = queue_files(directory, "A")[0]
    honest = file.read_bytes()[5 * 20 + 12 : 6 * 20]
    overwrite(file, 5 * 20 + 12, struct.pack(">q", HOSTILE[what]))
    wrong = b"5" if what != "of another message" else b""
    assert [one for one in bodies(broker, "wanted") if one != b"5"] == [
        b"%d" % count for count in range(1, 17, 2) if count != 5
    ]
    assert (wrong in bodies(broker, "wanted")) == (what != "of another message")
    (said,) = problems(directory)
    assert "unit 5 of A/0 has a wrong extension, or none" in said
    send(broker, "A", 0, b"goes on")
    overwrite(file, 5 * 20 + 12, honest)


@pytest.mark.parametrize("head", [(0, 0), (-1, 0), (19, -1), (21, 0), (20, 1), (32767, 32747), (256, 236)])
def test_an_extension_with_wrong_sizes_is_none(
    broker: LocalBroker, directory: Path, head: tuple[int, int]
) -> None:
    for count in range(17):
        send(broker, "A", 0, b"%d" % count, tags="other")
    file = extension_files(directory, "A", 0)[0]
    honest = file.read_bytes()[60:80]
    overwrite(file, 60, HEAD.pack(head[0], tag_hash("third"), 1, head[1]))
    assert extension(broker, 3) is None
    queue = broker.topic("A").queues[0].message_queue
    assert reader_of(broker).pull(queue, 0, 10, 1 << 20, EVERY, 0.0).messages[0].body == b"3"
    assert any("unit 3 of A/0" in said for said in problems(directory))
    overwrite(file, 60, honest)


def test_a_file_of_another_length_is_made_anew(broker: LocalBroker, directory: Path) -> None:
    for count in range(17):
        send(broker, "A", 0, b"%d" % count, tags="wanted")
    broker.close()
    file = extension_files(directory, "A", 0)[0]
    with file.open("r+b") as stretched:
        stretched.truncate(255)
    with open_extending(directory) as again:
        assert bodies(again, "wanted") == [b"%d" % count for count in range(17)]
    assert not file.exists()
    assert list(problems(directory)) == []


def test_the_usual_size_is_rocketmqs(directory: Path) -> None:
    with open_small(directory, enable_consume_queue_ext=True) as broker:
        broker.create_topic("A", 1)
        send(broker, "A", 0, b"x")
        (file,) = extension_files(directory, "A", 0)
        assert file.stat().st_size == 48 << 20
        assert file.stat().st_blocks * 512 < 1 << 20
    with pytest.raises(mq.ConfigMismatch):
        open_small(directory, consume_queue_ext_file_size=256)
