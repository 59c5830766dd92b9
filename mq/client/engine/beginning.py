"""Where a group begins that has no offset of a queue."""

from __future__ import annotations

from contextlib import suppress

from mq.api.broker import Broker, MessageQueue
from mq.errors import NotPermitted, TopicNotFound


def begin_at_the_end(broker: Broker, group: str, topic: str) -> None:
    """Let a group that has no offset of a topic begin with what comes from now on."""
    with suppress(TopicNotFound, NotPermitted):
        queues = broker.readable(topic)
        groups = broker.consumer_groups
        if not groups.offsets(group, topic):
            assigned = groups.assigned(group)
            for queue in queues:
                assigned.claim(queue).commit(broker.max_offset(queue))


def first_offset(broker: Broker, consume_from: str | int, queue: MessageQueue) -> int:
    """Where a consumer begins with a queue that it was assigned: at an end, or at a time in ms."""
    if consume_from == "first":
        return broker.min_offset(queue)
    if consume_from == "last":
        return broker.max_offset(queue)
    assert isinstance(consume_from, int)
    return broker.offset_at(queue, consume_from)
