"""mq opens the stores that RocketMQ's library wrote (tests/data/rocketmq) and finds everything in them.

What is to be found was recorded when they were written, so Java is not needed here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.oracle.agreement import assert_mq_finds, assert_mq_looks_up, facts, messages_of, queue_of
from tests.oracle.make_stores import MAKERS, STORES
from tests.support.oracle import Report, parse


def recorded(name: str) -> Report:
    return parse((STORES / name / "expected.jsonl").read_text(encoding="utf-8").split("\n")[:-1])


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(name: str, directory: Path) -> Path:
    shutil.copytree(STORES / name / "store", directory)
    # What was put aside in one of them was delivered long ago, so that nothing is added by itself.
    (directory / "config").mkdir()
    (directory / "config" / "delayOffset.json").write_text('{"offsetTable":{3:1,18:1}}')
    return directory


@pytest.fixture
def sizes(name: str) -> dict[str, int]:
    kept: dict[str, int] = json.loads((STORES / name / "sizes.json").read_text())
    return kept


# Without duties: the transaction of one of them, which is years old, would be asked about, and stored again.
@pytest.fixture
def broker(directory: Path, sizes: dict[str, Any]) -> Iterator[mq.Broker]:
    with mq.open(str(directory), duties=False, **sizes) as broker:
        yield broker


def test_every_message_is_found_in_every_way(broker: mq.Broker, name: str) -> None:
    assert_mq_finds(broker, recorded(name))


def test_its_topics_are_those_with_a_queue(broker: mq.Broker, name: str) -> None:
    own = {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"}
    assert set(broker.topics()) - {"TBW102"} == {topic for topic, _ in recorded(name).queues} - own


def test_sending_goes_on_where_the_store_ends(directory: Path, sizes: dict[str, Any], name: str) -> None:
    report = recorded(name)
    before = {queue: report.queues[queue][1] for queue in report.queues}
    with mq.open(str(directory), duties=False, **sizes) as broker, mq.Producer(broker) as producer:
        queue = queue_of(broker, "TopicA", 0)
        results = [
            producer.send(
                mq.Message("TopicA", b"%d" % number, keys=f"new{number}"), queue=queue.message_queue
            )
            for number in range(60)
        ]
        first_offset = before["TopicA", 0]
        assert [result.queue_offset for result in results] == list(range(first_offset, first_offset + 60))

    with mq.open(str(directory), duties=False, **sizes) as broker:
        pulled = list(messages_of(broker, "TopicA", 0))
        assert [message.body for message in pulled[-60:]] == [b"%d" % number for number in range(60)]
        old = [facts(message) for message in pulled[:-60]]
        assert len(old) == len(report.queue("TopicA", 0))
        assert pulled[-60].log_offset >= report.max_log_offset
        for number, result in enumerate(results):
            (found,) = broker.query("TopicA", f"new{number}")
            assert found.msg_id == result.msg_id
            assert broker.message(result.msg_id).queue_offset == result.queue_offset
        assert_mq_looks_up(broker, [*report.records, *report.unqueued])


@pytest.mark.parametrize("lost", ["consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("name", ["clean", "segments", "killed", "kinds", "property-crc"])
def test_what_is_derived_is_built_again(directory: Path, sizes: dict[str, Any], name: str, lost: str) -> None:
    """Not tried with the store that begins late: only its queues know where they begin."""
    gone = directory / lost
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
    with mq.open(str(directory), duties=False, **sizes) as broker:
        assert_mq_finds(broker, recorded(name))
