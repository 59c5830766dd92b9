"""`mq DIR copy TARGET`."""

from __future__ import annotations

from pathlib import Path

import mq
from tests.cli.conftest import Run
from tests.support.store.small_store import fill, open_small


def test_all_topics_are_copied_and_counted(bare: Run, directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with mq.open(directory) as broker:
        for topic in ("orders", "payments"):
            broker.create_topic(topic, 1)
            for body in (b"1", b"2"):
                broker.topic(topic).send(body, tags="paid")
    expected = [{"topic": topic, "queues": 1, "copied": 2, "messages": 2} for topic in ("orders", "payments")]
    assert bare(str(directory), "--json", "copy", str(target)).objects == expected
    again = [{**each, "copied": 0} for each in expected]
    assert bare(str(directory), "--json", "copy", str(target)).objects == again
    with mq.open(target) as broker:
        assert [each.body for each in broker.topic("orders").queues[0].read(0).messages] == [b"1", b"2"]


def test_a_topic_that_is_not_there_is_named(bare: Run, directory: Path, tmp_path: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
    answer = bare(str(directory), "copy", str(tmp_path / "target"), "nowhere")
    assert answer.status == 1
    assert "nowhere" in answer.err


def test_topics_of_groups_and_of_mq_itself_are_left_out(bare: Run, directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with mq.open(directory) as broker:
        for topic in ("orders", "%DLQ%billing", "%RETRY%billing", "MQ_SINK_LEDGER"):
            broker.create_topic(topic, 1)
        broker.topic("%DLQ%billing").send(b"dead")
    answer = bare(str(directory), "copy", str(target))
    assert answer.status == 0
    assert answer.err == "left out: %DLQ%billing, 1 messages; name it to copy it\n"
    with mq.open(target) as broker:
        assert broker.topics() == ["orders"]
    assert bare(str(directory), "copy", str(target), "%DLQ%billing").status == 0
    with mq.open(target) as broker:
        assert broker.topics() == ["%DLQ%billing", "orders"]


def test_deleted_messages_are_an_exit_status(bare: Run, directory: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with open_small(directory) as broker:
        fill(broker, "orders", 1)
        assert bare(str(directory), "copy", target, "orders").status == 0
        fill(broker, "orders", 200)
        assert broker.expire(retention_hours=0)
        deleted = broker.topic("orders").queues[0].min_offset - 1
    answer = bare(str(directory), "copy", target, "orders")
    assert answer.status == 1
    assert f"orders: {deleted:,} messages were deleted before they were copied" in answer.err
