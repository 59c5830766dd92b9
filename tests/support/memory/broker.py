"""A Broker in memory: the yardstick that the others are measured by.

As simple as the rules allow, and nothing of mq's store in it. Records are encoded here, in plain Python,
with the unique id and the checksum that every record of mq has; so a reader's MessageExt takes apart what
this file put together, and not what the code under test did.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from mq.api.broker import Appender, Broker, Puller, Topic
from mq.api.results import MessageQueue, PullResult, PullStatus, SendResult, SendStatus
from mq.errors import BrokerClosed, MessageNotFound, NotPermitted, TopicNotFound
from mq.filter.tags import tag_hash
from mq.message import Message, MessageExt
from mq.names import SYSTEM_TOPICS, UNSENDABLE_TOPICS, check_group, check_topic, is_system_topic
from tests.support.memory.consumer_groups import MemoryConsumerGroups
from tests.support.memory.groups import RETRY_PREFIX, MemoryGroups, MemoryWaiter, Position
from tests.support.memory.timers import MemoryTimers
from tests.support.memory.transactions import MemoryTransactions

if TYPE_CHECKING:
    pass

STORE_HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
AUTO_QUEUES_MAX = 8  # what RocketMQ's template topic has
SCAN_MAX = 800  # entries that one pull looks at
DEAD_PREFIX = "%DLQ%"
# Delays of the levels 1 to 18: client-semantics of RocketMQ, in ms.
DELAYS_MS: list[int] = [
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
]
PERMS = {"rw", "wr", "r", "w", ""}

_unique = count()


def encode_record(
    topic: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    body: bytes,
    properties: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_time_ms: int = 0,
    born_host: bytes = STORE_HOST,
    store_time_ms: int = 0,
    store_host: bytes = STORE_HOST,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    checksum: bool = True,
) -> bytes:
    """One record of the commit log, as RocketMQ lays it out."""
    name = topic.encode()
    if checksum and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties_size = len(properties) + 20 * checksum
    long_name = len(topic) > 127
    tail = (
        struct.pack(">i", len(body))
        + body
        + struct.pack(">H" if long_name else ">B", len(name))
        + name
        + struct.pack(">H", properties_size)
        + properties
    )
    size = 68 + len(born_host) + len(store_host) + len(tail) + 20 * checksum
    record = (
        struct.pack(
            ">iIiiiqqiq",
            size,
            0xDAA320AB if long_name else 0xDAA320A7,
            zlib.crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_time_ms,
        )
        + born_host
        + struct.pack(">q", store_time_ms)
        + store_host
        + struct.pack(">iq", reconsume_times, prepared_offset)
        + tail
    )
    if checksum:
        digits = f"{zlib.crc32(record) & 0x7FFFFFFF:010}"[::-1]
        record += b"__CRC32#\x01" + digits.encode() + b"\x02"
    assert len(record) == size
    return record


def unique_id() -> str:
    """An id in RocketMQ's layout."""
    place = next(_unique)
    return struct.pack(">4sHIIH", STORE_HOST[:4], 1, 0x6D71, place >> 16, place & 0xFFFF).hex().upper()


def _now() -> int:
    return time.time_ns() // 1_000_000


