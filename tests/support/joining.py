"""Members that join a group of one topic, and take over from each other."""

from __future__ import annotations

import time
from typing import Any

import mq
from mq.api.group import Claim, Membership, Subscription

SOON = 20.0
QUEUES = [mq.MessageQueue("orders", "mq", queue_id) for queue_id in range(4)]

# What a peer runs, with its client id and the queues that it claims.
JOIN = (
    "from mq.api.group import Subscription\n"
    "member = broker.consumer_groups.join('billing', client_id={!r}, model='clustering',"
    " consume_type='push', ordered=False, subscriptions=[Subscription('orders')])\n"
    "queues = [queue.message_queue for queue in broker.topic('orders').queues]\n"
    "claims = [member.claim(queues[queue_id]) for queue_id in {}]\n"
)


def join(broker: mq.Broker, client_id: str = "here", **given: Any) -> Membership:
    usual: dict[str, Any] = {
        "model": "clustering",
        "consume_type": "push",
        "ordered": False,
        "subscriptions": [Subscription("orders")],
    }
    return broker.consumer_groups.join("billing", client_id=client_id, **{**usual, **given})


def taken_over(broker: mq.Broker, membership: Membership, queue_id: int = 0) -> tuple[Claim, float]:
    """The claim of a queue once its owner is gone, and how long that took."""
    began = time.monotonic()
    while True:
        version = membership.version()
        claim = membership.claim(QUEUES[queue_id])
        if claim is not None:
            return claim, time.monotonic() - began
        broker.waiter().wait([], [(membership, version)], SOON)
        assert time.monotonic() - began < SOON


def client_ids(broker: mq.Broker) -> list[str]:
    return [member.client_id for member in broker.group("billing").members()]
