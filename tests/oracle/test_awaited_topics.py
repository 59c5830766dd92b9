"""A group awaits a topic while a real RocketMQ broker has the directory: it keeps what tells of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mq
from tests.oracle.sending import SIZES, open_store
from tests.oracle.server import Server

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]


def test_a_group_awaits_its_topic_across_a_run_of_rocketmq(rocketmq: Server, directory: Path) -> None:
    offsets = directory / "config" / "consumerOffset.json"
    with open_store(directory, SIZES) as broker:
        broker.create_topic("others", 1).send(b"there is a log")
        with mq.PullConsumer(broker, "billing", consume_from="last") as consumer:
            consumer.subscribe("orders")
            consumer.poll(0)
    before = offsets.read_bytes()
    assert json.loads(before)["offsetTable"]["orders@billing"] == {}
    rocketmq.launch()
    rocketmq.start(directory, SIZES, {})
    rocketmq.stop()
    assert offsets.read_bytes() != before  # It has written the file anew.
    assert json.loads(offsets.read_bytes())["offsetTable"]["orders@billing"] == {}
    with open_store(directory, SIZES) as broker:
        broker.create_topic("orders", 1).send(b"first")
        with mq.PullConsumer(broker, "billing", consume_from="last") as consumer:
            consumer.subscribe("orders")
            assert [message.body for message in consumer.poll(10)] == [b"first"]
