"""Appending: one C call a message, or a batch.

The hot path of a send. What can be known before is looked up once a queue, and kept until a topic changes;
mq/fastpath/append_pull.c stores the message. Here is what it has to be told first.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from mq.api.queues import Appender, Appenders, OnceAppender
from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.errors import MessageInvalid, MQError
from mq.fastpath import LogHandle, bind_calls, keyed_appender, pack
from mq.message import Message
from mq.store.dedup.table import SentKeys
from mq.store.log.delayed_append import DelayedAppend, target_properties
from mq.store.log.first_send import FirstSend, Targets
from mq.store.log.reappend import Copy
from mq.store.log.replication import replicated
from mq.store.log.size_limits import batch_too_large, check_size, message_too_large
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["Writer"]

FLUSH_TIMEOUT_MS = (
    5000  # RocketMQ's syncFlushTimeout: after that the message is stored, and perhaps not on disk.
)
RECEIPT = ffi.typeof("mq_receipt *")
END_AT, NEWS_AT, ID_AT = (ffi.offsetof("mq_receipt", name) for name in ("end", "news", "unique_id"))
ID_SIZE = lib.MQ_UNIQUE_ID_SIZE
bind_calls(*(int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in ("mq_append", "mq_pull")))


# Stores a message: (message, body, sys_flag, unique_id, address of mq_append_options or 0). An int is one of
# Refused, and None says that the topics have changed.
StoreMessage = Callable[[Message, bytes, int, "str | None", int], "SendResult | int | None"]


class BitmapSource(Protocol):
    """Tells which SQL92 consumers want a message: see mq/broker/filter_bitmaps.py."""

    def version(self) -> int:
        """Of the set of filters that it knows."""
        ...

    def bits(self, topic: str, properties: bytes, /) -> bytes:
        """The bits of the consumers that want a message: as many for each; none if nobody filters."""
        ...


class Keyed(Protocol):
    """Knows which messages were sent under a dedup key: see mq/broker/once/append_once.py."""

    def append(
        self, queue: MessageQueue, message: Message, body: bytes, sys_flag: int, unique_id: str | None
    ) -> SendResult:
        """Store a message that has a key, for others to know of, by Writer.appender(queue, keyed=True)."""
        ...

    def doubt(self, topic: str, key: str, *, for_good: bool = False) -> None:
        """A message with a key is about to be stored, in a batch; or as a half message, for good."""
        ...


class Writer:
    """Appends to the queues of one store, from any thread.

    What forbids a message in a queue is asked of `targets`, again after every change of a topic.
    `keyed` is told of dedup keys. With bitmaps, messages get extensions with their bits: see
    mq/store/queue/extensions.py. replicas: for how many followers a send waits, once it is on disk.
    """

    def __init__(
        self,
        store: Store,
        version: Any,
        targets: Targets,
        delays: DelayedAppend,
        keyed: Keyed,
        bitmaps: BitmapSource | None = None,
        replicas: int = 0,
    ) -> None:
        self._store = store
        self._replicas = replicas
        self._targets = targets
        self._delays = delays
        self.keyed = keyed
        self._version = version  # of the topics: a word in shared memory
        # With the version of the topics for which they are so.
        self._numbers: tuple[int, dict[MessageQueue, int]] = -1, {}
        self._bitmaps = bitmaps
        log = store.live()
        lib.mq_log_extend(log, bitmaps is not None)
        self._log_handle = LogHandle(log, int(ffi.cast("uintptr_t", log)))
        store.detach_with(self._log_handle.detach)

    def appender(self, queue: MessageQueue, *, keyed: bool = False, waits: bool = True) -> Appender:
        """See Queues.appender. It raises StoreFull, StorePoisoned, MessageTooLarge, and what forbids it.

        keyed: for the part that knows of dedup keys, which has messages with a key stored by this. waits:
        whether it waits for the disk, where a send does.
        """
        # The version first: a change that comes between the two is noticed by the first append.
        version = self._version[0]
        topic, broker_name, queue_id = queue
        if self._targets.is_new(topic, queue_id, broker_name):
            send = partial(Appenders(partial(self.appender, keyed=keyed, waits=waits)), queue)
            keyed_send = None if keyed else partial(self.keyed.append, queue)
            return FirstSend(self._targets, queue, self.check, send, keyed_send)
        number = self._number(queue)
        slow_path = partial(self._append, queue) if keyed else partial(self._append_unless_keyed, queue)
        flushed = self._flushed if self._store.sync and waits else None
        append, store = self._log_handle.appender(
            queue, number, version, slow_path, self._failed, flushed, self._delays.records,
            target_properties(queue),
        )  # fmt: skip
        return append if self._bitmaps is None and not keyed else partial(slow_path, store)

    def once_appender(
        self,
        queue: MessageQueue,
        keys: SentKeys | None,
        window_ms: int,
        append_once: Callable[..., SendResult],
    ) -> OnceAppender:
        """See Directory.once_appender. append_once(message, body, sys_flag, key) does the same for whatever
        message. It is always called where `keys` is None."""
        version = self._version[0]
        topic, broker_name, queue_id = queue
        slow_path = partial(self._unless_changed, version, append_once)
        if self._targets.is_new(topic, queue_id, broker_name) or keys is None or self._bitmaps is not None:
            return slow_path
        if self._replicas:
            return slow_path  # Another sender of the key waits for the replicas, too.
        flushed = self._flushed if self._store.sync else None
        return keyed_appender(
            self._log_handle, keys.kept, keys.address, queue, topic.encode(), self._number(queue), version,
            window_ms, slow_path, self._failed, flushed,
        )  # fmt: skip

    def _unless_changed(
        self, version: int, append_once: Callable[..., SendResult], *arguments: Any
    ) -> SendResult | None:
        return append_once(*arguments) if self._version[0] == version else None

    def check(self, queue: MessageQueue, message: Message, body: bytes) -> None:
        """Raises what forbids a message whatever its topic is."""
        check_size(len(body), len(message.encoded), self._store.file_sizes.commitlog_file_size)
        if message.delayed:
            self._delays.check(queue, message, body)

    def _append_unless_keyed(
        self,
        queue: MessageQueue,
        store: StoreMessage,
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult | None:
        if not message.plain and message.dedup_key is not None:
            return self.keyed.append(queue, message, body, sys_flag, unique_id)
        return self._append(queue, store, message, body, sys_flag, unique_id)

    def _append(
        self,
        queue: MessageQueue,
        store: StoreMessage,
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult | None:
        """Store a message by store(), with all that it has to be told first; None if the queue's number is
        out of date."""
        self._store.live()
        is_delayed, options, _kept = message.delayed, 0, None
        if is_delayed:
            self._delays.ensure_queue(message)
        elif self._bitmaps is not None:
            envelope, _kept = self._marked(queue.topic, [message.encoded])
            options = int(ffi.cast("uintptr_t", envelope))
        stored = store(message, body, sys_flag, unique_id, options)
        if isinstance(stored, int):
            raise self._delays.refusal(stored, message, len(body), queue)
        return stored

    def append_to(self, number: int, body: bytes, encoded: bytes) -> Copy:
        """Append to the queue of this number, whatever its topic, and wait for the disk where a send does."""
        receipt = ffi.new(RECEIPT)
        result = lib.mq_append(
            self._store.live(),
            number,
            -1,
            0,
            0,
            body,
            len(body),
            encoded,
            len(encoded),
            ffi.NULL,
            ffi.NULL,
            receipt,
        )
        if result:
            raise self.failure(result, len(body), len(encoded))
        if self._store.sync:
            self.flushed(int(receipt.end), number, ffi.buffer(receipt)[:])
        return Copy(
            int(receipt.log_offset), int(receipt.queue_offset), int(receipt.store_time), int(receipt.end)
        )

    def _failed(self, result: int, body_size: int, properties_size: int, error: int) -> None:
        """Raises what a failed call stands for; `error` is the system's number."""
        ffi.errno = error
        raise self.failure(result, body_size, properties_size)

    def _flushed(self, number: int, stored: SendResult) -> SendResult:
        """The result to hand out once the message is on disk, or not in time."""
        receipt = stored._receipt
        end = int.from_bytes(receipt[END_AT : END_AT + 8], sys.byteorder)
        status = self.flushed(end, number, receipt)
        if status is SendStatus.SEND_OK:
            return stored
        place, out_ms = stored._place, stored._out_ms
        return SendResult(status, stored.queue, stored.queue_offset, stored.msg_id, place, None, out_ms)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        """See Queues.append_batch. All bodies and all properties go down in one piece each."""
        topic = queue.topic
        number = self._numbered(queue)
        if number is None:
            for message in messages:
                self.check(queue, message, message.body)
            with self._targets.first_send([(topic, queue.queue_id)]):
                return self.append_batch(queue, messages)
        flags, wait = ffi.NULL, True
        messages = list(messages)  # The caller may change its list, and C goes by its length.
        packed = pack(messages)
        if packed is None:
            packed, flags, wait = _packed_slowly(messages)
            for message in messages:
                if not message.plain and (key := message.dedup_key) is not None:
                    self.keyed.doubt(topic, key)
        bodies, body_sizes, properties, properties_sizes = packed
        count = len(messages)
        envelope, _kept = ffi.NULL, None
        if self._bitmaps is not None:
            envelope, _kept = self._marked(topic, [message.encoded for message in messages])
        ids = ffi.new("char[]", count * ID_SIZE)
        receipt = ffi.new(RECEIPT)
        result = lib.mq_append_batch(
            self._store.live(),
            number,
            count,
            flags,
            0,
            bodies,
            ffi.from_buffer("int32_t[]", body_sizes),
            properties,
            ffi.from_buffer("int32_t[]", properties_sizes),
            envelope,
            ids,
            receipt,
        )
        if result:
            if result == lib.MQ_GONE:
                # The topic was deleted since: find out whether there is a new one.
                self._numbers = -1, {}
                return self.append_batch(queue, messages)
            if result == lib.MQ_TOO_LARGE:
                each, encoded = (
                    memoryview(part).cast("i").tolist() for part in (body_sizes, properties_sizes)
                )
                raise batch_too_large(topic, each, encoded, self._store.file_sizes.commitlog_file_size)
            raise self.failure(result, len(bodies))
        status = SendStatus.SEND_OK
        if self._store.sync and wait:
            status = self.flushed(int(receipt.end), number, ffi.buffer(receipt)[:])
        places = _Places(int(receipt.log_offset), int(receipt.size), body_sizes, properties_sizes)
        host = ffi.buffer(receipt.store_host)[:]
        return SendResult(status, queue, int(receipt.queue_offset), _Ids(ids, count), (host, places))

    def _marked(self, topic: str, properties: Sequence[bytes]) -> tuple[Any, Any]:
        """An envelope with the bits of these messages if there are any, and what must live as long as it."""
        assert self._bitmaps is not None
        # The version first: bits of a set of filters that is out of date are not stored.
        version = self._bitmaps.version()
        bits = [self._bitmaps.bits(topic, one) for one in properties]
        if not all(bits) or len({len(one) for one in bits}) != 1:
            return ffi.NULL, None
        memory, envelope = ffi.new("uint8_t[]", b"".join(bits)), ffi.new("mq_append_options *")
        envelope.bitmaps, envelope.bitmap_size, envelope.filters_version = memory, len(bits[0]), version
        return envelope, memory

    def _number(self, queue: MessageQueue) -> int:
        name = queue.topic.encode()
        log = self._store.live()
        return check(lib.mq_log_queue(log, name, len(name), queue.queue_id, 1), str(self._store.root))

    def _numbered(self, queue: MessageQueue) -> int | None:
        """The queue's number in the table; None where its topic is yet to be made by this send."""
        while True:
            # A pair: what one thread finds out of date, another one does not add to what is new.
            seen, numbers = self._numbers
            version = self._version[0]
            if version != seen:
                numbers = {}
                self._numbers = version, numbers
            number = numbers.get(queue)
            if number is not None:
                return number
            if self._targets.is_new(queue.topic, queue.queue_id, queue.broker_name):
                return None
            number = self._number(queue)
            if self._version[0] == version:  # Else the topic may be gone, and the queue be one of no topic.
                numbers[queue] = number

    def flushed(self, end: int, number: int, receipt: bytes) -> SendStatus:
        """Wait until what was appended is on disk: it ends at log offset `end`."""
        news = int.from_bytes(receipt[NEWS_AT : NEWS_AT + 8], sys.byteorder)
        result = lib.mq_log_flush_sent(self._store.live(), end, number, news, FLUSH_TIMEOUT_MS)
        if result == lib.MQ_BUSY:
            return SendStatus.FLUSH_DISK_TIMEOUT
        try:
            check(result, str(self._store.root))
        except (MQError, OSError, MemoryError) as error:
            # It is stored all the same, and sent again it would be a duplicate.
            vars(error)["unique_id"] = receipt[ID_AT : ID_AT + 56].rstrip(b"\0").decode()
            raise
        return replicated(self._store, end, self._replicas) if self._replicas else SendStatus.SEND_OK

    def failure(self, result: int, body_size: int, properties_size: int | None = None) -> Exception:
        if result == lib.MQ_TOO_LARGE:
            return message_too_large(body_size, properties_size, self._store.file_sizes.commitlog_file_size)
        try:
            check(result, str(self._store.root))
        except (MQError, OSError, MemoryError) as error:
            return error
        raise AssertionError(result)

    def close(self) -> None:
        """Let go of the log. An append under way in another thread still has it, and is refused."""
        self._log_handle.detach()
        self._version = (-1,)


