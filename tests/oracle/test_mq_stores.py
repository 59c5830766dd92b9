"""RocketMQ's library opens what mq wrote, closed or killed, and finds each message in every way.

The two take turns on one directory: what one wrote, the other reads, appends to, and hands back.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.oracle.agreement import (
    assert_library_looks_up,
    assert_mq_finds,
    expected_facts,
    facts,
    messages_of,
    queue_of,
    string_hash,
)
from tests.oracle.make_stores import MAKERS, STORES
from tests.oracle.sending import (
    SIZES,
    Sent,
    messages,
    open_store,
    send_as_batch,
    send_everything,
    send_one_by_one,
)
from tests.support import oracle
from tests.support.oracle import Report, Sizes

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]


def library_report(directory: Path, scratch: Path, sizes: Sizes = SIZES) -> Report:
    """What the library finds in a copy: the directory itself stays as mq left it."""
    return oracle.read(Path(shutil.copytree(directory, scratch)), sizes)


def assert_library_finds(report: Report, sent: list[Sent], *, more: bool = False) -> None:
    """The library finds each message where its sender was told it is, with all that was sent."""
    assert_library_looks_up(report)
    records = {(record.topic, record.queue_id, record.queue_offset): record for record in report.records}
    for one in sent:
        record = records[one.message.topic, one.queue_id, one.queue_offset]
        assert record.body_sha256 == hashlib.sha256(one.message.body).hexdigest()
        assert record.flag == one.message.flag
        assert record.properties["UNIQ_KEY"] == one.msg_id
        assert record.properties.get("TAGS") == one.message.tags
        assert tuple(record.properties.get("KEYS", "").split()) == one.message.keys
        assert record.properties.items() >= one.message.properties.items()
        assert record.offset_msg_id == one.offset_msg_id
        assert report.by_id[one.offset_msg_id] == record.log_offset
        assert set(report.by_key[record.topic, one.msg_id]) == {record.log_offset}
        assert record.unit_log_offset == record.log_offset
        assert record.unit_size == record.store_size
        assert record.tags_code == string_hash(one.message.tags or "")
    if not more:
        assert len(records) == len(sent)


def mq_messages(directory: Path, report: Report) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """All that mq reads from the queues that the library sees."""
    with open_store(directory) as broker:
        return {queue: [facts(message) for message in messages_of(broker, *queue)] for queue in report.queues}


def assert_field_by_field(directory: Path, report: Report) -> None:
    """mq reads from every queue what the library reads, field by field."""
    for (topic, queue_id), found in mq_messages(directory, report).items():
        assert found == [expected_facts(record) for record in report.queue(topic, queue_id)]


def test_the_library_finds_everything_in_a_closed_store(directory: Path, tmp_path: Path) -> None:
    with open_store(directory) as broker:
        sent = send_everything(broker)
    for part, file_count_min in (("commitlog", 3), ("index", 2), ("consumequeue/TopicA/0", 2)):
        assert len(list((directory / part).iterdir())) >= file_count_min
    assert not (directory / "abort").exists()

    report = library_report(directory, tmp_path / "copy")
    assert_library_finds(report, sent)
    assert_field_by_field(directory, report)


def sender(directory: Path, stop_at: int) -> subprocess.Popen[str]:
    """killed_sender.py as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.oracle.killed_sender", str(directory), str(stop_at)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def acknowledged(lines: list[str]) -> list[Sent]:
    """What a killed sender told; its last line may be torn."""
    assert lines[0] == "ready\n"
    told = [json.loads(line) for line in lines[1:] if line.endswith("\n")]
    sent = messages("orders", 0, len(told))
    return [Sent(message, *place) for message, place in zip(sent, told, strict=True)]


def test_the_library_finds_everything_after_kill_at_rest(directory: Path, tmp_path: Path) -> None:
    with sender(directory, stop_at=320) as process:
        assert process.stdout is not None
        lines = list(process.stdout)
    assert process.returncode == -signal.SIGKILL
    assert (directory / "abort").exists()

    report = library_report(directory, tmp_path / "copy")
    sent = acknowledged(lines)
    assert len(sent) == 320
    assert_library_finds(report, sent)


