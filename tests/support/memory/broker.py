"""A Broker in memory: the measure of what mq.api asks of a broker, and the yardstick for the others.

As simple as the rules allow, and nothing of mq's store in it: one dict of queues, one heap of what waits for
its time, one lock.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mq.api.broker import Appender, Broker, MessageQueue, Puller, PullResult, SendResult, Topic, TopicChange
from mq.api.recall import RecallHandle
from mq.api.results import PullStatus, SendStatus
from mq.broker.groups.retry import handed_back
from mq.due_time import due_ms, slot_ms
from mq.errors import BrokerClosed, MessageNotFound, NotPermitted, TopicNotFound
from mq.filter.tags import tag_hash
from mq.message import Message, MessageExt
from mq.names import DEAD_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, UNSENDABLE_TOPICS, is_system_topic
from mq.properties import value_of
from tests.support.memory.groups import MemoryConsumerGroups, MemoryWaiter
from tests.support.memory.transactions import MemoryTransactions
from tests.support.records import STORE_HOST, encode_record, encoded, fields_of, unique_id

NAME = "mq"
AUTO_QUEUES_MAX = 8  # what RocketMQ's template topic has
SCAN_MAX = 800  # messages that one pull looks at
# Delays of the levels 1 to 18: client-semantics of RocketMQ, in ms.
DELAYS_MS = [1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)]
Hashes = frozenset[int] | None
ASIDE = MessageQueue("rmq_sys_wheel_timer", NAME, 0)  # where messages lie until they are due


@dataclass
class _Topic:
    read_count: int
    write_count: int
    perm: str = "rw"
    ordered: bool = False
    made_at: int = 0  # the end of the log then: tells it from others of its name
    shrink_to: int | None = None  # once the queues to read from there on are consumed


@dataclass(kw_only=True, eq=False, repr=False)
class MemoryBroker(Broker):
    """See mq.api.broker.Broker."""

    message_size_max: int = 4 << 20
    auto_create_topics: bool = True
    default_queue_count: int = 4
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    timer_precision_ms: int = 1000
    timer_max_delay_ms: int = 259_200_000
    transaction_timeout: float = 6.0
    transaction_check_interval: float = 30.0
    transaction_check_max: int = 15

    name = NAME
    may_wait = True  # So that both ways are taken by the tests.

    def __post_init__(self) -> None:
        self.changed = threading.Condition()  # guards everything, and is told of every change
        self.queues: dict[MessageQueue, list[MessageExt]] = defaultdict(list)
        self._topics: dict[str, _Topic] = {}
        self._version = 0
        self._closed = False
        self._log: dict[int, MessageExt] = {}
        self._log_end = 0
        self._waiting: list[tuple[int, int, int, MessageExt]] = []  # due, delay level, log offset: a heap
        self._groups = MemoryConsumerGroups(self)
        self._transactions = MemoryTransactions(self)

    @property
    def transactions(self) -> MemoryTransactions:
        return self._transactions

    @property
    def consumer_groups(self) -> MemoryConsumerGroups:
        return self._groups

    def flush(self) -> None:
        self.check_open()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            self._groups.close()

    def check_open(self) -> None:
        if self._closed:
            raise BrokerClosed("this broker is closed")

    # Topics.

    def change_topic(self, name: str, change: TopicChange) -> None:
        with self.changed:
            self.check_open()
            known = self._topics.get(name)
            old = known or _Topic(0, 4, made_at=self._log_end)
            final = old.shrink_to or old.read_count or 4
            reads = change.read_queue_count or final
            writes = change.write_queue_count or min(old.write_count, reads if reads < final else 65_536)
            perm = old.perm if change.perm is None else change.perm
            ordered = old.ordered if change.ordered is None else change.ordered
            fresh = _Topic(max(reads, old.read_count), writes, perm, ordered, old.made_at)
            if reads < old.read_count:
                held = self._unread(name, range(reads, old.read_count))
                if held and not change.shrink and reads < final:
                    raise NotPermitted(f"{name}: queues {held} are not consumed: shrink=True")
                fresh.read_count, fresh.shrink_to = (old.read_count, reads) if held else (reads, None)
            if fresh != known:
                self._set_topic(name, fresh)

    def _set_topic(self, name: str, topic: _Topic) -> None:
        self._topics[name] = topic
        self._version += 1
        self.changed.notify_all()

    def _unread(self, name: str, ids: range) -> list[int]:
        """Queues that some group has not consumed; without groups, those that are not empty."""
        groups = self._groups
        of_groups = [found for group in groups.names() if (found := groups.offsets(group, name))]
        queues = [MessageQueue(name, NAME, queue_id) for queue_id in ids]
        consumed = {each: min((found.get(each, 0) for found in of_groups), default=0) for each in queues}
        return [each.queue_id for each in queues if consumed[each] < len(self.queues[each])]

    def delete_topic(self, name: str) -> None:
        with self.changed:
            self.check_open()
            if is_system_topic(name):
                raise NotPermitted(f"{name} is a system topic")
            if self._topics.pop(name, None) is None:
                raise TopicNotFound(name)
            for queue in [queue for queue in self.queues if queue.topic == name]:
                del self.queues[queue]
            self._waiting = sorted(each for each in self._waiting if each[3].properties["REAL_TOPIC"] != name)
            self._groups.forget_topic(name)
            self._version += 1
            self.changed.notify_all()

    def topics(self) -> list[str]:
        self.check_open()
        return sorted(self._topics)

    def topic(self, name: str) -> Topic:
        self._topic(name)
        return Topic(self, name)

    def made_at(self, topic: str) -> int:
        return self._topic(topic).made_at

    def _topic(self, name: str) -> _Topic:
        self.check_open()
        if name in SYSTEM_TOPICS:
            raise NotPermitted(f"{name} is a system topic")
        try:
            return self._topics[name]
        except KeyError:
            raise TopicNotFound(name) from None

    def _target(self, name: str) -> _Topic:
        """A topic to send to, or what the first message makes."""
        self.check_open()
        if name in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{name} is a system topic")
        is_own = name.startswith((RETRY_PREFIX, DEAD_PREFIX))
        count = 1 if is_own else self.auto_create_topics * min(self.default_queue_count, AUTO_QUEUES_MAX)
        topic = self._topics.get(name) or _Topic(count, count, made_at=self._log_end)
        if "w" not in topic.perm:
            raise NotPermitted(f"{name} may not be written")
        if not topic.write_count:
            raise TopicNotFound(name)
        return topic

    # Queues.

    def route_version(self) -> int:
        return self._version

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        return [MessageQueue(topic, NAME, queue_id) for queue_id in range(self._target(topic).write_count)]

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        found = self._topic(topic)
        if "r" not in found.perm:
            raise NotPermitted(f"{topic} may not be read")
        return [MessageQueue(topic, NAME, queue_id) for queue_id in range(found.read_count)]

    def check_writable(self, queue: MessageQueue) -> _Topic:
        """The topic of a queue that takes messages; the lock is held."""
        topic = self._target(queue.topic)
        if not 0 <= queue.queue_id < max(topic.write_count, topic.shrink_to or topic.read_count):
            raise ValueError(f"{queue.topic} has no queue {queue.queue_id}")
        return topic

    def messages_of(self, queue: MessageQueue) -> list[MessageExt]:
        """What is in a queue that may be read; the lock is held."""
        self.deliver_due()
        if queue not in self.readable(queue.topic):
            raise ValueError(f"{queue.topic} has no queue {queue.queue_id} to read")
        return self.queues[queue]

    def appender(self, queue: MessageQueue) -> Appender:
        return self.until_changed(queue, partial(self.append, queue))

    def until_changed(self, queue: MessageQueue, append: Callable[..., SendResult]) -> Appender:
        """The same as an appender of a queue, for as long as no topic changes."""
        with self.changed:
            version = self._version
            self.check_writable(queue)
        return lambda *given: append(*given) if self._version == version else None

    def append(
        self, queue: MessageQueue, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None
    ) -> SendResult:
        """What an appender does."""
        return self._append(queue, [(message, body, sys_flag, unique_id)])

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        return self._append(queue, [(each, each.body, 0, None) for each in messages])

    def _append(
        self, queue: MessageQueue, messages: list[tuple[Message, bytes, int, str | None]]
    ) -> SendResult:
        with self.changed:
            topic, now, limit_ms = self.check_writable(queue), self.clock(), self.timer_max_delay_ms
            times = {"born_time_ms": now, "store_time_ms": now}
            dues = [due_ms(message, now * 1_000_000 + 1, limit_ms) for message, _, _, _ in messages]
            if queue.topic not in self._topics:
                self._set_topic(queue.topic, topic)
            stored = []
            for (message, body, sys_flag, given_id), due in zip(messages, dues, strict=True):
                properties, told_id = message.encoded, value_of(message.encoded, b"UNIQ_KEY\x01")
                properties += encoded({"UNIQ_KEY": given_id or unique_id()} if told_id is None else {})
                fields = {"flag": message.flag, "sys_flag": sys_flag, **times}
                stored.append(self._store(queue, body, properties, message.delay_level, due, fields))
        ids, places = [each.msg_id for each in stored], [each.log_offset for each in stored]
        status, offset, out_ms = SendStatus.SEND_OK, stored[0].queue_offset, _out_ms(stored[0])
        if len(stored) > 1:
            return SendResult(status, queue, offset, ids, (STORE_HOST, places))
        return SendResult(status, queue, offset, ids[0], (STORE_HOST, places[0]), out_ms=out_ms)

    def store(self, queue: MessageQueue, body: bytes, properties: bytes, **fields: Any) -> MessageExt:
        """Append a message to a queue; the lock is held."""
        fields = {"store_time_ms": self.clock(), **fields}
        place = queue.topic, queue.queue_id, len(self.queues[queue]), self._log_end
        stored = MessageExt(encode_record(*place, body, properties, **fields), NAME)
        self.queues[queue].append(stored)
        self._log[self._log_end] = stored
        self._log_end += stored.store_size
        self.changed.notify_all()
        return stored

    def puller(self, queue: MessageQueue) -> Puller:
        return partial(self.pull, queue)

    def pull(
        self, queue: MessageQueue, offset: int, count_max: int, byte_max: int, tag_hashes: Hashes, wait: float
    ) -> PullResult:
        """What a puller does."""
        deadline = time.monotonic() + wait
        with self.changed:
            while True:
                result = _look(self.messages_of(queue), offset, count_max, byte_max, tag_hashes)
                left = deadline - time.monotonic()
                if result.status in {PullStatus.FOUND, PullStatus.OFFSET_ILLEGAL} or left <= 0:
                    return result
                offset = result.next_offset
                if result.status is PullStatus.NO_NEW_MESSAGE:
                    self.changed.wait(min(left, self.until_due()))

    def min_offset(self, queue: MessageQueue) -> int:
        return self.offset_at(queue, 0)

    def max_offset(self, queue: MessageQueue) -> int:
        return self.offset_at(queue, 1 << 63)

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        with self.changed:
            return sum(message.store_time_ms < time_ms for message in self.messages_of(queue))

    def waiter(self) -> MemoryWaiter:
        return MemoryWaiter(self)

    def message(self, msg_id: str) -> MessageExt:
        self.check_open()
        for message in reversed(list(self._log.values())):
            if msg_id in {message.msg_id, message.offset_msg_id}:
                return message
        raise MessageNotFound(msg_id)

    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        self.check_open()
        if count_max < 1:
            raise ValueError(f"count_max is {count_max}")
        end_ms = 1 << 63 if end_ms is None else end_ms
        log = [message for message in reversed(list(self._log.values())) if message.topic == topic]
        found = [message for message in log if key in message.keys or key == message.msg_id]
        return [message for message in found if begin_ms <= message.store_time_ms <= end_ms][:count_max]

    def _store(
        self, queue: MessageQueue, body: bytes, properties: bytes, level: int, due: int, fields: Any
    ) -> MessageExt:
        """Append a message to a queue, or put it aside: until it is due, or for the delay of its level."""
        if not due and not level:
            return self.store(queue, body, properties, **fields)
        more = {"REAL_TOPIC": queue.topic, "REAL_QID": queue.queue_id}
        if due:
            more |= {"TIMER_OUT_MS": slot_ms(due, self.timer_precision_ms), "TIMER_DELIVER_MS": due}
        stored = self.store(ASIDE, body, properties + encoded(more), **fields)
        due = due or stored.store_time_ms + DELAYS_MS[min(level, len(DELAYS_MS)) - 1]
        heapq.heappush(self._waiting, (due, level, stored.log_offset, stored))
        return stored

    def deliver_due(self) -> None:
        """Store again, where they belong, the messages whose time has come."""
        with self.changed:
            while self._waiting and self._waiting[0][0] <= self.clock():
                waiting = heapq.heappop(self._waiting)[3]
                kept = waiting.properties
                queue = MessageQueue(kept.pop("REAL_TOPIC"), NAME, int(kept.pop("REAL_QID")))
                for name in ("DELAY", "TIMER_OUT_MS"):
                    kept.pop(name, None)
                if queue.topic in self._topics:
                    self.store(queue, waiting.stored_body, encoded(kept), **fields_of(waiting))

    def until_due(self) -> float:
        """Seconds until the next delivery."""
        self.check_open()
        return (self._waiting[0][0] - self.clock()) / 1000 if self._waiting else 3600.0

    def recall(self, handle: str) -> str:
        wanted = RecallHandle.of(handle)
        if wanted.broker_name != NAME or is_system_topic(wanted.topic):
            raise ValueError(f"{handle!r} is a handle of another broker")

        def is_meant(each: MessageExt) -> bool:
            return RecallHandle(each.properties["REAL_TOPIC"], NAME, _out_ms(each), each.msg_id) == wanted

        with self.changed:
            self.deliver_due()
            topics = [stored for queue, stored in self.queues.items() if queue.topic == wanted.topic]
            if any(message.msg_id == wanted.unique_id for stored in topics for message in stored):
                raise NotPermitted(f"{wanted.unique_id} is delivered")
            if not any(map(is_meant, self.queues[ASIDE])):
                raise MessageNotFound(wanted.unique_id)
            self._waiting = sorted(each for each in self._waiting if not is_meant(each[3]))  # still a heap
        return wanted.unique_id

    def send_back(
        self, message: MessageExt, group: str, *, delay_level: int = 0, max_reconsume_times: int = 16
    ) -> bool:
        """See Claim.send_back."""
        with self.changed:
            self.check_open()
            if message.log_offset not in self._log:
                raise MessageNotFound(message.offset_msg_id)
            back = handed_back(message, group, delay_level, max_reconsume_times)
            queue = MessageQueue(back.topic, NAME, 0)
            topic = self.check_writable(queue)
            if back.topic not in self._topics:
                self._set_topic(back.topic, topic)
            properties = encoded({**message.properties, **back.properties})
            fields = {**fields_of(message), "reconsume_times": back.reconsume_times}
            self._store(queue, message.stored_body, properties, back.delay_level, 0, fields)
            return True

    def retrying(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[str, int]:
        """See ConsumerGroups.retrying; the lock is held."""
        topic = RETRY_PREFIX + group
        pending = [each for _, _, _, each in self._waiting if each.properties["REAL_TOPIC"] == topic]
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            pending += self.queues[queue][offsets.get(queue, 0) :]
        return dict(Counter(each.properties["RETRY_TOPIC"] for each in pending))


def _out_ms(stored: MessageExt) -> int:
    """The slot of a message that waits for a time of its own; 0 of any other."""
    return int(stored.properties.get("TIMER_OUT_MS", 0)) if stored.topic == ASIDE.topic else 0


def _look(
    messages: list[MessageExt], offset: int, count_max: int, byte_max: int, tag_hashes: Hashes
) -> PullResult:
    """What a pull finds now."""
    end = len(messages)
    if count_max < 1:
        raise ValueError(f"count_max is {count_max}")
    if not 0 <= offset < end:
        status = PullStatus.NO_NEW_MESSAGE if offset == end else PullStatus.OFFSET_ILLEGAL
        return PullResult(status, (), max(0, min(offset, end)), 0, end)
    found: list[MessageExt] = []
    size, place = 0, offset
    for message in messages[offset : offset + max(SCAN_MAX, count_max)]:
        if tag_hashes is None or tag_hash(message.tags or "") in tag_hashes:
            size += message.store_size
            if found and size > byte_max:
                break
            found.append(message)
        place += 1
        if len(found) == count_max:
            break
    return PullResult(PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE, found, place, 0, end)
