"""What a consumer does that is told its queues: read and commit the group's offsets, and send back."""

from __future__ import annotations

import mq
from mq.api.broker import Claim
from tests.support.appending import queue_named


def claimed(broker: mq.Broker, group: str, queue: mq.MessageQueue) -> Claim:
    return broker.consumer_groups.assigned(group).claim(queue)


def committed(broker: mq.Broker, group: str, queue: mq.MessageQueue) -> int | None:
    return claimed(broker, group, queue).committed()


def commit(broker: mq.Broker, group: str, queue: mq.MessageQueue, offset: int) -> None:
    assert claimed(broker, group, queue).commit(offset)


def send_back(
    broker: mq.Broker,
    message: mq.MessageExt,
    group: str,
    *,
    delay_level: int = 0,
    max_reconsume_times: int = 16,
) -> bool:
    claim = claimed(broker, group, queue_named(broker, message.topic, message.queue_id))
    return claim.send_back(message, delay_level=delay_level, max_reconsume_times=max_reconsume_times)
