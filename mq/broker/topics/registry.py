"""The topics of one broker: what there is, what is made by sending to it, and where one may send and read.

What config/topics.json says (see config.py), looked up again after every change of a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from mq.api.results import MessageQueue
from mq.api.topic import TopicChange
from mq.broker.topics.config import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    Topics,
    TopicSettings,
    grown,
    reshaped,
)
from mq.broker.topics.unread import Unread, in_words
from mq.errors import MQError, NotPermitted, TopicNotFound
from mq.names import DEAD_PREFIX, RETRY_PREFIX, UNSENDABLE_TOPICS, check_topic, is_system_topic
from mq.store.directory.root import AUTO_MEMBER, BEGIN_MEMBER
from mq.store.store import Store
from mq.uninterrupted import uninterrupted

__all__ = ["Catalog"]

TEMPLATE_TOPIC = "TBW102"
NEW_QUEUE_COUNT = 4
TEMPLATE = TopicSettings(TEMPLATE_TOPIC, 8, 8, PERM_READ | PERM_WRITE | PERM_INHERIT)
CLOSED = (-1,)
NAMED_MAX = 20  # topics, in a warning

# (topic, queue ids) -> what of these queues is not consumed.
UnreadIn = Callable[[str, range], Mapping[int, Unread]]

_log = logging.getLogger("mq.store")


class Catalog:
    """Topics of the store of one broker.

    auto_create: a topic that somebody sends to is made, with default_queue_count queues at most.
    has_offsets(group, exists): whether a group has any, of topics that exist.
    """

    def __init__(
        self,
        store: Store,
        broker_name: str,
        *,
        auto_create: bool,
        default_queue_count: int,
        has_offsets: Callable[[str, Callable[[str], bool]], bool],
    ) -> None:
        self.version: Any = store.topics_version()  # A word in shared memory: it grows with every change.
        self._store = store
        self._broker_name = broker_name
        self._auto_create = auto_create
        self._default_queue_count = default_queue_count
        self._has_offsets = has_offsets
        self._topics = Topics(store.root)
        # With the version for which they are so. A pair: what one thread read before is not taken for what
        # another one has seen since.
        self._known: tuple[int, dict[str, TopicSettings]] = -1, {}
        self._shrinking: tuple[int, list[str]] = -1, []  # the same of those that are being shrunk
        self._adopt_more_queues()  # First: what is found below is saved, and leaves no doubt.
        self._adopt_queues()
        if not store.read_only:
            store.at_last_close(self.fold)

    def change(self, name: str, change: TopicChange, unread: UnreadIn) -> None:
        """See Broker.change_topic."""
        uninterrupted(lambda: self._change(name, change, unread), of=self._store)

    def _change(self, name: str, change: TopicChange, unread: UnreadIn) -> None:
        with self._topics.changing():
            topics = self._topics.load() or self._known[1]
            known = topics.get(name)
            if known is None:
                fresh = TopicSettings(name, 0, NEW_QUEUE_COUNT, others={BEGIN_MEMBER: self._store.end()})
                reads = change.read_queue_count or NEW_QUEUE_COUNT
                settings = reshaped(fresh, replace(change, read_queue_count=reads))
            else:
                settings = reshaped(known, change)
                if settings.final_read_count < known.final_read_count and not change.shrink:
                    gone = range(settings.final_read_count, known.read_queue_count)
                    if held := unread(name, gone):
                        is_both = change.write_queue_count == change.read_queue_count
                        option = "--queues" if is_both else "--read-queues"
                        raise NotPermitted(
                            f"topic {name} cannot have {settings.final_read_count} queues to read:"
                            f" {in_words(held)}. Give shrink=True (mq DIR create {name} {option}"
                            f" {settings.final_read_count} --shrink) to send nothing more there, and have"
                            " them read until all groups have consumed them"
                        )
            is_wanted = AUTO_MEMBER not in settings.others
            if settings == known and is_wanted:
                self._announce(settings)
            else:
                others = {key: value for key, value in settings.others.items() if key != AUTO_MEMBER}
                settings = replace(settings, others=others)
                self._save(topics, {name: settings})
            if settings.shrink_to is not None:
                self._shrink(name, settings, unread)

    def _shrink(self, name: str, settings: TopicSettings, unread: UnreadIn) -> None:
        """Take from a topic the queues to read that it is to lose, if all is consumed. Under `changing`."""
        if unread(name, range(settings.final_read_count, settings.read_queue_count)):
            return
        shrunk = replace(settings, read_queue_count=settings.final_read_count, shrink_to=None)
        self._save(self._topics.load(), {name: shrunk})

    def finish_shrinking(self, unread: UnreadIn) -> None:
        """Take from topics the queues to read that they are to lose, where all is consumed by now."""
        if self._shrinking[0] != self.version[0]:
            version, topics = int(self.version[0]), self.current()
            shrinking = [name for name, each in list(topics.items()) if each.shrink_to is not None]
            self._shrinking = version, shrinking
        for name in self._shrinking[1]:
            with self._topics.changing():
                settings = self._topics.load().get(name)
                if settings is not None and settings.shrink_to is not None:
                    self._shrink(name, settings, unread)

    def _put(self, settings: TopicSettings) -> bool:
        """Have a topic of this name: with these settings unless there is one. Whether there was none."""
        return uninterrupted(lambda: self._put_and_tell(settings), of=self._store)

    def _put_and_tell(self, settings: TopicSettings) -> bool:
        with self._topics.changing():
            topics = self._topics.load() or self._known[1]
            known = topics.get(settings.name)
            if known is not None:
                self._announce(known)
                return False
            others = {**settings.others, BEGIN_MEMBER: self._store.end()}
            self._save(topics, {settings.name: replace(settings, others=others)})
            return True

    def _announce(self, settings: TopicSettings) -> None:
        """Tell everybody of what topics.json says, if nobody has: the process that wrote it may have died
        before it was on disk for sure, and before it told anybody."""
        if self.current().get(settings.name) != settings:
            self._topics.sync()
            self._store.topics_changed()

    def _save(self, topics: dict[str, TopicSettings], changed: Mapping[str, TopicSettings | None]) -> None:
        if TEMPLATE_TOPIC not in topics:
            changed = {TEMPLATE_TOPIC: TEMPLATE, **changed}
        self._topics.change(topics, changed)
        self._store.topics_changed()

    def fold(self) -> None:
        """Have all topics in config/topics.json, where a RocketMQ broker looks for them."""
        if self._topics.has_journal():
            with self._topics.changing():
                self._topics.fold()

    def delete(self, name: str, forget: Callable[[str], None]) -> None:
        """Delete a topic and its queues; forget(name) is told when nothing more can be sent to it, and again
        when its queues are gone. See LocalBroker.delete_topic."""
        check_topic(name)
        if is_system_topic(name):
            raise NotPermitted(f"{name} is one of RocketMQ's own topics and stays")
        uninterrupted(lambda: self._delete(name, forget), of=self._store)

    def _delete(self, name: str, forget: Callable[[str], None]) -> None:
        with self._topics.changing():
            topics = self._topics.load() or self._known[1]
            if name in topics:
                self._save(topics, {name: None})
            elif all(topic != name for topic, _ in self._store.queues()):
                raise TopicNotFound(name)
            # Else the process that began to delete it died in between.
            with suppress(MQError, OSError):  # A full disk, say, of which the deletion may free some.
                forget(name)
            self._store.delete_queues(name)
            # Again: a process that looked between the two may have found the queues of the deleted topic.
            self._store.topics_changed()
            forget(name)

    def names(self) -> list[str]:
        """Of all topics but RocketMQ's own, sorted."""
        return sorted(name for name in list(self.current()) if not is_system_topic(name))

    def settings(self, name: str) -> TopicSettings:
        """Queue counts, permissions and order of a topic. Raises TopicNotFound."""
        try:
            return self.current()[name]
        except KeyError:
            raise TopicNotFound(name) from None

    def current(self) -> dict[str, TopicSettings]:
        """The settings of all topics by name."""
        self._store.live()
        version = int(self.version[0])
        seen, settings = self._known
        if version != seen:
            settings = self._topics.load()
            self._known = version, settings
        return settings

    def exists(self, topic: str) -> bool:
        return topic in self.current() or is_system_topic(topic)

    def _adopt_queues(self) -> None:
        """Topics that have queues but no settings, as a broker's directory or a lost topics.json leaves
        them."""
        unknown: dict[str, int] = {}
        for topic, queue_id in self._store.queues(except_of=self.current()):
            unknown[topic] = max(queue_id, unknown.get(topic, 0))
        if not unknown:
            return
        version, known = self._known
        topics = dict(known)
        for topic, last in unknown.items():
            topics[topic] = grown(TopicSettings(topic, 0, 0), last)
        if self._store.read_only:
            self._known = version, topics
            return
        with self._topics.changing():
            # Looked at again: a topic that is being deleted has queues for longer than settings.
            found_now = {topic for topic, _ in self._store.queues()}
            fresh = {topic: topics[topic] for topic in unknown if topic in found_now}
            if fresh:
                known = self._topics.load()
                fresh = {name: each for name, each in fresh.items() if name not in known}
                self._save(known, fresh)
                if found := sorted(name for name in fresh if not is_system_topic(name)):
                    _log.warning(
                        "%s: config/topics.json and mq/topics.journal have no settings of topics that hold"
                        " messages: found again by their queues, with as many as have had messages: %s%s",
                        *(self._store.root, ", ".join(found[:NAMED_MAX])),
                        f" and {len(found) - NAMED_MAX:,} more" if len(found) > NAMED_MAX else "",
                    )

    def _adopt_more_queues(self) -> None:
        """Topics that have fewer queues than hold messages, by settings that an older copy or a damaged
        topics.json leaves. A topic that was shrunk on purpose gets its queues back, consumed as they are."""
        known = self.current()
        doubts = self._topics.doubts()
        if not doubts:
            return
        ends = dict(sorted(self._store.queues()))  # topic -> its last queue
        wider = {
            topic: replace(grown(known[topic], last), shrink_to=None)
            for topic, last in ends.items()
            if topic in known and last >= known[topic].read_queue_count
        }
        found = [f"{topic} ({each.read_queue_count} queues)" for topic, each in sorted(wider.items())]
        more = f" and {len(found) - NAMED_MAX:,} more" if len(found) > NAMED_MAX else ""
        _log.warning(
            "%s. Topics with more queues that hold messages have these again: %s%s",
            *("; ".join(doubts), ", ".join(found[:NAMED_MAX]) or "none", more),
        )
        if self._store.read_only:
            self._known = self._known[0], {**known, **wider}
            return
        with self._topics.changing():
            topics = self._topics.load()
            if self._topics.doubts():  # Else another process was faster.
                self._topics.rewrite({name: wider.get(name, each) for name, each in topics.items()})
                self._store.topics_changed()

    def check_writable(self) -> None:
        """Raises NotPermitted for a directory that is open to be read alone."""
        self._store.live()
        if self._store.read_only:
            raise NotPermitted(f"{self._store.root} was opened with read_only=True")

    def check_master(self) -> None:
        """Raises NotPermitted also for a replica, which has its master's topics and messages alone."""
        self.check_writable()
        self._store.check_master()

    def route_version(self) -> int:
        """See Broker.route_version."""
        return int(self.version[0])

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        """See Broker.publishable."""
        count = self.target(topic).write_queue_count
        return tuple(MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(count))

    def sendable(self, topic: str) -> TopicSettings:
        """The settings of a topic that may be sent to, which makes it if need be."""
        settings = self.target(topic)
        if topic in self.current():
            return settings
        self._put(settings)
        return self.settings(topic)

    def target(self, topic: str) -> TopicSettings:
        """The settings of a topic that may be sent to, or those that the first message gives it."""
        self.check_master()
        settings = self.current().get(topic) or self.wanted(topic)
        if topic in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{topic} is one of RocketMQ's own topics: nobody sends to it")
        if not settings.perm & PERM_WRITE:
            raise NotPermitted(f"topic {topic} may not be written: its perm is {_letters(settings.perm)!r}")
        return settings

    def wanted(self, topic: str) -> TopicSettings:
        """The settings that the first message gives a topic. Raises TopicNotFound where it may not."""
        check_topic(topic)
        retry = topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
        if topic in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{topic} is one of RocketMQ's own topics: nobody sends to it")
        if not self._auto_create and not retry:
            raise TopicNotFound(topic)
        template = self.current().get(TEMPLATE_TOPIC, TEMPLATE)
        if not template.perm & PERM_INHERIT and not retry:
            raise TopicNotFound(topic)
        count = 1 if retry else min(self._default_queue_count, template.write_queue_count)
        return TopicSettings(topic, count, count, template.perm & ~PERM_INHERIT, others={AUTO_MEMBER: True})

    def have(self, name: str, queue_count: int) -> None:
        """Make a topic if there is none of this name, RocketMQ's own ones included."""
        if name not in self.current():
            self._put(TopicSettings(name, queue_count, queue_count, PERM_READ | PERM_WRITE))

    def due_place(self, topic: str, queue_id: int) -> tuple[str, int] | None:
        """Where a delayed message is delivered to: a queue that is still there. See Delivery."""
        try:
            settings = self.current().get(topic)
            if settings is None:
                if self.is_abandoned(topic):
                    return None
                self._put(self.wanted(topic))
                settings = self.settings(topic)
        except TopicNotFound:
            return None
        if queue_id >= settings.final_read_count > 0:
            queue_id %= settings.final_read_count
        return topic, queue_id

    def is_abandoned(self, topic: str) -> bool:
        """Whether this is a retry topic that was deleted with its group: nobody wants what is on its way
        there. That of a group with offsets is made anew, whatever became of it."""
        if not topic.startswith(RETRY_PREFIX) or topic in self.current():
            return False
        return not self._has_offsets(topic.removeprefix(RETRY_PREFIX), self.exists)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        """See Broker.readable."""
        settings = self.settings(topic)
        if not settings.perm & PERM_READ:
            raise NotPermitted(f"topic {topic} may not be read: its perm is {_letters(settings.perm)!r}")
        return tuple(
            MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(settings.read_queue_count)
        )

    def is_new(self, topic: str, queue_id: int, broker_name: str | None = None) -> bool:
        """Whether a message there is the first one, which makes the topic. Raises what forbids it."""
        if broker_name is not None:
            self._check_ours(MessageQueue(topic, broker_name, queue_id))
        settings = self.target(topic)
        count = max(settings.write_queue_count, settings.final_read_count)
        if not isinstance(queue_id, int) or not 0 <= queue_id < count:
            raise ValueError(f"topic {topic} has queues 0 to {count - 1}, none of id {queue_id!r}")
        return topic not in self.current()

    def admit_write(self, topic: str, queue_id: int) -> None:
        """Have the topic for a message there. Raises what forbids it."""
        if self.is_new(topic, queue_id):
            self.sendable(topic)

    @contextmanager
    def first_send(self, queues: Iterable[tuple[str, int]]) -> Iterator[None]:
        """Have the topics of these queues. One that was made here is deleted again where what is done inside
        fails, unless it has messages by then, or somebody has asked for it."""
        made = []
        try:
            new = {topic for topic, queue_id in queues if self.is_new(topic, queue_id)}
            made = [topic for topic in sorted(new) if self._put(self.target(topic))]
            yield
        except BaseException as error:
            if getattr(error, "unique_id", None) is None:  # With one, the message may be stored.
                for topic in made:
                    self._take_back(topic)
            raise

    def _take_back(self, name: str) -> None:
        try:
            with self._topics.changing():
                topics = self._topics.load()
                settings = topics.get(name)
                is_ours = settings is not None and AUTO_MEMBER in settings.others
                if settings is None or not is_ours or any(topic == name for topic, _ in self._store.queues()):
                    return
                # First: from here on no process appends to a queue of it without asking for the topic anew.
                self._topics.take_back(topics, name, TEMPLATE)
                self._store.topics_changed()
                try:
                    if not self._store.delete_queues(name, if_empty=True):  # Another process was faster.
                        self._save(self._topics.load(), {name: settings})
                finally:
                    self._store.topics_changed()
        except (MQError, OSError) as error:
            _log.warning("topic %s was made for a message that is not stored, and stays: %s", name, error)

    def admit_read(self, queue: MessageQueue) -> None:
        """Raises what forbids to read there."""
        topic, _, queue_id = queue
        self._check_ours(queue)
        settings = self.settings(topic)
        if not settings.perm & PERM_READ:
            raise NotPermitted(f"topic {topic} may not be read: its perm is {_letters(settings.perm)!r}")
        count = settings.read_queue_count
        if not isinstance(queue_id, int) or not 0 <= queue_id < count:
            raise ValueError(f"topic {topic} has queues 0 to {count - 1} to read, none of id {queue_id!r}")

    def _check_ours(self, queue: MessageQueue) -> None:
        ours = self._broker_name
        if queue.broker_name != ours:
            raise ValueError(f"{queue} is a queue of another broker: this one's name is {ours!r}")

    def close(self) -> None:
        """Say of every topic that it may be another one by now."""
        self.version = CLOSED  # The word would keep the control file mapped.


def _letters(perm: int) -> str:
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "")
