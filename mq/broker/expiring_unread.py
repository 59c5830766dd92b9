"""Which groups have not read messages that retention is about to delete.

A group has not read what is behind its offset in the queues of its topics, or, where its consumers broadcast,
behind the offset of the slowest of them. Its failed messages wait for another attempt in %RETRY%<group>,
which is the group's from its first message on, and before that in a delay level of SCHEDULE_TOPIC_XXXX, with
all other messages of that delay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mq.api.retention import Range, Unread
from mq.broker.broadcast.slowest import Topics
from mq.broker.delay.levels import SCHEDULE_TOPIC
from mq.broker.delay.pending import undelivered
from mq.broker.delay.schedule import Schedule
from mq.broker.groups.groups import Groups
from mq.names import RETRY_PREFIX, is_system_topic

__all__ = ["ExpiringUnread"]


class ExpiringUnread:
    """Of one broker."""

    def __init__(self, broker_name: str, groups: Groups, schedule: Schedule) -> None:
        self._broker_name = broker_name
        self._groups = groups
        self._schedule = schedule

    def of(self, ranges: Sequence[Range]) -> Iterator[Unread]:
        """What of these messages each group has not read."""
        by_topic: dict[str, list[Range]] = {}
        delayed: list[Range] = []
        for each in ranges:
            if each.topic == SCHEDULE_TOPIC:
                delayed.append(each)
            elif not is_system_topic(each.topic):
                by_topic.setdefault(each.topic, []).append(each)
        if not by_topic and not delayed:
            return
        readers = self._readers(by_topic)
        for group, topics in sorted(readers.items()):
            for topic in sorted(topics.keys() & by_topic.keys()):
                yield from _behind(group, topic, by_topic[topic], topics[topic])
        for each in delayed:
            yield from self._not_delivered(each, readers)

    def _readers(self, topics: dict[str, list[Range]]) -> dict[str, Topics]:
        """The topics of each group."""
        found = self._groups.reading()
        for topic in topics:
            if group := retrying_group(topic):  # With or without an offset, or a member.
                found.setdefault(group, {}).setdefault(topic, {})
        return found

    def _not_delivered(self, level: Range, readers: dict[str, Topics]) -> Iterator[Unread]:
        """Of the messages of a delay level: those that are not delivered yet, for the groups of the topics
        that they are meant for."""
        runs: dict[str, tuple[int, int]] = {}  # group to the first and last offset of a run of messages
        for topic, offset in undelivered(self._schedule, self._broker_name, level):
            retrying = retrying_group(topic)
            groups = [retrying] if retrying else [name for name, of in readers.items() if topic in of]
            for group in groups:
                first, last = runs.get(group, (offset, offset - 1))
                if last != offset - 1:
                    yield Unread(group, SCHEDULE_TOPIC, level.queue_id, first, last)
                    first = offset
                runs[group] = first, offset
        for group, (first, last) in sorted(runs.items()):
            yield Unread(group, SCHEDULE_TOPIC, level.queue_id, first, last)


def _behind(group: str, topic: str, ranges: list[Range], offsets: Mapping[int, int]) -> Iterator[Unread]:
    for each in ranges:
        first = max(each.first, offsets.get(each.queue_id, 0))
        if first <= each.last:
            yield Unread(group, topic, each.queue_id, first, each.last)


def retrying_group(topic: str) -> str:
    """The group whose failed messages wait in a topic; "" for any other topic."""
    return topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else ""
