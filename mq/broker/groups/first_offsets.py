"""Where a group begins in a topic that it has no offset of: first, last, or at a time.

A group that is to begin with what comes from now on, and wants a topic that is not there yet, awaits it: all
that is sent to the topic comes after that. It is written down at once, since nothing else tells whoever joins
later, and would take the end of the topic for the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.api.beginning import first_offset
from mq.api.group import Member
from mq.api.results import MessageQueue
from mq.broker.groups.offsets import Offsets
from mq.errors import NotPermitted, TopicNotFound
from mq.names import RETRY_PREFIX
from mq.store.queue.reader import Reader
from mq.store.shared.group_file import GroupFile

__all__ = ["FirstOffsets"]


class FirstOffsets:
    """For the groups of one store. `readable` are the queues of a topic to read from."""

    def __init__(
        self, reader: Reader, readable: Callable[[str], Sequence[MessageQueue]], offsets: Offsets
    ) -> None:
        self._reader = reader
        self._readable = readable
        self._offsets = offsets

    def commit(self, group: str, file: GroupFile, member: Member, consume_from: str | int | None) -> None:
        """Commit where the group begins, in topics of this member that it has not begun."""
        if member.model != "clustering" or consume_from is None:
            return  # Each consumer has offsets of its own.
        for topic in [subscription.topic for subscription in member.subscriptions]:
            # What is in the retry topic was taken by the group before.
            begin = "first" if topic == RETRY_PREFIX + group else consume_from
            self.begin(group, file, topic, begin)

    def begin(self, group: str, file: GroupFile, topic: str, consume_from: str | int) -> None:
        """Under byte 0 of the group's file: commit where it begins a topic that it has not begun."""
        try:
            queues = self._readable(topic)
        except NotPermitted:  # It is there, with messages that may come before the beginning.
            return
        except TopicNotFound:
            if consume_from == "last":
                self._offsets.await_topic(group, topic)
            return
        numbers = [self._reader.number(queue) for queue in queues]
        if any(file.committed(number) is not None for number in numbers):
            return
        if consume_from == "last" and self._offsets.awaits(group, topic):
            consume_from = "first"
        for number in numbers:
            file.ready(number)
        for queue, number in zip(queues, numbers, strict=True):
            file.raise_to(number, first_offset(self._reader, queue, consume_from))
