"""What operators ask a live consumer through its broker, in the words of RocketMQ's tools."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import mq
from tests.support.cluster.asking import ask
from tests.support.cluster.shared import SharedCluster, unique_name
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(300)]

GET_CONSUMER_STATUS, GET_RUNNING_INFO, CONSUME_DIRECTLY = 223, 307, 309
SUCCESS, NOT_SUPPORTED = 0, 3
PATIENCE = 60.0


class Consuming:
    """A topic of 10 messages that a member has consumed."""

    def __init__(self, broker: mq.Broker) -> None:
        self.topic, self.group = unique_name("orders"), unique_name("billing")
        self.heard: list[bytes] = []
        broker.create_topic(self.topic, 2)
        with mq.Producer(broker, timeout=30.0) as producer:
            self.sent = [producer.send(mq.Message(self.topic, b"%d" % number)) for number in range(10)]
        self.consumer = mq.PushConsumer(broker, self.group)
        self.consumer.subscribe(self.topic, listener=lambda message: self.heard.append(message.body))
        self.consumer.start()
        self.client_id = self.consumer.client_id or ""
        eventually(lambda: len(self.heard) == 10, lambda: self.heard, PATIENCE)
        eventually(lambda: broker.group(self.group).lag(self.topic) == 0, lambda: "a lag", PATIENCE)


@pytest.fixture
def consuming(cluster: SharedCluster) -> Iterator[Consuming]:
    with mq.open(f"rocketmq://{cluster.name_server}", timeout=30.0) as broker:
        consuming = Consuming(broker)
        with consuming.consumer:
            yield consuming


def test_a_member_says_what_it_has(cluster: SharedCluster, consuming: Consuming) -> None:
    fields = {
        "consumerGroup": consuming.group,
        "clientId": consuming.client_id,
        "jstackEnable": "false",
    }
    for address in cluster.brokers.values():
        answer = ask(address, GET_RUNNING_INFO, fields, seconds=PATIENCE)
        assert (answer.code, answer.remark) == (SUCCESS, None)
        # The keys of its tables are objects, which JSON has none of: the rest is looked at as text.
        for said in (b"PROP_CONSUME_TYPE", b"CONSUME_PASSIVELY", consuming.topic.encode(), b"%RETRY%"):
            assert said in answer.body
    nobody = {**fields, "clientId": "nobody"}
    assert ask(address, GET_RUNNING_INFO, nobody, seconds=PATIENCE).code != SUCCESS


def test_a_member_says_how_far_it_is(cluster: SharedCluster, consuming: Consuming) -> None:
    fields = {"topic": consuming.topic, "group": consuming.group}
    answer = ask(cluster.brokers["a"], GET_CONSUMER_STATUS, fields, seconds=PATIENCE)
    assert answer.code == SUCCESS
    assert consuming.client_id.encode() in answer.body
    assert consuming.topic.encode() in answer.body


def test_a_message_is_not_pushed_past_the_queues(cluster: SharedCluster, consuming: Consuming) -> None:
    sent = consuming.sent[0]
    fields = {
        "consumerGroup": consuming.group,
        "clientId": consuming.client_id,
        "msgId": sent.offset_msg_id,
        "brokerName": sent.queue.broker_name,
    }
    answer = ask(cluster.brokers[sent.queue.broker_name], CONSUME_DIRECTLY, fields, seconds=PATIENCE)
    assert answer.code == NOT_SUPPORTED
    assert "takes messages only from its queues" in json.dumps(answer.remark)
    assert len(consuming.heard) == 10
