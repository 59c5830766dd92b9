"""Queues that a client locks, to consume them in order.

RocketMQ: broker/client/rebalance/RebalanceLockManager.java.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from mq.errors import MQError
from mq.remoting.codec.bodies.consuming import LockedQueues, QueueLock
from mq.remoting.codec.requests.groups import LockQueues, UnlockQueues
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()

# What is raised for a queue that there is not: OverflowError for a number that no queue can have.
NO_QUEUE: Final = (MQError, ValueError, OverflowError)


@handlers.on(LockQueues)
def lock(_: LockQueues, call: Call) -> Reply:
    body = call.body(QueueLock)
    member = call.served.members.ordered(call.connection, body.consumer_group)
    if member is None:
        raise Refusal(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"{body.client_id} is no member of group {body.consumer_group}: send a heartbeat first",
        )
    locked = []
    for queue in body.mq_set:
        try:
            if member.lock(queue):
                locked.append(queue)
        except NO_QUEUE:
            continue
    return Reply(body=LockedQueues(tuple(locked)))


@handlers.on(UnlockQueues)
def unlock(_: UnlockQueues, call: Call) -> Reply:
    body = call.body(QueueLock)
    member = call.served.members.of(call.connection, body.consumer_group)
    if member is not None:
        for queue in body.mq_set:
            with suppress(*NO_QUEUE):
                member.unlock(queue)
    return DONE
