"""append_once: a message of one key is stored once within a window, even if a process dies while it sends.

The record of what was sent is the log with its index. A message that is sent under a dedup key carries it

    KEYS        among its keys, as RocketMQ would have it (a key of a message is what identifies it in the
                business), which is what makes RocketMQ index it, and build the index again, as for any key
    DEDUP_KEY   which of its keys that is: others may have the same key for other reasons

and keeps a unique id of its own, since RocketMQ's tools read from it when it was made, and search from then
on. An id made from the key would lie about that. Where the caller gives a unique id instead of a key, the id
is the key, and UNIQ_KEY, indexed as ever, is where it is found.

In front of the index is a table (mq/store/dedup/table.py). A key in it is claimed, the message appended, the
entry marked with its place, all under a lock of that key; so of two concurrent senders the second waits, and
gets the result of the first. An entry that is still a claim is a dead process's: then the index, brought up
to date, says whether the message was stored. It is also asked where the table does not reach back far enough:
where entries had to go for others, and after a reboot, for what was sent before the table was made; and
always for a unique id, since a message that was sent without a key has one as well, of which the table knows
nothing.

For the usual message all this is one call of C (mq/store/native/dedup/keyed_append.h), by what appender()
gives. What is here is for the others: a first message of a topic, a delayed one, one that was sent before or
for which the index is asked, and one that waits for the lock of its key.

A message counts as long as it can be read: of one that retention took, that was deleted with its topic, or
whose bytes are damaged, the key is free again. One that waits to be delivered counts from when it was sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from mq.api.handled_keys import DEDUP_KEY
from mq.api.queues import OnceAppender
from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.broker.delay.levels import SCHEDULE_TOPIC
from mq.broker.delay.recall import MARKS
from mq.broker.delay.timer import TIMER_TOPIC
from mq.broker.topics.config import TopicSettings
from mq.broker.transactions.half_queues import HALF_TOPIC
from mq.errors import MessageInvalid, MQError, NotPermitted
from mq.fastpath import time_left
from mq.message import Message, MessageExt
from mq.properties import PROPERTIES_SIZE_MAX, encode, number_of, value_of
from mq.store.dedup.table import BUCKET_COUNT, EVER, KNOWN, NEW, Bucket, SentKeys, digest_of
from mq.store.index.find_records import EVERYWHERE, stored
from mq.store.log.reappend import Copies, changed
from mq.store.queue.reader import Reader
from mq.store.shared.lock_guards import time_limit
from mq.store.store import Store
from mq.uninterrupted import uninterrupted

__all__ = ["WAIT", "Dedup", "with_dedup_key"]

WAIT = 3.0  # seconds for another sender of the same key
WINDOW_MAX_MS = 1 << 52
NO_MESSAGES = 1 << 62  # a log offset that no message reaches
BATCH_MS = 60_000  # until which a batch is stored, or never
UNIQUE_ID_SIZES = (32, 56)
# Where a message lies until it is delivered; REAL_TOPIC and REAL_QID then say where it belongs.
WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)
REAL_TOPIC, REAL_QUEUE_ID, OUT_MS = b"REAL_TOPIC\x01", b"REAL_QID\x01", b"TIMER_OUT_MS\x01"
PROPERTY = DEDUP_KEY.encode() + b"\x01"


class _Sought(NamedTuple):
    """The message of a dedup key ("key"), or of a unique id ("id"), in a topic."""

    kind: str
    topic: str
    word: str

    def is_it(self, found: MessageExt) -> bool:
        encoded = found.encoded
        if (found.msg_id if self.kind == "id" else value_of(encoded, PROPERTY)) != self.word:
            return False
        if value_of(encoded, MARKS) is not None:
            return False  # It recalls one of this id, and is none.
        return found.topic == self.topic or (
            found.topic in WAITING_TOPICS and value_of(encoded, REAL_TOPIC) == self.topic
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Dedup:
    """append_once for one broker. append stores one in any case, usual_appender is Writer.once_appender;
    topics() are the settings of all topics."""

    def __init__(
        self,
        store: Store,
        name: str,
        reader: Reader,
        append: Callable[..., SendResult],
        usual_appender: Callable[..., OnceAppender],
        topics: Callable[[], Mapping[str, TopicSettings]],
        *,
        clock_ms: Callable[[], int] = _now_ms,
        bucket_count: int = BUCKET_COUNT,
    ) -> None:
        self._store = store
        self._name = name
        self._reader = reader
        self._append = append
        self._usual_appender = usual_appender
        self._topics = topics
        self._clock_ms = clock_ms
        self._bucket_count = bucket_count
        self._copies = Copies(store)
        self._lock = threading.Lock()  # guards the opening of what follows
        self._keys: SentKeys | None = None
        store.detach_with(self._forked)

    def appender(self, queue: MessageQueue, window_ms: int) -> OnceAppender:
        """See Directory.once_appender."""
        _check_window(window_ms)
        keys = self._keys or self._opened()
        # C goes by the clock of the machine.
        usual = keys if self._clock_ms is _now_ms else None
        return self._usual_appender(queue, usual, window_ms, partial(self._append_keyed, queue, window_ms))

    def _append_keyed(
        self, queue: MessageQueue, window_ms: int, message: Message, body: bytes, sys_flag: int, key: str
    ) -> SendResult:
        wait = WAIT if (left := time_left()) is None else left
        return self.append_once(queue, message, body, sys_flag, key, window_ms, wait=wait)

    def append_once(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        key: str | None,
        window_ms: int,
        unique_id: str | None = None,
        wait: float = WAIT,
    ) -> SendResult:
        """See Directory.append_once. Raises what append does, and RequestTimeout."""
        self._store.live()
        topic = queue.topic
        _check_window(window_ms)
        if unique_id is not None:
            _check_id(unique_id)
        if key is not None:
            message = with_dedup_key(message, key)
            sought = _Sought("key", topic, key)
        elif unique_id is not None:
            sought = _Sought("id", topic, unique_id)
        else:
            raise ValueError("append_once needs a key, or a unique id")

        keys = self._keys or self._opened()
        digest = digest_of(*sought)
        with time_limit(wait), keys.locked(keys.number(digest), wait):
            bucket = keys.bucket()
            now_ms = self._clock_ms()
            first = self._sent_since(now_ms - window_ms, sought, keys, bucket, digest)
            if first is not None:
                return self._result(first, topic)
            had = bucket.claim(digest)
            # After an MQError nothing was stored, unless it has the unique id of what may have been. After
            # another one it may be, since a signal handler can have raised it: the claim stays then.
            try:
                result = self._append(queue, message, body, sys_flag, unique_id)
            except MQError as error:
                if error.unique_id is None:
                    bucket.unclaim(digest, had)
                raise
            # The append may have taken long: it counts from when it is stored, in the index too.
            bucket.put(digest, max(now_ms, self._clock_ms()), result._placed()[1][0])
            return result

    def append(
        self, queue: MessageQueue, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None
    ) -> SendResult:
        """Store a message that has a dedup key in any case; senders that look for the key know of it. Raises
        what append does, and RequestTimeout."""
        key = message.dedup_key
        assert key is not None
        keys = self._keys or self._opened()
        digest = digest_of("key", queue.topic, key)
        with keys.locked(keys.number(digest), WAIT if (left := time_left()) is None else left):
            keys.bucket().doubt(digest, self._clock_ms())
            try:
                return self._append(queue, message, body, sys_flag, unique_id)
            finally:
                keys.bucket().doubt(digest, self._clock_ms())

    def _sent_since(
        self, begin_ms: int, sought: _Sought, keys: SentKeys, bucket: Bucket, digest: bytes
    ) -> MessageExt | None:
        """The message that was sent under a key since begin_ms; the table knows of it from now on."""
        said, at = bucket.look(digest, begin_ms)
        if said == KNOWN:
            return self._kept(sought, at)
        if sought.kind == "id":
            at = EVERYWHERE
        elif said == NEW:
            return None
        first = self._first(sought, begin_ms, at)
        if first is not None:
            bucket.put(digest, _sent_ms(first), first.log_offset)
        elif at < EVERYWHERE:
            keys.know_index(WAITING_TOPICS)
        return first

    def doubt(self, topic: str, key: str, *, for_good: bool = False) -> None:
        """A message with this key is about to be stored by a sender that does not look into the table, as
        part of a batch; for_good: at some time or other, by a transaction. The index is asked for it from now
        on."""
        keys = self._keys or self._opened()
        digest = digest_of("key", topic, key)
        with keys.locked(keys.number(digest), WAIT):
            keys.bucket().doubt(digest, EVER if for_good else self._clock_ms() + BATCH_MS)

    def _opened(self) -> SentKeys:
        if self._store.read_only:
            raise NotPermitted(f"{self._store.root} was opened with read_only=True")

        def opened() -> SentKeys:
            with self._lock:
                if self._keys is None:
                    self._keys = SentKeys(
                        self._store,
                        clock_ms=self._clock_ms,
                        bucket_count=self._bucket_count,
                        # A half message that is there may be committed at any time.
                        is_told_all=all(topic != HALF_TOPIC for topic, _ in self._store.queues()),
                    )
                return self._keys

        return uninterrupted(opened, of=self._store)

    def _kept(self, sought: _Sought, log_offset: int) -> MessageExt | None:
        """The message at a place, if it still is there and counts."""
        if log_offset < self._begin(sought.topic):
            return None
        if self._store.sync and log_offset >= self._store.visible_end():
            # The first one may still wait for the flush, or have died waiting; what cannot be read yet is
            # neither missing nor an answer.
            self._copies.flush()
        found = self._reader.record(log_offset)
        if found is not None and found.log_offset == log_offset and sought.is_it(found):
            return found
        return None

    def _first(self, sought: _Sought, begin_ms: int, until: int) -> MessageExt | None:
        """The oldest message of a key in the window, by the index, of what lies below a log offset."""
        begin = self._begin(sought.topic)
        found = [
            message
            for place in (sought.topic, *WAITING_TOPICS)
            for message in stored(self._store, place, sought.word, begin_ms, self._name, until)
            if message.log_offset >= begin and sought.is_it(message) and _sent_ms(message) > begin_ms
        ]
        return min(found, key=lambda message: message.log_offset, default=None)

    def _begin(self, topic: str) -> int:
        """Records below belong to a topic of this name that was deleted."""
        settings = self._topics().get(topic)
        # A topic that does not exist yet has no messages: those of this name belong to a deleted one.
        return NO_MESSAGES if settings is None else settings.begin_log_offset

    def _result(self, first: MessageExt, topic: str) -> SendResult:
        """What the first sender of it was told."""
        queue_id, out_ms = first.queue_id, 0
        if first.topic != topic:
            queue_id = number_of(first.encoded, REAL_QUEUE_ID) or 0
            out_ms = number_of(first.encoded, OUT_MS) or 0
        host = bytes.fromhex(first.offset_msg_id)[:-8]
        return SendResult(
            SendStatus.SEND_OK,
            MessageQueue(topic, self._name, queue_id),
            first.queue_offset,
            first.msg_id,
            (host, first.log_offset),
            None,
            out_ms,
        )

    def _forked(self) -> None:
        self._lock = threading.Lock()  # Another thread of the parent may have had it.

    def close(self) -> None:
        """Let go of the table. Twice is fine."""
        if self._keys is not None:
            self._keys.close()


def _sent_ms(message: MessageExt) -> int:
    """When it was sent: one that waited was born then, and stored once more when it was due."""
    if value_of(message.encoded, REAL_TOPIC) is None:
        return message.store_time_ms
    return min(message.store_time_ms, message.born_time_ms)


def with_dedup_key(message: Message, key: str) -> Message:
    """The same message with a dedup key. Raises MessageInvalid for what is no key, or is too much."""
    if not isinstance(key, str):
        raise TypeError(f"a dedup key is a str, not {type(key).__name__}")
    encode(None, key, None, 0, None, None, True)  # which checks it
    keys = message.keys
    joined = " ".join(keys if key in keys else (*keys, key))
    encoded = changed(message.encoded, {"KEYS": joined, DEDUP_KEY: key})
    if len(encoded) > PROPERTIES_SIZE_MAX:
        raise MessageInvalid(
            f"tags, keys and properties come to {len(encoded):,} bytes with the dedup key, over the limit of"
            f" {PROPERTIES_SIZE_MAX:,}: take a shorter key"
        )
    changed_message: Message = Message.restored(
        message.topic, message.body, message.flag, message.plain, encoded
    )
    return changed_message


def _check_window(window_ms: int) -> None:
    if isinstance(window_ms, bool) or not isinstance(window_ms, int):
        raise TypeError(f"window_ms is an int, not {type(window_ms).__name__}")
    if not 0 < window_ms < WINDOW_MAX_MS:
        raise ValueError(f"window_ms is {window_ms}: it must be more than 0, and less than {WINDOW_MAX_MS}")


def _check_id(unique_id: str) -> None:
    if not isinstance(unique_id, str):
        raise TypeError(f"a unique id is a str, not {type(unique_id).__name__}")
    if len(unique_id) not in UNIQUE_ID_SIZES or not set(unique_id) <= set("0123456789ABCDEF"):
        raise ValueError(f"{unique_id!r} is no unique id: that is 32 or 56 digits 0-9 and A-F")
