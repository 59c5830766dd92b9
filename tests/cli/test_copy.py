"""`mq DIR copy TARGET`."""

from __future__ import annotations

from pathlib import Path

import mq
from tests.cli.conftest import Run


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