@pytest.mark.parametrize("line_count", [1, 20, 77, 200, 333])
def test_the_library_finds_what_was_acknowledged_before_a_kill_at_any_time(
    line_count: int, directory: Path, tmp_path: Path
) -> None:
    with sender(directory, stop_at=-1) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(line_count)]
        process.kill()
        lines += list(process.stdout)

    report = library_report(directory, tmp_path / "copy")
    sent = acknowledged(lines)
    assert_library_finds(report, sent, more=True)
    assert len(report.records) <= len(sent) + 32


def test_both_see_the_same_after_a_kill(directory: Path, tmp_path: Path) -> None:
    """The process is dead, the machine is not: mq attaches, the library recovers; field by field the same."""
    with sender(directory, stop_at=96) as process:
        process.wait()
    report = library_report(directory, tmp_path / "copy")
    assert_field_by_field(directory, report)


@pytest.mark.parametrize("name", MAKERS)
def test_the_library_reads_its_own_store_after_mq_appended(
    name: str, directory: Path, tmp_path: Path
) -> None:
    shutil.copytree(STORES / name / "store", directory)
    # What was put aside in one of them was delivered long ago, so that nothing is added by itself.
    (directory / "config").mkdir(exist_ok=True)
    (directory / "config" / "delayOffset.json").write_text('{"offsetTable":{3:1,18:1}}')
    sizes = Sizes(**json.loads((STORES / name / "sizes.json").read_text()))
    before = oracle.parse((STORES / name / "expected.jsonl").read_text(encoding="utf-8").split("\n")[:-1])
    # Without duties: a half message in one of them would be asked about, and stored again.
    with open_store(directory, sizes, duties=False) as broker:
        broker.create_topic("new", queue_count=2)
        sent = send_one_by_one(broker, "new", 0, 30) + send_as_batch(broker, "new", 30, 5)
        with mq.Producer(broker) as producer:
            result = producer.send(
                mq.Message("TopicA", b"one more"), queue=queue_of(broker, "TopicA", 0).message_queue
            )

    report = library_report(directory, tmp_path / "copy", sizes)
    assert_library_finds(report, sent, more=True)
    assert [
        record for record in report.records if record.log_offset < before.max_log_offset
    ] == before.records
    assert report.unqueued == before.unqueued
    assert result.queue_offset == before.queues["TopicA", 0][1]
    assert len(report.records) == len(before.records) + len(sent) + 1


@pytest.mark.parametrize("end", ["close", "kill"])
def test_mq_reads_its_own_store_after_the_library_appended(end: Any, directory: Path, tmp_path: Path) -> None:
    with open_store(directory) as broker:
        sent = send_everything(broker)
    steps = [
        oracle.put(
            "orders" if number % 2 else "library",
            b"body %d " % number * 30,
            queue_id=number % 3,
            properties={"TAGS": "TagB", "KEYS": f"lib{number} every", "UNIQ_KEY": f"{number:032X}"},
        )
        for number in range(80)
    ]
    steps.append(oracle.batch("orders", [(b"b%d" % number, {"KEYS": "lib"}, 0) for number in range(5)]))
    written = oracle.write(directory, SIZES, steps, end=end)
    report = library_report(directory, tmp_path / "copy")
    assert {record.log_offset for record in report.records} >= {record.log_offset for record in written}
    assert len(report.records) == len(sent) + 85

    with open_store(directory) as broker:
        assert_mq_finds(broker, report)
        sent += send_one_by_one(broker, "orders", 1000, 20)

    report = library_report(directory, tmp_path / "second copy")
    assert_library_finds(report, sent, more=True)
    assert len(report.records) == len(sent) + 85


def test_several_turns_on_one_directory(directory: Path, tmp_path: Path) -> None:
    """Each side finds on its turn all that both have written so far."""
    sent: list[Sent] = []
    written = 0
    with open_store(directory) as broker:
        broker.create_topic("orders", queue_count=3)
    for turn in range(3):
        with open_store(directory) as broker:
            sent += send_one_by_one(broker, "orders", turn * 100, 40)
        steps = [
            oracle.put("orders", b"library", queue_id=number % 3, properties={"KEYS": f"t{turn}n{number}"})
            for number in range(20)
        ]
        written += len(oracle.write(directory, SIZES, steps))
    report = library_report(directory, tmp_path / "copy")
    assert_library_finds(report, sent, more=True)
    assert len(report.records) == len(sent) + written
    with open_store(directory) as broker:
        assert_mq_finds(broker, report)
