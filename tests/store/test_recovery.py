"""The machine crashed, or someone else closed the store: what is whole comes back, and nothing that is not.

The directories are made by mq, then damaged by hand as a crash of the machine, a careless user or a RocketMQ
broker leaves them. Nothing of mq/ is believed in them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.shared import control as control_module
from tests.support.insides import was_recovered
from tests.support.store.small_store import (
    FOR_EVER_MS,
    LOG_FILE_SIZE,
    QUEUE_FILE_UNITS,
    SMALL,
    Contents,
    as_rocketmq_left_it,
    bodies,
    contents,
    crash_of,
    fill,
    log_files,
    log_offset_of,
    messages_of,
    numbered,
    open_small,
    overwrite_log,
    queue_files,
    recovered,
    send,
    zero_log_from,
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        yield broker


def test_what_the_checkpoint_vouches_for_is_not_read_again(broker: LocalBroker, directory: Path) -> None:
    offsets = fill(broker, "A", 90)
    last_file = offsets[-1] // LOG_FILE_SIZE * LOG_FILE_SIZE
    assert last_file >= 3 * LOG_FILE_SIZE
    crash_of(broker, directory, physic_time=FOR_EVER_MS)
    with open_small(directory) as after:
        assert recovered(after).records == sum(offset >= last_file for offset in offsets)
        assert bodies(after) == numbered(90)


@pytest.mark.parametrize(
    "times", [(0, FOR_EVER_MS), (FOR_EVER_MS, 0), (0, 0)], ids=["log", "queues", "neither"]
)
def test_without_a_checkpoint_for_both_all_is_read(
    broker: LocalBroker, directory: Path, times: tuple[int, int]
) -> None:
    fill(broker, "A", 90)
    crash_of(broker, directory, physic_time=times[0], logics_time=times[1])
    with open_small(directory) as after:
        assert recovered(after).records == 90
        assert bodies(after) == numbered(90)


def test_a_checkpoint_starts_at_the_last_file_that_begins_three_seconds_before_it(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 90)
        first = broker.topic("A").queues[0].read(0).messages[0]
        # All files were begun within these three seconds: none is old enough.
        crash_of(broker, directory, physic_time=first.store_time_ms + 2999)
    with open_small(directory) as after:
        assert recovered(after).records == 90


@pytest.mark.parametrize("content", [b"", b"\0" * 16, b"\xff" * 4096], ids=["empty", "short", "negative"])
def test_a_checkpoint_that_is_nonsense_costs_only_work(
    broker: LocalBroker, directory: Path, content: bytes
) -> None:
    fill(broker, "A", 30)
    crash_of(broker, directory)
    (directory / "checkpoint").write_bytes(content)
    with open_small(directory) as after:
        assert bodies(after) == numbered(30)


@pytest.mark.parametrize(
    ("inside", "data"),
    [
        (0, b"\x7f\xff\xff\xff"),
        (4, b"\0\0\0\0"),
        (20, b"\1"),
        (28, b"\1"),
        (40, b"\1"),  # the first byte, which is 0 for a long time yet; others are of the hour
        (92, b"?"),
        (-1, b"?"),
    ],
    ids=["size", "magic", "queue offset", "log offset", "born time", "body", "last byte"],
)
def test_the_log_ends_before_the_first_torn_record(
    broker: LocalBroker, directory: Path, inside: int, data: bytes
) -> None:
    offsets = fill(broker, "A", 30)
    crash_of(broker, directory)
    at = offsets[17] + inside if inside >= 0 else offsets[18] - 1
    overwrite_log(directory, at, data)
    with open_small(directory) as after:
        assert recovered(after).log_end == offsets[17]
        assert bodies(after) == numbered(17)
        # The queue goes on where the log does.
        assert send(after, "A", 0, b"next").queue_offset == 17
        assert bodies(after) == [*numbered(17), b"next"]
        assert [found.body for found in after.query("A", "message16")] == [b"message 16"]
        assert after.query("A", "message17") == []


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "crashed"])
def test_a_copy_that_leaves_zeros_out_has_every_message(
    tmp_path: Path, directory: Path, *, is_closed: bool
) -> None:
    """What cp --sparse=always, rsync -S and tar -S make of a log with zeros in it: files with holes."""
    sent = [b"%d" % number + bytes(12_000) for number in range(9)]
    sizes = {**SMALL, "commitlog_file_size": 65536}
    with mq.open(tmp_path / "before", **sizes) as broker:
        broker.create_topic("A", 1)
        producer = mq.Producer(broker, compress_over=1 << 20)
        for body in sent:
            producer.send(mq.Message("A", body))
        if not is_closed:
            crash_of(broker, tmp_path / "whole")
    whole = tmp_path / ("before" if is_closed else "whole")
    subprocess.run(["cp", "-R", "--sparse=always", f"{whole}/.", directory], check=True)
    with log_files(directory)[1].open("rb") as file:  # the last one that has messages
        assert os.lseek(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_HOLE), os.SEEK_DATA) > 0
    for _ in range(2):
        with mq.open(directory, **sizes) as after:
            assert bodies(after) == sent
            sent.append(b"next %d" % len(sent))
            send(after, "A", 0, sent[-1])
    assert list(problems(directory)) == []


def test_what_lies_behind_the_cut_is_zeroed(broker: LocalBroker, directory: Path) -> None:
    offsets = fill(broker, "A", 90)
    crash_of(broker, directory)
    overwrite_log(directory, offsets[17], bytes(8))
    with open_small(directory) as after:
        end = recovered(after).log_end
        assert end == offsets[17]
    files = log_files(directory)
    assert int(files[-1].name) <= end
    assert not any(files[-1].read_bytes()[end - int(files[-1].name) :])
    assert not any(queue_files(directory, "A")[-1].read_bytes()[17 % QUEUE_FILE_UNITS * 20 :])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[mq.MessageExt]]:
    """A crashed store of three files, and all its messages in log order."""
    root = tmp_path_factory.mktemp("written")
    with open_small(root / "live") as broker:
        broker.create_topic("A", 2)
        fill(broker, "A", 50, 2)
        messages = [message for queue in broker.topic("A").queues for message in messages_of(queue)]
        return crash_of(broker, root / "crashed"), sorted(messages, key=lambda message: message.log_offset)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 3 * LOG_FILE_SIZE))
def test_whatever_byte_the_log_was_written_up_to_the_whole_records_before_it_are_found(
    tmp_path: Path, written: tuple[Path, list[mq.MessageExt]], cut: int
) -> None:
    crashed, messages = written
    after = tmp_path / "after"
    shutil.rmtree(after, ignore_errors=True)
    shutil.copytree(crashed, after)
    zero_log_from(after, cut)
    whole = [message for message in messages if message.log_offset + message.store_size <= cut]
    with open_small(after) as broker:
        for queue in broker.topic("A").queues:
            found = messages_of(queue)
            assert found == [message for message in whole if message.queue_id == queue.queue_id]
            assert send(broker, "A", queue.queue_id, b"next").queue_offset == len(found)
    assert list(problems(after)) == []


def test_a_record_that_rotted_is_lost_alone_if_the_checkpoint_vouches_for_what_follows(
    broker: LocalBroker, tmp_path: Path
) -> None:
    offsets = fill(broker, "A", 30)
    after_crash = crash_of(broker, tmp_path / "after", physic_time=FOR_EVER_MS, logics_time=0)
    overwrite_log(after_crash, offsets[17] + 92, b"?")
    with open_small(after_crash) as after:
        assert recovered(after).damaged == [offsets[17]]
        queue = after.topic("A").queues[0]
        assert [message.body for message in queue.read(0).messages] == numbered(17)
        with pytest.raises(mq.StoreCorrupted) as caught:
            queue.read(17)
        assert caught.value.log_offset == offsets[17]
        assert caught.value.queue_offset == 17
        assert [message.body for message in queue.read(18).messages] == numbered(30, start=18)
        assert send(after, "A", 0, b"next").queue_offset == 30
    assert len(list(problems(after_crash))) >= 1


def test_a_zeroed_tail_ends_the_log_though_the_queues_were_written_further(
    broker: LocalBroker, directory: Path
) -> None:
    offsets = fill(broker, "A", 40)
    crash_of(broker, directory)
    zero_log_from(directory, offsets[21])
    with open_small(directory) as after:
        assert bodies(after) == numbered(21)
        assert send(after, "A", 0, b"next").queue_offset == 21


def test_an_all_zero_log_is_an_empty_one(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 40)
    crash_of(broker, directory)
    zero_log_from(directory, 0)
    with open_small(directory) as after:
        assert contents(after) == {("A", 0): (0, 0, [])}
        assert send(after, "A", 0, b"first").queue_offset == 0


@pytest.mark.parametrize("size", [LOG_FILE_SIZE, 0], ids=["zero", "empty"])
def test_a_file_made_ahead_of_the_log_is_no_part_of_it(
    broker: LocalBroker, directory: Path, size: int
) -> None:
    fill(broker, "A", 30)
    crash_of(broker, directory)
    ahead = int(log_files(directory)[-1].name) + LOG_FILE_SIZE
    (directory / "commitlog" / f"{ahead:020}").write_bytes(bytes(size))
    with open_small(directory) as after:
        assert bodies(after) == numbered(30)
        fill(after, "A", 30)
        assert bodies(after) == numbered(30) * 2


def test_a_second_crash_during_recovery_finds_the_same(
    broker: LocalBroker, tmp_path: Path, directory: Path
) -> None:
    offsets = fill(broker, "A", 40)
    first = crash_of(broker, tmp_path / "first")
    zero_log_from(first, offsets[25] + 50)
    with open_small(first) as once:
        found = contents(once)
        crash_of(once, directory)
    with open_small(directory) as twice:
        assert contents(twice) == found
        assert bodies(twice) == numbered(25)


def test_a_store_that_a_broker_closed_is_read_from_its_last_file_on(tmp_path: Path, directory: Path) -> None:
    broker = open_small(tmp_path / "before")
    broker.create_topic("A", 1)
    offsets = fill(broker, "A", 90)
    as_rocketmq_left_it(broker, directory)
    with open_small(directory) as after:
        last_file = offsets[-1] // LOG_FILE_SIZE * LOG_FILE_SIZE
        assert recovered(after).records == sum(offset >= last_file for offset in offsets)
        assert bodies(after) == numbered(90)
        assert send(after, "A", 0, b"next").queue_offset == 90


def test_the_settings_of_topics_may_be_missing(tmp_path: Path, directory: Path) -> None:
    broker = open_small(tmp_path / "before")
    broker.create_topic("A", 3)
    fill(broker, "A", 10, 3)
    as_rocketmq_left_it(broker, directory)
    shutil.rmtree(directory / "config")
    with open_small(directory) as after:
        assert after.topics() == ["A"]
        assert [bodies(after, "A", queue_id)[0] for queue_id in range(3)] == numbered(3)


@pytest.mark.parametrize("missing", ["mq", "another boot"])
def test_memory_of_another_boot_is_not_believed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 10)
    (directory / "abort").write_text("1")
    if missing == "mq":
        shutil.rmtree(directory / "mq")
    else:
        monkeypatch.setattr(control_module, "boot_id", lambda: b"another boot id.")
    with open_small(directory) as after:
        assert recovered(after).records == 10
        assert bodies(after) == numbered(10)


def test_a_cleanly_closed_store_opens_at_once_after_a_reboot(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 10)
    monkeypatch.setattr(control_module, "boot_id", lambda: b"another boot id.")
    with open_small(directory) as after:
        assert not was_recovered(after)
        assert bodies(after) == numbered(10)


@pytest.mark.parametrize("damage", ["none", "torn", "queue", "everything derived"])
def test_a_reader_recovers_for_itself_and_changes_nothing(
    broker: LocalBroker, tmp_path: Path, directory: Path, damage: str
) -> None:
    offsets = fill(broker, "A", 30)
    want = numbered(30)
    crash_of(broker, directory)
    if damage == "torn":
        overwrite_log(directory, offsets[20] + 92, b"?")
        want = want[:20]
    elif damage == "queue":
        queue_files(directory, "A")[-1].unlink()
    elif damage == "everything derived":
        shutil.rmtree(directory / "consumequeue")
    before = tree(directory)
    with open_small(directory, read_only=True) as reader:
        assert bodies(reader) == want
    after = tree(directory)
    assert {path: after[path] for path in before} == before
    with open_small(directory) as writer:
        assert bodies(writer) == want


def tree(root: Path) -> dict[str, bytes]:
    """Every file of the store that is RocketMQ's."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] not in ("mq", "lock")
    }


