"""What the broker in memory knows of keys: of messages that are stored once, and of those a group handled."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.errors import ConfigMismatch, MessageInvalid, RequestTimeout
from mq.message import Message, MessageExt
from mq.names import check_group
from tests.support.memory.timers import TIMER_TOPIC, MemoryTimers

SIZE = 100_000
WAITING = {"SCHEDULE_TOPIC_XXXX", TIMER_TOPIC}


class Log(Protocol):
    """What of the broker is used here."""

    name: str

    def all_kept(self) -> Iterator[MessageExt]:
        """The messages of all topics, and those that wait; a message that waited before its delivery."""
        ...

    def append(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        unique_id: str | None = None,
    ) -> SendResult: ...


def with_key(message: Message, key: str) -> Message:
    """The same message, the key among its keys and named as the one that counts."""
    return Message(
        message.topic,
        message.body,
        tags=message.tags,
        keys=message.keys,
        properties=message.properties,
        flag=message.flag,
        delay_level=message.delay_level,
        delay_ms=message.delay_ms,
        deliver_at_ms=message.deliver_at_ms,
        wait=message.wait,
        dedup_key=key,
    )


class MemoryDedup:
    """append_once by looking through everything."""

    def __init__(self, log: Log, changed: threading.Condition, clock: Callable[[], int]) -> None:
        self._log = log
        self._changed = changed
        self._clock = clock

    def append_once(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        key: str | None,
        window_ms: int,
        unique_id: str | None = None,
        wait: float = 3.0,
    ) -> SendResult:
        if type(window_ms) is not int:
            raise TypeError("window_ms is an int")
        if window_ms < 0:
            raise ValueError(f"window_ms is {window_ms}")
        if key is None and unique_id is None:
            raise ValueError("neither a key nor a unique id")
        if key is not None and not isinstance(key, str):
            raise TypeError("a key is a str")
        if unique_id is not None:
            if not isinstance(unique_id, str):
                raise TypeError("a unique id is a str")
            if len(unique_id) not in (32, 56) or set(unique_id) - set("0123456789ABCDEF"):
                raise ValueError(f"{unique_id!r} is no unique id")
        if key == "":
            raise MessageInvalid("the key is empty")
        if key is not None:
            message = with_key(message, key)
        with self._changed:
            for each in sorted(self._log.all_kept(), key=lambda each: each.log_offset):
                properties = each.properties
                real = properties.get("REAL_TOPIC") if each.topic in WAITING else each.topic
                same = each.msg_id == unique_id if key is None else properties.get("DEDUP_KEY") == key
                if real == queue.topic and same and self._clock() - each.store_time_ms < window_ms:
                    queue_id = each.queue_id if real == each.topic else int(properties["REAL_QID"])
                    place = bytes.fromhex(each.offset_msg_id)[:-8], each.log_offset
                    first = MessageQueue(queue.topic, self._log.name, queue_id)
                    return SendResult(
                        SendStatus.SEND_OK,
                        first,
                        each.queue_offset,
                        each.msg_id,
                        place,
                        out_ms=MemoryTimers.out_ms(each),
                    )
            return self._log.append(queue, message, body, sys_flag, unique_id)


class MemoryHandled:
    """The keys of one group."""

    def __init__(self, size: int, check_open: Callable[[], None]) -> None:
        self.size = size
        self._check_open = check_open
        self._changed = threading.Condition()
        self._handled: OrderedDict[str, None] = OrderedDict()
        self._claims: dict[str, int] = {}

    def begin(self, key: str, wait: float, owner: object = None) -> bool:
        _checked(key)
        self._check_open()
        deadline = time.monotonic() + wait
        with self._changed:
            while key in self._claims:
                if self._claims[key] == threading.get_ident():
                    raise RuntimeError("it would wait for itself")
                if not self._changed.wait(max(deadline - time.monotonic(), 0)):
                    raise RequestTimeout("another consumer has it")
            if key in self._handled:
                return False
            self._claims[key] = threading.get_ident()
            return True

    def finish(self, key: str) -> None:
        try:
            self._check_open()
            with self._changed:
                self._handled[key] = None
                if len(self._handled) > self.size:
                    self._handled.popitem(last=False)
        finally:
            self.abandon(key)

    def abandon(self, key: str) -> None:
        with self._changed:
            self._claims.pop(key, None)
            self._changed.notify_all()

    def seen(self, key: str) -> bool:
        _checked(key)
        self._check_open()
        return key in self._handled

    def clear(self) -> None:
        self._check_open()
        self._handled.clear()


class MemoryOnce:
    """Of all groups."""

    def __init__(self, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._groups: dict[str, MemoryHandled] = {}

    def handled(self, group: str, size: int | None = None) -> MemoryHandled:
        self._check_open()
        check_group(group)
        if size is not None and type(size) is not int:
            raise TypeError("size is an int")
        if size is not None and not 1 <= size <= 10_000_000:
            raise ValueError(f"size is {size}")
        keys = self._groups.setdefault(group, MemoryHandled(size or SIZE, self._check_open))
        if size not in (None, keys.size):
            raise ConfigMismatch("another size", option="size", stored=keys.size, asked=size)
        return keys


def _checked(key: str) -> None:
    if not isinstance(key, str):
        raise TypeError("a key is a str")
    if not key:
        raise ValueError("the key is empty")
