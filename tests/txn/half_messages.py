"""Half messages of a group, and the records that they leave."""

from __future__ import annotations

import mq
from mq.broker.local import LocalBroker
from mq.message import MessageExt
from tests.support.appending import prepare_one

COMMIT, ROLLBACK = mq.TransactionState.COMMIT, mq.TransactionState.ROLLBACK


def records(broker: LocalBroker, topic: str) -> list[MessageExt]:
    queue = mq.MessageQueue(topic, broker.name, 0)
    return list(broker.puller(queue)(0, 100, 1 << 20, None, 0.0).messages)


def prepared(broker: LocalBroker, message: mq.Message, unique_id: str | None = None) -> tuple[int, int]:
    queue = broker.publishable(message.topic)[0]
    result = prepare_one(broker, queue, "payers", message, message.body, 0, unique_id)
    assert (result.queue, result.transaction_id) == (queue, result.msg_id)
    return int(result.offset_msg_id[-16:], 16), result.queue_offset
