"""An older state of config/topics.json counts: topics have the queues that hold messages all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.broker.check import problems
from tests.support.store.small_store import fill, open_small


def _older(path: Path) -> None:
    path.write_bytes(path.with_name("topics.json.bak").read_bytes())


def _much_older(path: Path) -> None:
    text = path.with_name("topics.json.bak").read_text()
    path.write_text(text.replace('"counter":1', '"counter":0'))


def _noise(path: Path) -> None:
    path.write_bytes(bytes(range(1, 200)))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [_noise, _empty, Path.unlink, _older, _much_older])
@pytest.mark.parametrize("read_only", [False, True])
def test_no_message_is_hidden(
    directory: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], object], read_only: bool
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        broker.create_topic("orders", 8)
        fill(broker, "orders", 40, queue_count=8)
    assert list(problems(directory)) == []
    path = directory / "config" / "topics.json"
    harm(path)
    assert any(str(path) in problem for problem in problems(directory))
    with caplog.at_level(logging.WARNING, "mq.store"), mq.open(directory, read_only=read_only) as broker:
        [warning] = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()]
        assert "orders" in warning
        assert [queue.max_offset for queue in broker.topic("orders").queues] == [5] * 8
        assert len(broker.readable("orders")) == 8
    if not read_only:
        caplog.clear()
        assert list(problems(directory)) == []
        with open_small(directory) as broker:
            assert len(broker.topic("orders").queues) == 8
        assert caplog.records == []


def test_a_state_that_a_broker_wrote_twice_is_no_older_copy(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        fill(broker, "orders", 4, queue_count=2)
    path = directory / "config" / "topics.json"
    text = path.read_text().replace('"readQueueNums":2', '"readQueueNums":1')
    text = "".join(line for line in text.splitlines(keepends=True) if '"mq' not in line)
    for each in (path, path.with_name("topics.json.bak")):
        each.write_text(text)
    assert list(problems(directory)) == []
    with open_small(directory) as broker:
        assert len(broker.topic("orders").queues) == 1


def test_a_topic_that_is_missing_and_one_with_too_few_queues(directory: Path) -> None:
    """The one does not keep the other from being seen."""
    path = directory / "config" / "topics.json"
    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        older = path.read_bytes()
        broker.create_topic("orders", 8)
        fill(broker, "orders", 40, queue_count=8)
        broker.create_topic("bills", 2)
        fill(broker, "bills", 2, queue_count=2)
    path.write_bytes(older)
    with open_small(directory) as broker:
        assert len(broker.topic("orders").queues) == 8
        assert len(broker.topic("bills").queues) == 2
    assert list(problems(directory)) == []
