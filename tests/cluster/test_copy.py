"""`mq DIR copy rocketmq://…` and back, with real brokers: in order, resumed after a kill, and counted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mq
from tests.support.arrivals import read_all
from tests.support.cluster.shared import ROOT, SharedCluster, unique_name

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

QUEUE_COUNT = 3
COUNT = 3000
Content = list[tuple[bytes, str | None, tuple[str, ...], str, str]]


def copying(source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mq", "--timeout", "30", source, "--json", "copy", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def copied(source: str, *arguments: str) -> dict[str, Any]:
    process = copying(source, *arguments)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def fill(broker: mq.Broker, topic: str, count: int) -> None:
    with mq.Producer(broker) as producer:
        for queue in broker.topic(topic).queues:
            for first in range(0, count // QUEUE_COUNT, 100):
                producer.send_batch(
                    [
                        mq.Message(
                            topic,
                            b"%d-%d" % (queue.queue_id, number),
                            tags=f"t{number % 3}",
                            keys=[f"k{number}", "all"],
                            properties={"price": str(number), "größe": "groß"},
                        )
                        for number in range(first, first + 100)
                    ],
                    queue=queue,
                )


def contents(broker: mq.Broker, topic: str) -> list[Content]:
    """What a topic has, queue by queue, in order; queues without messages left out."""
    found = []
    for queue in sorted(broker.topic(topic).queues, key=lambda each: each.message_queue):
        messages = read_all(queue)
        found.append(
            [(each.body, each.tags, each.keys, each.properties["größe"], each.msg_id) for each in messages]
        )
    return [each for each in found if each]


def test_a_directory_goes_to_a_cluster_and_back(cluster: SharedCluster, tmp_path: Path) -> None:
    topic, address = unique_name("orders"), f"rocketmq://{cluster.name_server}"
    source, back = str(tmp_path / "source"), str(tmp_path / "back")
    with mq.open(source) as broker:
        broker.create_topic(topic, QUEUE_COUNT)
        fill(broker, topic, COUNT)
        expected = contents(broker, topic)

    with mq.open(address, timeout=30.0) as there:
        # Killed in mid-run, and called again: nothing is lost, and nothing comes twice.
        first = copying(source, address, topic)
        until = time.monotonic() + 120
        while not sum(copied_counts(there, topic)):
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        assert sum(copied_counts(there, topic)) < COUNT, "it was over before it could be killed"
        resumed = copied(source, address, topic)
        assert 0 < resumed["copied"] < COUNT
        assert resumed["messages"] == COUNT
        assert contents(there, topic) == expected

        # What was sent meanwhile comes over with the next call.
        with mq.open(source) as broker:
            broker.topic(topic).send(b"late", properties={"größe": "klein"})
            expected = contents(broker, topic)
        assert copied(source, address, topic)["copied"] == 1
        assert copied(source, address, topic)["copied"] == 0
        assert contents(there, topic) == expected

    assert copied(address, back, topic)["messages"] == COUNT + 1
    assert copied(address, back, topic)["copied"] == 0
    with mq.open(back) as broker:
        assert contents(broker, topic) == expected


def copied_counts(broker: mq.Broker, topic: str) -> list[int]:
    try:
        return [queue.max_offset for queue in broker.topic(topic).queues]
    except (mq.TopicNotFound, mq.RemotingError):
        return [0]


def test_messages_of_other_programs_are_not_overwritten(cluster: SharedCluster, tmp_path: Path) -> None:
    topic, address = unique_name("orders"), f"rocketmq://{cluster.name_server}"
    source = str(tmp_path / "source")
    with mq.open(source) as broker, mq.open(address, timeout=30.0) as there:
        broker.create_topic(topic, 1).send(b"ours")
        there.create_topic(topic, 1)
        with mq.Producer(there, timeout=30.0) as producer:
            for queue in there.topic(topic).queues:
                producer.send(mq.Message(topic, b"theirs"), queue=queue)
    process = copying(source, address, topic)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "not of this copy" in err
