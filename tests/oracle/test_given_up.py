"""A transaction that one side gave up, in TRANS_CHECK_MAX_TIME_TOPIC, is resumed on the other, and ends.

The files have the sizes that both use unless told otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.crossing import (
    COMMIT,
    GROUP,
    OPTIONS,
    PATIENCE,
    PAYERS,
    QUEUE_COUNT,
    SETTINGS,
    TOPIC,
    UNKNOWN,
    Listener,
    MQSide,
    RocketMQSide,
    stored,
    until,
)
from tests.oracle.sending import open_store
from tests.oracle.server import Server
from tests.support import oracle
from tests.support.oracle import USUAL_SIZES

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(1200)]

GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
BODY = b"given up"


def test_mq_resumes_what_rocketmq_gave_up(directory: Path, rocketmq: Server) -> None:
    rocketmq.start(
        directory, USUAL_SIZES, {**SETTINGS, "transactionCheckInterval": 1000, "transactionCheckMax": 1}
    )
    rocketmq.create_topic(TOPIC, QUEUE_COUNT)
    RocketMQSide(rocketmq).transact(BODY, UNKNOWN)
    until(lambda: rocketmq.queues().get((GIVEN_UP, 0)) == (0, 1), rocketmq.queues)
    rocketmq.stop()
    with open_store(directory, USUAL_SIZES, **OPTIONS) as broker:
        (waiting,) = broker.transactions.undecided()
        assert (waiting.message.body, waiting.group, waiting.given_up) == (BODY, PAYERS, True)
        with Listener(broker) as listener, MQSide(broker, lambda _message: COMMIT):
            broker.transactions.resume(waiting.message.msg_id)
            listener.wait_for([BODY])
        (found,) = stored(broker)
        assert found.msg_id == waiting.message.msg_id
        assert broker.transactions.undecided() == []


def test_rocketmq_resumes_what_mq_gave_up(directory: Path, rocketmq: Server) -> None:
    rocketmq.launch()
    with open_store(directory, USUAL_SIZES, **{**OPTIONS, "transaction_check_max": 1}) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        with MQSide(broker, lambda _message: UNKNOWN) as side:
            side.transact(BODY, UNKNOWN)
            until(
                lambda: any(one.given_up for one in broker.transactions.undecided()),
                broker.transactions.undecided,
            )
        (given_up,) = stored(broker, GIVEN_UP)
    rocketmq.start(directory, USUAL_SIZES, SETTINGS)
    rocketmq.consume(GROUP, [TOPIC])
    rocketmq.be_asked(PAYERS, TOPIC, {BODY.decode(): "COMMIT_MESSAGE"})
    assert rocketmq.resume(GIVEN_UP, given_up.offset_msg_id)
    (came,) = rocketmq.received(GROUP, 1, wait=PATIENCE)
    assert (came.body, came.msg_id) == (BODY, given_up.msg_id)
    rocketmq.stop()
    report = oracle.read(directory, USUAL_SIZES)
    assert len([record for record in report.records if record.topic == TOPIC]) == 1