def test_sizes_other_than_the_files_have_are_refused(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 30)
    want: Contents = contents(broker)
    crash_of(broker, directory)
    others: dict[str, Any] = {**SMALL, "commitlog_file_size": 8192}
    with pytest.raises(mq.ConfigMismatch) as caught:
        mq.open(directory, **others)
    assert (caught.value.option, caught.value.stored, caught.value.asked) == (
        "commitlog_file_size",
        4096,
        8192,
    )
    with open_small(directory) as after:
        assert contents(after) == want


@pytest.mark.parametrize(
    ("name", "value"),
    [("commitlog_file_size", 2 * LOG_FILE_SIZE), ("queue_file_units", 2 * QUEUE_FILE_UNITS)],
)
def test_sizes_of_another_store_do_not_count(
    directory: Path, name: str, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "mq" / "geometry.json"
    with open_small(directory) as broker:
        fill(broker, "A", 30)
        want: Contents = contents(broker)
    ours = path.read_text()
    sizes = {**json.loads(ours), name: value, "index_slot_count": 1}
    path.write_text(json.dumps(sizes))
    with mq.open(directory) as broker:
        assert contents(broker) == want
    assert "mq/geometry.json is not of this store" in caplog.text
    assert path.read_text() == ours
    path.write_text(json.dumps(sizes))
    (directory / "mq" / "control").unlink()  # Without it nobody knows which of the two is right.
    with pytest.raises(mq.StoreCorrupted, match=r"mq/geometry\.json is another store's, delete that"):
        mq.open(directory)
    path.unlink()
    with open_small(directory) as broker:
        assert contents(broker) == want


@pytest.mark.parametrize("ahead", [0, 10])
def test_a_part_of_the_log_is_not_lost_because_another_store_s_file_says_so(
    directory: Path, ahead: int
) -> None:
    """It begins with a record, or inside of one."""
    with open_small(directory) as broker:
        first = fill(broker, "A", 30)[3] + ahead
    lost = [{"begin": first, "end": first + LOG_FILE_SIZE, "why": "of another store"}]
    (directory / "mq" / "losses.json").write_text(json.dumps(lost))
    assert list(problems(directory)) == []


def test_a_missing_file_inside_the_log_is_named_and_what_is_around_it_stays(
    broker: LocalBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = fill(broker, "A", 90)
    # Everything was on disk: it is no end of the log that a crash left.
    after_crash = crash_of(broker, tmp_path / "after", physic_time=FOR_EVER_MS)
    log_files(after_crash)[1].unlink()
    lost = [number for number, at in enumerate(offsets) if LOG_FILE_SIZE <= at < 2 * LOG_FILE_SIZE]
    with open_small(after_crash) as after:
        queue = after.topic("A").queues[0]
        assert (queue.min_offset, queue.max_offset) == (0, 90)
        first, following = lost[0], lost[-1] + 1
        assert [message.body for message in queue.read(0, count_max=first).messages] == numbered(first)
        assert [message.body for message in queue.read(following, count_max=90).messages] == numbered(
            90, start=following
        )
        with pytest.raises(mq.StoreCorrupted, match=f"reading goes on at queue offset {first + 1}"):
            queue.read(first)
    named = f"A/0 queue offsets {lost[0]} to {lost[-1]}"
    assert named in caplog.text
    assert any(named in problem for problem in problems(after_crash))


def test_offset_ids_lead_to_the_same_messages_as_before(broker: LocalBroker, directory: Path) -> None:
    sent = [send(broker, "A", 0, body) for body in numbered(30)]
    crash_of(broker, directory)
    with open_small(directory) as after:
        for result, body in zip(sent, numbered(30), strict=True):
            for msg_id in (result.msg_id, result.offset_msg_id):
                found = after.message(msg_id)
                assert (found.body, found.log_offset) == (body, log_offset_of(result))
