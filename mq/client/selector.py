"""Which queue a message goes to.

A selector is any function of the queues that may be sent to, the message, and the shard key of the call,
that returns one of the queues. Where none is given, and no shard key either, queues take turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from mq.api.broker import MessageQueue, queue_of_key
from mq.client.fault import FaultTable
from mq.message import Message

Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def by_hash(queues: Sequence[MessageQueue], _message: Message, shard_key: Any) -> MessageQueue:
    """The queue of the shard key, always the same one: see mq.api.broker.queue_of_key."""
    return queue_of_key(queues, shard_key)


def at_random(queues: Sequence[MessageQueue], _message: Message, _shard_key: Any) -> MessageQueue:
    """Any queue, each as likely as the others."""
    return random.choice(queues)


def next_but(
    turn: Callable[[], MessageQueue],
    count: int,
    last_broker: str | None,
    faults: FaultTable | None,
    now_ms: float,
) -> MessageQueue:
    """The next of `count` queues in turn, preferably not of the broker that was tried last.

    With a table of faults: one round for an available broker, one for a reachable one, then just the
    next queue. Without: one round for another broker, then the next queue.
    """
    if faults is None:
        rounds: tuple[Callable[[str], bool], ...] = (lambda _broker: True,) if last_broker else ()
    else:
        rounds = (lambda broker: faults.is_available(broker, now_ms)), faults.is_reachable
    for is_good in rounds:
        for _ in range(count):
            queue = turn()
            if queue.broker_name != last_broker and is_good(queue.broker_name):
                return queue
    return turn()
