"""Queues and topics after a crash: cut where the log is, made again where they are missing, no more than was.

As in test_recovery.py, directories are damaged by hand, and nothing of mq/ is believed in them.
"""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.directory.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mq.store.shared import control as control_module
from tests.support.insides import store_of, was_recovered
from tests.support.records import encode_record
from tests.support.store.small_store import (
    FOR_EVER_MS,
    QUEUE_FILE_UNITS,
    as_rocketmq_left_it,
    bodies,
    contents,
    crash_of,
    expire_at,
    fill,
    numbered,
    open_small,
    overwrite,
    overwrite_log,
    queue_files,
    recovered,
    send,
    zero_log_from,
)

BLANK_UNIT = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        yield broker


def test_units_that_were_not_written_are_made_again(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 30)
    crash_of(broker, directory)
    files = queue_files(directory, "A")
    overwrite(files[-2], 20, bytes(60))
    files[-1].unlink()
    with open_small(directory) as after:
        assert bodies(after) == numbered(30)


def test_a_queue_offset_that_no_log_of_this_length_can_have_is_not_reached_by_units(
    broker: LocalBroker, tmp_path: Path
) -> None:
    """A hostile record: its queue would fill the disk."""
    directory = tmp_path / "after"
    end = fill(broker, "A", 11)[-1]
    crash_of(broker, directory)
    zero_log_from(directory, end)
    now_ms = time.time_ns() // 1_000_000
    hostile = encode_record("A", 0, 10_000_000, end, b"hostile", b"", store_time_ms=now_ms)
    overwrite_log(directory, end, hostile)
    with open_small(directory) as after:
        assert bodies(after) == numbered(10)
        assert recovered(after).log_end == end + len(hostile)
    assert len(queue_files(directory, "A")) < 5
    assert "10000000 of A/0 is missing" in str(list(problems(directory)))


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Make a closed store one that the machine crashed with; the checkpoint vouches up to this time."""

    def crash(root: Path, physic_time: int) -> None:
        (root / "abort").write_text("1")
        write_checkpoint(root, Checkpoint(physic_time, physic_time, 0), sync=False)
        monkeypatch.setattr(control_module, "boot_id", lambda: b"another boot id.")

    return crash


vouched_or_not = pytest.mark.parametrize("vouched", [0, FOR_EVER_MS], ids=["no checkpoint", "checkpoint"])


@vouched_or_not
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
def test_one_deleted_queue_file_is_made_again(
    directory: Path, which: int, vouched: int, reboot: Callable[[Path, int], None]
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 90)
    reboot(directory, vouched)
    queue_files(directory, "A")[which].unlink()
    with open_small(directory) as after:
        assert bodies(after) == numbered(90)


@vouched_or_not
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
def test_one_deleted_queue_file_of_a_copied_store_is_made_again(
    broker: LocalBroker, directory: Path, which: int, vouched: int
) -> None:
    fill(broker, "A", 90)
    crash_of(broker, directory, physic_time=vouched)
    queue_files(directory, "A")[which].unlink()
    with open_small(directory) as after:
        assert bodies(after) == numbered(90)


def test_nothing_is_vouched_for_while_queues_are_made_anew(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 90)
    crash_of(broker, directory, physic_time=FOR_EVER_MS)
    queue_files(directory, "A")[1].unlink()
    with open_small(directory, duties=False) as after:  # They vouch again, 5 s later.
        # Had the power failed, units of which the old checkpoint spoke would have been gone.
        assert read_checkpoint(directory) == Checkpoint()
        assert bodies(after) == numbered(90)


@vouched_or_not
def test_a_queue_that_was_deleted_together_with_the_control_file_is_made_again(
    broker: LocalBroker, directory: Path, vouched: int
) -> None:
    broker.create_topic("A", 2)
    broker.create_topic("B", 1)
    fill(broker, "A", 2, 2)
    fill(broker, "B", 90)
    want = contents(broker)
    crash_of(broker, directory, physic_time=vouched)
    shutil.rmtree(directory / "consumequeue" / "A" / "1")
    with open_small(directory) as after:
        assert contents(after) == want


@vouched_or_not
@pytest.mark.parametrize("name", ["consumequeue", "consumequeue/A", "consumequeue/A/1", "index"])
def test_deleted_directories_of_what_is_derived_are_made_again(
    directory: Path, name: str, vouched: int, reboot: Callable[[Path, int], None]
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 2)
        broker.create_topic("B", 1)
        # Queue 1 of A ends long before the last file of the log begins.
        fill(broker, "A", 2, 2)
        fill(broker, "B", 90)
        want = contents(broker)
        broker.query("A", "message1")
    reboot(directory, vouched)
    shutil.rmtree(directory / name)
    with open_small(directory) as after:
        assert contents(after) == want
        assert [found.queue_id for found in after.query("A", "message1")] == [1]


@vouched_or_not
def test_all_queues_of_a_copied_store_are_made_again(
    broker: LocalBroker, directory: Path, vouched: int
) -> None:
    broker.create_topic("B", 1)
    fill(broker, "B", 2)
    fill(broker, "A", 90)
    want = contents(broker)
    crash_of(broker, directory, physic_time=vouched)
    shutil.rmtree(directory / "consumequeue")
    with open_small(directory) as after:
        assert contents(after) == want


def test_an_all_zero_queue_file_is_no_message(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 2 * QUEUE_FILE_UNITS)
    crash_of(broker, directory)
    phantom = directory / "consumequeue" / "A" / "7"
    phantom.mkdir()
    zeros = bytes(20 * QUEUE_FILE_UNITS)
    (phantom / f"{0:020}").write_bytes(zeros)
    (directory / "consumequeue" / "A" / "0" / f"{2 * 20 * QUEUE_FILE_UNITS:020}").write_bytes(zeros)
    with open_small(directory) as after:
        assert bodies(after) == numbered(2 * QUEUE_FILE_UNITS)
        assert ("A", 7) not in store_of(after).queues()
    # RocketMQ would take one left over for a message.
    assert all(any(file.read_bytes()) for file in (directory / "consumequeue").rglob("0*") if file.is_file())


@pytest.mark.parametrize(
    "path",
    [
        "consumequeue/A/0/00000000000000000400",
        "consumequeue/A/3/00000000000000000000",
        "index/20991231235959999",
        "checkpoint",
    ],
)
def test_empty_files_are_left_by_a_process_that_died_creating_them(
    broker: LocalBroker, directory: Path, path: str
) -> None:
    fill(broker, "A", 5 * QUEUE_FILE_UNITS)
    broker.query("A", "message0")
    crash_of(broker, directory)
    (directory / path).parent.mkdir(exist_ok=True)
    (directory / path).write_bytes(b"")
    with open_small(directory) as after:
        assert bodies(after) == numbered(5 * QUEUE_FILE_UNITS)
        assert [found.body for found in after.query("A", "message3")] == [b"message 3"]


def test_a_unit_that_points_elsewhere_is_made_anew(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as broker:
        broker.create_topic("A", 1)
        offsets = fill(broker, "A", 20)
    overwrite(queue_files(tmp_path / "store", "A")[1], 0, struct.pack(">q", offsets[7]))
    assert len(list(problems(tmp_path / "store"))) == 1
    with open_small(tmp_path / "store") as after:
        assert not was_recovered(after)
        queue = after.topic("A").queues[0]
        assert [message.body for message in queue.read(4).messages] == numbered(20, start=4)
        assert [message.body for message in queue.read(0).messages] == numbered(20)
    assert list(problems(tmp_path / "store")) == []


def test_a_log_that_does_not_begin_at_zero(broker: LocalBroker, directory: Path) -> None:
    broker.create_topic("B", 1)
    fill(broker, "B", 3)
    fill(broker, "A", 90)
    broker.flush()
    assert broker.expire(retention_hours=0) >= 3
    want = contents(broker)
    low = want["A", 0][0]
    assert low > 0
    assert want["B", 0] == (3, 3, [])
    crash_of(broker, directory)
    with open_small(directory) as after:
        assert contents(after) == want
        assert send(after, "B", 0, b"next").queue_offset == 3


def test_a_queue_that_begins_late_is_filled_up_before_its_first_message(
    broker: LocalBroker, directory: Path
) -> None:
    fill(broker, "A", 90)
    broker.flush()
    broker.expire(retention_hours=0)
    want = contents(broker)
    low = want["A", 0][0]
    crash_of(broker, directory)
    shutil.rmtree(directory / "consumequeue")
    with open_small(directory) as after:
        assert contents(after) == want
    first = queue_files(directory, "A")[0]
    start = int(first.name) // 20
    assert start == low // QUEUE_FILE_UNITS * QUEUE_FILE_UNITS
    units = first.read_bytes()
    assert units[: (low - start) * 20] == BLANK_UNIT * (low - start)
    assert units[(low - start) * 20 :][:20] != BLANK_UNIT
    with open_small(directory) as again:
        assert contents(again) == want


def with_topics(root: Path, *names: str) -> LocalBroker:
    broker = open_small(root)
    for name in names:
        broker.create_topic(name, 2)
    return broker


@pytest.mark.parametrize("queues", ["kept", "deleted"])
@pytest.mark.parametrize("kind", ["crash", "closed"])
def test_a_deleted_topic_stays_deleted(tmp_path: Path, directory: Path, kind: str, queues: str) -> None:
    with with_topics(tmp_path / "before", "A", "B") as broker:
        fill(broker, "A", 9, 2)
        fill(broker, "B", 9, 2)
        broker.delete_topic("A")
        want = contents(broker)
        _leave(broker, directory, kind, queues)
    with open_small(directory) as after:
        assert contents(after) == want
        assert after.topics() == ["B"]
        after.create_topic("A", 2)
        assert contents(after) == {**want, ("A", 0): (0, 0, []), ("A", 1): (0, 0, [])}


@pytest.mark.parametrize("queues", ["kept", "deleted"])
@pytest.mark.parametrize("kind", ["crash", "closed"])
@pytest.mark.parametrize("again", [0, 1, 30], ids=["nothing", "less", "more"])
def test_a_topic_made_again_does_not_get_its_old_messages_back(
    tmp_path: Path, directory: Path, kind: str, queues: str, again: int
) -> None:
    with with_topics(tmp_path / "before", "A", "B") as broker:
        fill(broker, "A", 9, 2, "old")
        fill(broker, "B", 1)
        broker.delete_topic("A")
        broker.create_topic("A", 2)
        fill(broker, "A", again, 1, "new")
        want = contents(broker)
        _leave(broker, directory, kind, queues)
    with open_small(directory) as after:
        assert contents(after) == want


def test_a_key_of_a_deleted_topic_is_not_found_in_the_one_made_again(directory: Path) -> None:
    with with_topics(directory, "A") as broker:
        send(broker, "A", 0, b"old", keys="k")
        assert len(broker.query("A", "k")) == 1
        broker.delete_topic("A")
        broker.create_topic("A", 2)
        assert broker.query("A", "k") == []
        send(broker, "A", 0, b"new", keys="k")
        assert [found.body for found in broker.query("A", "k")] == [b"new"]


def _leave(broker: LocalBroker, target: Path, kind: str, queues: str) -> None:
    if kind == "crash":
        crash_of(broker, target)
    else:
        as_rocketmq_left_it(broker, target)
    if queues == "deleted":
        shutil.rmtree(target / "consumequeue")


@pytest.mark.parametrize("lost", ["its directory", "all queues", "a part of its file"])
def test_a_queue_whose_messages_are_all_deleted_goes_on_where_it_was(directory: Path, lost: str) -> None:
    with open_small(directory) as broker:
        for topic in ("A", "B"):
            broker.create_topic(topic, 1)
        fill(broker, "A", 20)
        fill(broker, "B", 200)
        assert expire_at(broker, FOR_EVER_MS) > 0
        queue = broker.topic("A").queues[0]
        assert (queue.min_offset, queue.max_offset) == (20, 20)
    if lost == "its directory":
        shutil.rmtree(directory / "consumequeue" / "A")
    elif lost == "all queues":
        shutil.rmtree(directory / "consumequeue")
    else:
        for file in queue_files(directory, "A"):
            with file.open("r+b") as opened:
                opened.truncate(60)
    with open_small(directory) as after:
        queue = after.topic("A").queues[0]
        assert (queue.min_offset, queue.max_offset) == (20, 20)
        assert send(after, "A", 0, b"new").queue_offset == 20
    with open_small(directory) as again:
        assert contents(again)["A", 0] == (20, 21, [(20, b"new")])


def test_what_only_the_files_of_a_queue_knew_is_given_out_to_nobody_again(
    directory: Path, reboot: Callable[[Path, int], None]
) -> None:
    """Retention took all messages of the queue; of its file names and of the control file a power cut kept
    what was before, and of the first files nothing."""
    control = directory / "mq" / "control"
    with open_small(directory) as broker:
        for topic in ("A", "B"):
            broker.create_topic(topic, 1)
        fill(broker, "A", 5)
        before = control.read_bytes()
        fill(broker, "A", 40)
        fill(broker, "B", 400)
        files = {file: file.read_bytes() for file in queue_files(directory, "A")}
        assert expire_at(broker, FOR_EVER_MS) > 0
        assert broker.topic("A").queues[0].min_offset == 45
    control.write_bytes(before)
    for file, content in [*files.items()][-2:]:
        file.write_bytes(content)
    reboot(directory, 0)
    with open_small(directory) as after:
        assert send(after, "A", 0, b"new").queue_offset >= 45


def test_a_name_that_a_power_cut_took_is_of_no_queue(
    directory: Path, reboot: Callable[[Path, int], None]
) -> None:
    """Of the control file one page came to disk and another did not."""
    control = directory / "mq" / "control"
    with open_small(directory) as broker:
        for topic in ("first-topic", "other-topic"):
            broker.create_topic(topic, 1)
            fill(broker, topic, 200)
        assert expire_at(broker, FOR_EVER_MS) > 0
        expected = contents(broker)
        torn = control.read_bytes().replace(b"first-topic", bytes(len("first-topic")))
    control.write_bytes(torn)
    reboot(directory, 0)
    with open_small(directory) as after:
        assert contents(after) == expected
    assert list(problems(directory)) == []


def test_deleted_topics_are_none_for_who_only_reads_after_a_crash(directory: Path) -> None:
    with open_small(directory) as broker:
        for topic in ("A", "B"):
            broker.create_topic(topic, 1)
        fill(broker, "A", 60)
        fill(broker, "B", 60)
        for _ in range(2):
            broker.delete_topic("A")
            broker.create_topic("A", 1)
            fill(broker, "A", 30)
        broker.delete_topic("A")
        fill(broker, "B", 10)
        crash_of(broker, directory.with_name("after"))
    after = directory.with_name("after")
    assert [*problems(after)] == []
    with open_small(after, read_only=True) as reader:
        assert reader.topics() == ["B"]
    with open_small(after) as writer:
        assert writer.topics() == ["B"]
