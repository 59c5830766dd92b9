"""Queues that a client locks, to consume them in order.

RocketMQ: broker/client/rebalance/RebalanceLockManager.java.
"""

from __future__ import annotations

from contextlib import suppress

from mq.errors import MQError
from mq.remoting.codec.bodies.consuming import LockedQueues, QueueLock
from mq.remoting.codec.requests.groups import LockQueues, UnlockQueues
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()


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
        except (MQError, ValueError):
            continue  # A queue that there is not.
    return Reply(body=LockedQueues(tuple(locked)))


@handlers.on(UnlockQueues)
def unlock(_: UnlockQueues, call: Call) -> Reply:
    body = call.body(QueueLock)
    member = call.served.members.of(call.connection, body.consumer_group)
    if member is not None:
        for queue in body.mq_set:
            with suppress(MQError, ValueError):  # A queue that there is not.
                member.unlock(queue)
    return DONE
