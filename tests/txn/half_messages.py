"""Half messages of a group, and the records that they leave."""

from __future__ import annotations

from typing import Any

import mq
from mq.broker.local import LocalBroker
from mq.message import MessageExt
from tests.support.appending import prepare_one

COMMIT, ROLLBACK = mq.TransactionState.COMMIT, mq.TransactionState.ROLLBACK
GROUP = "payers"
SIZES: dict[str, Any] = {
    "commitlog_file_size": 65536,
    "queue_file_units": 50,
    "index_slot_count": 101,
    "index_unit_count": 400,
}
OFTEN: dict[str, Any] = {
    "transaction_timeout": 0.001,
    "transaction_check_interval": 0.05,
    "transaction_check_max": 10_000,  # fifteen may be over before a slow machine has checked once
}


def records(broker: LocalBroker, topic: str) -> list[MessageExt]:
    queue = mq.MessageQueue(topic, broker.name, 0)
    return list(broker.puller(queue)(0, 100, 1 << 20, None, 0.0).messages)


def prepared(broker: LocalBroker, message: mq.Message, unique_id: str | None = None) -> tuple[int, int]:
    queue = broker.publishable(message.topic)[0]
    result = prepare_one(broker, queue, "payers", message, message.body, 0, unique_id)
    assert (result.queue, result.transaction_id) == (queue, result.msg_id)
    return int(result.offset_msg_id[-16:], 16), result.queue_offset


def stored(broker: LocalBroker) -> list[bytes]:
    return [m.body for queue in broker.topic("orders").queues for m in queue.read(0).messages]


def answer_all(broker: LocalBroker, state: mq.TransactionState) -> None:
    """Be asked until nothing is undecided."""
    checker = broker.transactions.enlist(GROUP, "asked")
    while broker.transactions.undecided():
        check = checker.next(60.0)
        assert check is not None, "no check comes"
        broker.transactions.ender(check.group)(check.log_offset, check.queue_offset, state, True)
    checker.leave()
