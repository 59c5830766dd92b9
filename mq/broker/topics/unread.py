"""What the groups of a topic have not consumed, queue by queue.

It decides whether a topic may have fewer queues to read, and finds messages in queues that nobody reads: a
topic of fewer queues to read than to write has them, and so has one that a RocketMQ broker shrank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mq.api.group import QueueState
from mq.api.results import MessageQueue

__all__ = ["Unread", "hidden_reason", "hidden_states", "in_words", "unread"]

QUEUES_SHOWN = GROUPS_SHOWN = 5

# Queue id to the offset of the oldest message that is kept and of the next to come.
Extents = Mapping[int, tuple[int, int]]


class Unread(NamedTuple):
    """Messages of a queue that some group has not consumed."""

    message_count: int  # by the group that is furthest behind
    groups: tuple[str, ...]  # none: nobody has ever consumed the topic


def unread(
    extents: Extents,
    offsets: Mapping[str, Mapping[int, int] | None],
) -> dict[int, Unread]:
    """Queue id to what is not consumed of it; what is empty or consumed by all is left out. Pure.

    offsets are those of each group that has begun the topic; None for a broadcasting one: what it has
    consumed is not known here, and counts as nothing. Without any group every message that is kept counts.
    """
    found = {}
    for queue_id, (begin, end) in sorted(extents.items()):
        counts = {group: end - max(begin, (ids or {}).get(queue_id, 0)) for group, ids in offsets.items()}
        behind = {group: count for group, count in counts.items() if count > 0}
        if end > begin and (behind or not counts):
            found[queue_id] = Unread(max(behind.values(), default=end - begin), tuple(sorted(behind)))
    return found


def in_words(held: Mapping[int, Unread]) -> str:
    """Which queues hold messages that are not consumed, and by which groups."""
    groups = sorted({group for each in held.values() for group in each.groups})
    count = sum(each.message_count for each in held.values())
    by = f"the group{'s' * (len(groups) > 1)} {_some(groups, GROUPS_SHOWN)}" if groups else "any group"
    queues = _some([str(queue_id) for queue_id in held], QUEUES_SHOWN)
    return (
        f"queue{'s' * (len(held) > 1)} {queues} hold{'s' * (len(held) == 1)} {count:,}"
        f" message{'s' * (count != 1)} that {'are' if count != 1 else 'is'} not consumed by {by}"
    )


def _some(names: Sequence[str], count_max: int) -> str:
    more = len(names) - count_max
    return ", ".join(names[:count_max]) + (f" and {more:,} more" if more > 0 else "")


def hidden_states(
    topic: str,
    broker_name: str,
    read_count: int,
    extents: Extents,
    committed: Mapping[MessageQueue, int],
) -> list[QueueState]:
    """The queues from read_count on, which nobody may read, that hold what a group has not consumed."""
    found = []
    for queue_id, (begin, end) in sorted(extents.items()):
        queue = MessageQueue(topic, broker_name, queue_id)
        lag = end - max(begin, committed.get(queue, 0))
        if queue_id >= read_count and lag > 0:
            reason = hidden_reason(topic, read_count, queue_id)
            found.append(QueueState(queue, None, committed.get(queue), end, lag, None, reason))
    return found


def hidden_reason(topic: str, read_count: int, queue_id: int) -> str:
    """Why nobody consumes a queue, and what to do about it."""
    return (
        f"nobody reads it: the topic has {read_count} queue{'s' * (read_count != 1)} to read."
        f" mq DIR create {topic} --read-queues {queue_id + 1}"
    )