def _encoded(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


class _Header(NamedTuple):
    """What a message keeps of its fixed fields when it is stored again."""

    flag: int
    sys_flag: int
    born_time_ms: int
    reconsume_times: int = 0
    prepared_offset: int = 0


@dataclass
class _TopicState:
    read_queue_count: int
    write_queue_count: int
    perm: str
    ordered: bool
    made_at: int = 0
    queues: dict[int, list[MessageExt]] = field(default_factory=dict)
    shrink_to: int | None = None  # once the queues to read from there on are consumed

    def settings(self) -> tuple[int, int, str, bool, int | None]:
        return self.read_queue_count, self.write_queue_count, self.perm, self.ordered, self.shrink_to


class MemoryBroker(Broker):
    """See mq.api.broker.Broker."""

    def __init__(
        self,
        *,
        message_size_max: int = 4 << 20,
        auto_create_topics: bool = True,
        default_queue_count: int = 4,
        clock: Callable[[], int] = _now,
        timer_precision_ms: int = 1000,
        timer_max_delay_ms: int = 259_200_000,
        transaction_timeout: float = 6.0,
        transaction_check_interval: float = 30.0,
        transaction_check_max: int = 15,
    ) -> None:
        self._clock = clock
        self._size_max = message_size_max
        self._auto_create = auto_create_topics
        self._default_queue_count = default_queue_count
        self._changed = threading.Condition()  # guards all below
        self._topics: dict[str, _TopicState] = {}
        self._log: dict[int, MessageExt] = {}
        self._log_end = 0
        self._version = 0
        self._closed = False
        # A queue for each level, as in RocketMQ's SCHEDULE_TOPIC_XXXX, and how far each was delivered.
        self._schedule: list[list[MessageExt]] = [[] for _ in DELAYS_MS]
        self._delivered = [0] * len(DELAYS_MS)
        self._groups = MemoryGroups(self, self._changed)
        self._consumer_groups = MemoryConsumerGroups(self, self._groups, clock)
        self._timers = MemoryTimers(
            self,
            self._changed,
            clock,
            precision_ms=timer_precision_ms,
            delay_max_ms=timer_max_delay_ms,
        )
        self._transactions = MemoryTransactions(
            self,
            self._changed,
            clock,
            unique_id,
            timeout=transaction_timeout,
            check_interval=transaction_check_interval,
            check_max=transaction_check_max,
        )

    @property
    def name(self) -> str:
        return "mq"

    @property
    def message_size_max(self) -> int:
        return self._size_max

    @property
    def may_wait(self) -> bool:
        return True  # So that both ways are taken by the tests.

    @property
    def transactions(self) -> MemoryTransactions:
        return self._transactions

    @property
    def consumer_groups(self) -> MemoryConsumerGroups:
        return self._consumer_groups

    def recall(self, handle: str) -> str:
        return self._timers.recall(handle)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._consumer_groups.close()

    def flush(self) -> None:
        self.check_open()

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: str | None = None,
        ordered: bool | None = None,
        shrink: bool = False,
    ) -> Topic:
        check_topic(name)
        counts = queue_count, read_queue_count, write_queue_count
        if any(each is not None and each < 1 for each in counts):
            raise ValueError("a topic has at least one queue")
        if perm is not None and perm not in PERMS:
            raise ValueError(f"perm is {perm!r}")
        if is_system_topic(name):
            raise NotPermitted(f"{name} is a system topic")
        with self._changed:
            self.check_open()
            known = self._topics.get(name)
            old = known or _TopicState(4, 4, "rw", False, self._log_end)
            final = old.shrink_to or old.read_queue_count
            reads = next((each for each in (read_queue_count, queue_count) if each is not None), final)
            fresh = _TopicState(
                max(reads, known.read_queue_count if known else 0),
                next(e for e in (write_queue_count, queue_count, old.write_queue_count) if e is not None),
                old.perm if perm is None else perm,
                old.ordered if ordered is None else ordered,
                old.made_at,
                old.queues,
            )
            if known is not None and reads < known.read_queue_count:
                held = self._unread(name, known, reads)
                if held and not shrink and reads < final:
                    raise NotPermitted(f"{name}: queues {held} are not consumed: shrink=True")
                fresh.shrink_to = reads if held else None
                fresh.read_queue_count = known.read_queue_count if held else reads
            if known is None or known.settings() != fresh.settings():
                self._topics[name] = fresh
                self._version += 1
                self._changed.notify_all()
        return Topic(self, name)

    def _unread(self, name: str, state: _TopicState, first: int) -> list[int]:
        """The queues to read, from `first` on, that some group has not consumed; without groups, those that
        are not empty."""
        offsets = [self._groups.offsets(group, name) for group in self._groups.names()]
        of_groups = [each for each in offsets if each]
        return [
            queue_id
            for queue_id, stored in sorted(state.queues.items())
            if first <= queue_id < state.read_queue_count
            and min((each.get(MessageQueue(name, self.name, queue_id), 0) for each in of_groups), default=0)
            < len(stored)
        ]

    def delete_topic(self, name: str) -> None:
        with self._changed:
            self.check_open()
            if is_system_topic(name):
                raise NotPermitted(f"{name} is a system topic")
            if self._topics.pop(name, None) is None:
                raise TopicNotFound(name)
            self._groups.forget_topic(name)
            self._version += 1
            self._changed.notify_all()

    def topics(self) -> list[str]:
        with self._changed:
            self.check_open()
            return sorted(self._topics)

    def topic(self, name: str) -> Topic:
        self._state(name)
        return Topic(self, name)

    def route_version(self) -> int:
        return self._version

    def publishable(self, topic: str) -> Sequence[MessageQueue]:
        with self._changed:
            self.check_open()
            count = self._target(topic).write_queue_count
            return [MessageQueue(topic, self.name, queue_id) for queue_id in range(count)]

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        state = self._state(topic)
        if "r" not in state.perm:
            raise NotPermitted(f"{topic} may not be read")
        return [MessageQueue(topic, self.name, queue_id) for queue_id in range(state.read_queue_count)]

    def append(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult:
        """What an appender does as long as its topic stays as it is."""
        topic, _, queue_id = queue
        with self.sending(topic, queue_id) as into:
            stored = self._append(topic, queue_id, into, message, body, sys_flag, unique_id)
            self._changed.notify_all()
        return SendResult(
            SendStatus.SEND_OK,
            queue,
            stored.queue_offset,
            stored.msg_id,
            (STORE_HOST, stored.log_offset),
            out_ms=self._timers.out_ms(stored),
        )

    def appender(self, queue: MessageQueue) -> Appender:
        version = self.route_version()
        with self._changed:
            self.check_writable(queue.topic, queue.queue_id)

        def append(
            message: Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> SendResult | None:
            if self.route_version() != version:
                return None
            return self.append(queue, message, body, sys_flag, unique_id)

        return append

    def puller(self, queue: MessageQueue) -> Puller:
        return partial(self.pull, queue)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        topic, _, queue_id = queue
        with self.sending(topic, queue_id) as into:
            now = self._clock()
            all_stored = [
                self._append(topic, queue_id, into, each, each.body, 0, None, now) for each in messages
            ]
            self._changed.notify_all()
        return SendResult(
            SendStatus.SEND_OK,
            queue,
            all_stored[0].queue_offset,
            [stored.msg_id for stored in all_stored],
            (STORE_HOST, [stored.log_offset for stored in all_stored]),
        )

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
        wait: float,
    ) -> PullResult:
        if count_max < 1:
            raise ValueError(f"count_max is {count_max}")
        deadline = time.monotonic() + wait
        with self._changed:
            while True:
                result = self._look(self.messages_of(queue), offset, count_max, byte_max, tag_hashes)
                if result.status in {PullStatus.FOUND, PullStatus.OFFSET_ILLEGAL}:
                    return result
                offset = result.next_offset
                left = deadline - time.monotonic()
                if left <= 0:
                    return result
                if result.status is PullStatus.NO_NEW_MESSAGE:
                    self._changed.wait(min(left, self.until_due()))

    def min_offset(self, queue: MessageQueue) -> int:
        with self._changed:
            self._queue(queue)
            return 0

    def max_offset(self, queue: MessageQueue) -> int:
        with self._changed:
            return len(self.messages_of(queue))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        with self._changed:
            messages = self.messages_of(queue)
            return next(
                (place for place, message in enumerate(messages) if message.store_time_ms >= time_ms),
                len(messages),
            )

    def message(self, msg_id: str) -> MessageExt:
        with self._changed:
            self.check_open()
            for message in reversed(self._log.values()):
                if msg_id in {message.msg_id, message.offset_msg_id}:
                    return message
        raise MessageNotFound(msg_id)

    def query(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        if count_max < 1:
            raise ValueError(f"count_max is {count_max}")
        with self._changed:
            self.check_open()
            found = [
                message
                for _, message in sorted(self._log.items(), reverse=True)
                if message.topic == topic
                and (key in message.keys or key == message.msg_id)
                and begin_ms <= message.store_time_ms
                and (end_ms is None or message.store_time_ms <= end_ms)
            ]
        return found[:count_max]

    def groups(self) -> list[str]:
        with self._changed:
            self.check_open()
            return self._groups.names()

    def made_at(self, topic: str) -> int:
        return self._state(topic).made_at

    def waiter(self) -> MemoryWaiter:
        return MemoryWaiter(self._groups)

    def send_back(
        self,
        message: MessageExt,
        group: str,
        *,
        delay_level: int = 0,
        max_reconsume_times: int = 16,
    ) -> bool:
        """See Claim.send_back."""
        check_group(group)
        with self._changed:
            self.check_open()
            original = self._log.get(message.log_offset)
            if original is None:
                raise MessageNotFound(message.offset_msg_id)
            properties = original.properties
            properties.setdefault("RETRY_TOPIC", original.topic)
            properties.setdefault("ORIGIN_MESSAGE_ID", original.offset_msg_id)
            properties.pop("DELAY", None)
            times = original.reconsume_times
            header = _Header(original.flag, original.sys_flag, original.born_time_ms, times + 1)
            if delay_level < 0 or times >= max_reconsume_times:
                properties["DLQ_ORIGIN_TOPIC"] = properties["RETRY_TOPIC"]
                properties["DLQ_ORIGIN_MESSAGE_ID"] = properties["ORIGIN_MESSAGE_ID"]
                dead = DEAD_PREFIX + group
                with self.sending(dead, 0) as queue:
                    self._store(dead, 0, queue, original.stored_body, _encoded(properties), header)
            else:
                retry = RETRY_PREFIX + group
                level = min(delay_level or 3 + times, len(DELAYS_MS))
                properties["DELAY"] = str(level)
                with self.sending(retry, 0):
                    self._postpone(level, retry, 0, original.stored_body, _encoded(properties), header)
            self._changed.notify_all()
            return True

    def retrying(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[str, int]:
        """See ConsumerGroups.retrying; the lock is held."""
        retry_topic = RETRY_PREFIX + group
        waiting = [
            each
            for queue, delivered in zip(self._schedule, self._delivered, strict=True)
            for each in queue[delivered:]
            if each.properties["REAL_TOPIC"] == retry_topic
        ]
        if retry_topic in self._topics:
            for queue_id, stored in self._topics[retry_topic].queues.items():
                committed = offsets.get(MessageQueue(retry_topic, self.name, queue_id), 0)
                waiting += stored[committed:]
        return dict(Counter(each.properties["RETRY_TOPIC"] for each in waiting))

    def check_open(self) -> None:
        if self._closed:
            raise BrokerClosed("this broker is closed")

    def _state(self, topic: str) -> _TopicState:
        self.check_open()
        if topic in SYSTEM_TOPICS:
            raise NotPermitted(f"{topic} is a system topic")
        try:
            return self._topics[topic]
        except KeyError:
            raise TopicNotFound(topic) from None

    def _target(self, topic: str) -> _TopicState:
        """A topic to send to, or what the first message makes."""
        self.check_open()
        if topic in UNSENDABLE_TOPICS:
            raise NotPermitted(f"{topic} is a system topic")
        state = self._topics.get(topic)
        if state is None:
            groups_own = topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
            if not self._auto_create and not groups_own:
                raise TopicNotFound(topic)
            writes = 1 if groups_own else min(self._default_queue_count, AUTO_QUEUES_MAX)
            state = _TopicState(writes, writes, "rw", False, self._log_end)
        if "w" not in state.perm:
            raise NotPermitted(f"{topic} may not be written")
        return state

    def check_writable(self, topic: str, queue_id: int) -> _TopicState:
        state = self._target(topic)
        if not 0 <= queue_id < max(state.write_queue_count, state.shrink_to or state.read_queue_count):
            raise ValueError(f"{topic} has no queue {queue_id}")
        return state

    @contextmanager
    def sending(self, topic: str, queue_id: int) -> Iterator[list[MessageExt]]:
        """Have the topic for a message to this queue of it; one that fails leaves none behind."""
        with self._changed:
            state = self.check_writable(topic, queue_id)
            is_new = topic not in self._topics
            if is_new:
                self._topics[topic] = state
                self._version += 1
            try:
                yield state.queues.setdefault(queue_id, [])
            except BaseException:
                if is_new:
                    del self._topics[topic]
                    self._version += 1
                raise
            finally:
                self._changed.notify_all()

    def _queue(self, queue: MessageQueue) -> list[MessageExt]:
        state = self._state(queue.topic)
        if "r" not in state.perm:
            raise NotPermitted(f"{queue.topic} may not be read")
        if not 0 <= queue.queue_id < state.read_queue_count:
            raise ValueError(f"{queue.topic} has no queue {queue.queue_id} to read")
        return state.queues.setdefault(queue.queue_id, [])

    def _append(
        self,
        topic: str,
        queue_id: int,
        queue: list[MessageExt],
        message: Message,
        body: bytes,
        sys_flag: int,
        given_id: str | None,
        stored_ms: int | None = None,
    ) -> MessageExt:
        now = self._clock() if stored_ms is None else stored_ms
        own_id = given_id or unique_id()
        due_ms = self._timers.due_ms(message)
        if due_ms is not None:
            return self._timers.put(due_ms, topic, queue_id, message, body, sys_flag, own_id)
        properties = message.encoded + f"UNIQ_KEY\x01{own_id}\x02".encode()
        header = _Header(message.flag, sys_flag, now)
        if message.delay_level:
            return self._postpone(message.delay_level, topic, queue_id, body, properties, header)
        return self._store(topic, queue_id, queue, body, properties, header, now)

    def _store(
        self,
        topic: str,
        queue_id: int,
        queue: list[MessageExt],
        body: bytes,
        properties: bytes,
        header: _Header,
        stored_ms: int | None = None,
    ) -> MessageExt:
        record = encode_record(
            topic,
            queue_id,
            len(queue),
            self._log_end,
            body,
            properties,
            store_time_ms=self._clock() if stored_ms is None else stored_ms,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_time_ms=header.born_time_ms,
            reconsume_times=header.reconsume_times,
            prepared_offset=header.prepared_offset,
        )
        stored = MessageExt(record, self.name)
        queue.append(stored)
        self._log[self._log_end] = stored
        self._log_end += len(record)
        return stored

    def _postpone(
        self, level: int, topic: str, queue_id: int, body: bytes, properties: bytes, header: _Header
    ) -> MessageExt:
        """Store under the level now, in its queue at the level's delay from now."""
        properties += f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02".encode()
        queue = self._schedule[level - 1]
        return self._store("SCHEDULE_TOPIC_XXXX", level - 1, queue, body, properties, header)

    def deliver_due(self) -> None:
        """Store again, where they belong, the messages whose time has come."""
        with self._changed:
            for level, queue in enumerate(self._schedule):
                while self._delivered[level] < len(queue) and self._due_in(level) <= 0:
                    self._deliver(queue[self._delivered[level]])
                    self._delivered[level] += 1
                    self._changed.notify_all()
            while (timed := self._timers.take()) is not None:
                self._deliver(timed)
                self._changed.notify_all()

    def _due_in(self, level: int) -> int:
        waiting = self._schedule[level][self._delivered[level]]
        return waiting.store_time_ms + DELAYS_MS[level] - self._clock()

    def _deliver(self, waiting: MessageExt) -> None:
        properties = waiting.properties
        for name in ("DELAY", "TIMER_OUT_MS"):
            properties.pop(name, None)
        topic, queue_id = properties.pop("REAL_TOPIC"), int(properties.pop("REAL_QID"))
        state = self._topics.get(topic)
        if state is not None:
            self._store(
                topic,
                queue_id,
                state.queues.setdefault(queue_id, []),
                waiting.stored_body,
                _encoded(properties),
                _Header(waiting.flag, waiting.sys_flag, waiting.born_time_ms, waiting.reconsume_times),
            )

    # What timers and transactions ask: see memory_timers.Log and memory_transactions.Log.

    def ids_in(self, topic: str) -> set[str]:
        state = self._topics.get(topic)
        return {each.msg_id for queue in (state.queues.values() if state else ()) for each in queue}

    def writable(self, topic: str, queue_id: int) -> list[MessageExt]:
        with self.sending(topic, queue_id) as queue:
            return queue

    def keep(
        self,
        topic: str,
        queue_id: int,
        queue: list[MessageExt],
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_time_ms: int | None = None,
        prepared_offset: int = 0,
    ) -> MessageExt:
        born_ms = self._clock() if born_time_ms is None else born_time_ms
        header = _Header(flag, sys_flag, born_ms, prepared_offset=prepared_offset)
        return self._store(topic, queue_id, queue, body, properties, header)

    # What groups ask: see memory_groups.Queues.

    def hidden(self, topic: str) -> dict[MessageQueue, list[MessageExt]]:
        state = self._topics[topic]
        return {
            MessageQueue(topic, self.name, queue_id): stored
            for queue_id, stored in sorted(state.queues.items())
            if queue_id >= state.read_queue_count
        }

    def messages_of(self, queue: MessageQueue) -> list[MessageExt]:
        self.deliver_due()
        return self._queue(queue)

    def matches(self, position: Position) -> bool:
        queue, offset, hashes = position
        try:
            stored = self.messages_of(queue)
        except (TopicNotFound, NotPermitted, ValueError):
            return True  # Whoever waits for it has something to do about it.
        return any(
            not isinstance(hashes, frozenset) or tag_hash(each.tags or "") in hashes
            for each in stored[offset:]
        )

    def until_due(self) -> float:
        """Seconds until the next delivery."""
        self.check_open()
        waiting = [level for level, queue in enumerate(self._schedule) if self._delivered[level] < len(queue)]
        return min([self._due_in(level) / 1000 for level in waiting] + [self._timers.until_due()])

    def _look(
        self,
        messages: list[MessageExt],
        offset: int,
        count_max: int,
        byte_max: int,
        tag_hashes: frozenset[int] | None,
    ) -> PullResult:
        end = len(messages)
        if not 0 <= offset <= end:
            return PullResult(PullStatus.OFFSET_ILLEGAL, (), max(0, min(offset, end)), 0, end)
        if offset == end:
            return PullResult(PullStatus.NO_NEW_MESSAGE, (), offset, 0, end)
        found: list[MessageExt] = []
        size = 0
        place = offset
        for message in messages[offset : offset + max(SCAN_MAX, count_max)]:
            if tag_hashes is None or tag_hash(message.tags or "") in tag_hashes:
                size += message.store_size
                if found and size > byte_max:
                    break
                found.append(message)
            place += 1
            if len(found) == count_max:
                break
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, found, place, 0, end)
