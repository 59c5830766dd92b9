"""Have a new group begin with what comes from now on."""

from __future__ import annotations

from contextlib import suppress

from mq.api.broker import Broker
from mq.errors import NotPermitted, TopicNotFound


def begin_at_the_end(broker: Broker, group: str, topic: str) -> None:
    """Let a group that has no offset of a topic begin with what comes from now on."""
    with suppress(TopicNotFound, NotPermitted):
        queues = broker.readable(topic)
        groups = broker.consumer_groups
        if not groups.offsets(group, topic):
            assigned = groups.assigned(group)
            for queue in queues:
                claim = assigned.claim(queue)
                claim.commit(broker.max_offset(queue))
                claim.release()  # From when the broker of a cluster knows it.