class _Ids:
    """The unique ids of a batch, cut out of one buffer when asked for."""

    __slots__ = ("_buffer", "_count")

    def __init__(self, buffer: Any, count: int) -> None:
        self._buffer = buffer
        self._count = count

    def __call__(self) -> list[str]:
        text = ffi.buffer(self._buffer)[:].decode()
        return [text[at : at + ID_SIZE] for at in range(0, self._count * ID_SIZE, ID_SIZE)]


class _Places(Sequence[int]):
    """The log offsets of a batch: its records lie side by side, and their sizes differ as the messages'
    do."""

    __slots__ = ("_first", "_overhead", "_sizes")

    def __init__(self, first: int, first_size: int, body_sizes: bytes, properties_sizes: bytes) -> None:
        self._first = first
        self._sizes = memoryview(body_sizes).cast("i"), memoryview(properties_sizes).cast("i")
        self._overhead = first_size - sum(sizes[0] for sizes in self._sizes)

    def __len__(self) -> int:
        return len(self._sizes[0])

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]

    def __iter__(self) -> Iterator[int]:
        at = self._first
        for body_size, properties_size in zip(*self._sizes, strict=True):
            yield at
            at += body_size + properties_size + self._overhead


def _packed_slowly(messages: Sequence[Message]) -> tuple[tuple[bytes, bytes, bytes, bytes], Any, bool]:
    """As objects.pack, of whatever messages; their flags, and whether one of them waits for a flush."""
    if any(m.delay_level or m.delay_ms is not None or m.deliver_at_ms is not None for m in messages):
        raise MessageInvalid("a batch takes no delayed messages: send them one by one")
    bodies, properties = [m.body for m in messages], [m.encoded for m in messages]
    flags = ffi.NULL
    if any(message.flag for message in messages):
        flags = ffi.from_buffer("int32_t[]", array("i", [message.flag for message in messages]))
    packed = (
        b"".join(bodies),
        array("i", map(len, bodies)).tobytes(),
        b"".join(properties),
        array("i", map(len, properties)).tobytes(),
    )
    return packed, flags, any(message.wait for message in messages)
