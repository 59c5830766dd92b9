"""Dead letters sent back to be consumed again: broker.redrive, and `mq DIR redrive`.

Sent back, a dead letter is stored in the group's retry topic, to be consumed at once and by this group alone.
The group's push consumers see it under the topic that it came from; those of an ordered group see dead
letters in the order in which they are sent, beside what the queues of the topic hold. Where all groups are to
have it, it is stored in its topic instead: in the queue that it was first sent to, as long as the log has the
message of ORIGIN_MESSAGE_ID; in any queue after that. Either way it is as if it had never been consumed.
DLQ_ORIGIN_MESSAGE_ID names the dead letter, so it is known which ones were sent back, also after the process
that did it died.

How far all dead letters of a group are sent back is kept as the offsets of REDRIVE_GROUP.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from pathlib import Path

from mq.api.local import Redriven
from mq.api.queues import readable
from mq.api.results import MessageQueue
from mq.broker.delay.schedule import Schedule
from mq.broker.groups.groups import Groups
from mq.broker.message_query import Finder
from mq.broker.topics.registry import Catalog
from mq.errors import MessageNotFound, MQError, NotPermitted, StoreCorrupted, TopicInvalid, TopicNotFound
from mq.fastpath import Guard
from mq.filter.selection import Selection
from mq.message import MessageExt
from mq.names import DEAD_PREFIX, REDRIVE_GROUP, RETRY_PREFIX, check_group, check_topic
from mq.store.log.reappend import changed
from mq.store.queue.reader import Reader
from mq.store.shared.lock_guards import file_lock

__all__ = ["Redrive"]

READ_COUNT, READ_SIZE = 32, 256 << 10
COPIES_MAX = 1024  # How often one message may have died and been sent back.

log = logging.getLogger("mq.groups")


class Redrive:
    """Sends back the dead letters of one group of the broker of a directory."""

    def __init__(
        self,
        root: Path,
        group: str,
        catalog: Catalog,
        groups: Groups,
        schedule: Schedule,
        reader: Reader,
        finder: Finder,
        *,
        selection: Selection | None,
        dry_run: bool,
        all_groups: bool,
    ) -> None:
        check_group(group)
        self._root = root
        self._group = group
        self._catalog = catalog
        self._groups = groups
        self._schedule = schedule
        self._reader = reader
        self._finder = finder
        self._selection = selection
        self._dry_run = dry_run
        self._all_groups = all_groups

    def run(self, count_max: int | None) -> Redriven:
        """See Directory.redrive."""
        try:
            queues = self._catalog.readable(DEAD_PREFIX + self._group)
        except TopicNotFound:
            return Redriven(0, 0, 0, 0)
        with self._alone():
            total = Redriven(0, 0, 0, 0)
            for queue in queues:
                left = None if count_max is None else count_max - total.sent
                counts = self._redrive_queue(queue, left)
                total = Redriven(*(before + more for before, more in zip(total, counts, strict=True)))
        return total

    def _redrive_queue(self, queue: MessageQueue, count_max: int | None) -> Redriven:
        sent = left = known = stuck = 0
        done = self._groups.committed(REDRIVE_GROUP, queue) or 0
        offset = max(done, self._reader.min_offset(queue))
        pull = self._reader.puller(queue)
        is_whole = True  # Nothing before `offset` is left to be sent by a later call.
        for found in readable(lambda at: pull(at, READ_COUNT, READ_SIZE, None, 0.0), offset):
            if sent == count_max:
                break
            messages = list(found.messages)
            wanted = messages if self._selection is None else self._selection.keep(messages)
            chosen = {message.queue_offset for message in wanted}
            for message in messages:
                if count_max is not None and sent == count_max:
                    return Redriven(sent, left, known, stuck)
                topic = message.properties.get("DLQ_ORIGIN_TOPIC") or message.properties.get("RETRY_TOPIC")
                if message.queue_offset not in chosen:
                    left += 1
                    is_whole = False
                elif topic is None or not self._has_target(topic, message):
                    stuck += 1
                    is_whole = False
                elif self._was_sent((RETRY_PREFIX + self._group, topic), message):
                    known += 1
                else:
                    sent += 1
                    if not self._dry_run:
                        self._send_again(topic, message)
                if is_whole and not self._dry_run:
                    self._groups.commit(REDRIVE_GROUP, queue, message.queue_offset + 1)
        return Redriven(sent, left, known, stuck)

    def _has_target(self, topic: str, message: MessageExt) -> bool:
        """Whether there is still a topic to consume this from, or to send it to."""
        try:
            if self._all_groups:
                self._catalog.target(topic)
            else:
                check_topic(topic)
                self._catalog.settings(topic)
            return True
        except (TopicNotFound, TopicInvalid, NotPermitted) as error:
            log.warning("dead letter %s stays where it is: %s", message.msg_id, error)
            return False

    def _target(self, topic: str, message: MessageExt) -> MessageQueue:
        """The queue of a topic that has the place of the one in which the message was."""
        queues = self._catalog.publishable(topic)
        queue_id = self._origin_queue(message) if len(queues) > 1 else 0
        return random.choice(queues) if queue_id is None else queues[queue_id % len(queues)]

    def _origin_queue(self, message: MessageExt) -> int | None:
        """The queue that a dead letter was first sent to; None where the log has that message no more."""
        try:
            return self._finder.message(message.properties.get("ORIGIN_MESSAGE_ID", "")).queue_id
        except (MessageNotFound, StoreCorrupted):
            return None

    def _was_sent(self, topics: Iterable[str], message: MessageExt) -> bool:
        return any(
            found.properties.get("DLQ_ORIGIN_MESSAGE_ID") == message.offset_msg_id
            for topic in topics
            if self._catalog.exists(topic)
            for found in self._finder.query(topic, message.msg_id, COPIES_MAX, 0, None)
        )

    def _send_again(self, topic: str, message: MessageExt) -> None:
        target = self._target(topic if self._all_groups else RETRY_PREFIX + self._group, message)
        properties = {
            "DLQ_ORIGIN_TOPIC": topic,
            "DLQ_ORIGIN_MESSAGE_ID": message.offset_msg_id,
            **dict.fromkeys(("RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "DELAY", "WAIT")),
        }
        if target.topic != topic:
            properties["RETRY_TOPIC"] = topic  # by which a consumer knows where it is from
        with self._catalog.first_send([(target.topic, target.queue_id)]):
            encoded = changed(message.encoded, properties)
            copy = self._schedule.copies.append(
                target.topic, target.queue_id, message, encoded, reconsume_times=0
            )
            self._schedule.kept(copy)

    def _alone(self) -> Guard:
        def busy() -> MQError:
            return NotPermitted(
                f"another process is sending dead letters back: try {self._group} when it is done"
            )

        return file_lock(self._root / "mq" / "redrive", 0, "sending dead letters back", 0.0, busy=busy)
