"""The control file: what all processes of a store share in memory.

On disk: mq/control, in native byte order; its layout is mq/store/native/control/control.h and shared.h.
Nothing in it outlives the machine, except that a cleanly closed store may be believed after a reboot too.

It is believed if its stamp and layout are ours, it is the very file that was made here (a copied directory
has another inode), it was made in this boot or closed cleanly, and no RocketMQ broker was here since (which
shows in the mtime of `lock`). Otherwise it is made anew from what the other files say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any

from mq.errors import BrokerClosed, MQError
from mq.store.native import check, ffi, lib

__all__ = ["Control", "Word", "boot_id"]


@cache
def boot_id() -> bytes:
    """16 bytes that are other ones after every boot of this machine."""
    text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return bytes.fromhex(text.replace("-", ""))


# A test's child may be given another one.
os.register_at_fork(after_in_child=boot_id.cache_clear)


class Control:
    """The mapped control file. peek: a look at what it says, at a copy's too; nobody sees what is set in
    it."""

    def __init__(self, path: Path, *, create: bool, peek: bool = False) -> None:
        self.path = path
        self.duties_term = 0  # in which this broker has, or had, the duties
        out = ffi.new("mq_control **")
        how = lib.MQ_CONTROL_PEEK if peek else int(create)
        result = lib.mq_control_open(bytes(path), boot_id(), how, out)
        if result == lib.MQ_MISSING:
            raise FileNotFoundError(path)
        check(result, str(path))
        # Unmapped when the last user lets go: a log, or a call in another thread.
        self._handle: Any = ffi.gc(out[0], lib.mq_control_close)
        self._refusal: MQError = BrokerClosed(f"{path} is closed: call mq.open() again")

    @property
    def handle(self) -> Any:
        """Raises BrokerClosed, or what close() was told."""
        handle = self._handle
        if handle is None:
            raise self._refusal.with_traceback(None)
        return handle

    def same_boot(self) -> bool:
        return bool(lib.mq_control_same_boot(self.handle, boot_id()))

    def set_boot(self) -> None:
        """Be of this boot from now on."""
        lib.mq_control_set_boot(self.handle, boot_id())

    def get(self, word: int) -> int:
        return int(lib.mq_control_get(self.handle, word))

    def set(self, word: int, value: int) -> None:
        lib.mq_control_set(self.handle, word, value)

    def raise_to(self, word: int, value: int) -> None:
        lib.mq_control_raise(self.handle, word, value)

    def raise_in_term(self, term: int, word: int, value: int) -> None:
        """The same as one of the duties; 0 is a term that is never over. Raises StoreLocked, and changes
        nothing, once another process has them."""
        check(lib.mq_duties_raise(self.handle, term, word, value), str(self.path))

    def add(self, word: int, amount: int = 1) -> int:
        """What it was before."""
        return int(lib.mq_control_add(self.handle, word, amount))

    def sync(self) -> None:
        """Have the words on disk."""
        check(lib.mq_control_sync(self.handle), str(self.path))

    def queues(self) -> Iterator[tuple[int, str, int]]:
        """(number, topic, queue id) of every live queue in the table."""
        queue, handle, place = ffi.new("mq_named_queue *"), self.handle, 0
        topic, next_queue = ffi.buffer(queue.topic), lib.mq_control_next_queue
        while (place := next_queue(handle, place, queue)) > 0:
            yield queue.number, str(topic[: queue.topic_size], "utf-8", "replace"), queue.queue_id
        check(place, str(self.path))

    def queues_with_messages(self, except_of: Container[str]) -> list[tuple[str, int]]:
        """(topic, queue id) of those in the table that have any, but those of some topics."""
        return [
            (topic, queue_id)
            for number, topic, queue_id in self.queues()
            if topic not in except_of and self.next_offset(number) > self.min_offset(number)
        ]

    def delete_queues(self, topic: str, *, if_empty: bool = False) -> bool:
        """Have no queue of a topic any more; their places may be given to others. False, and they stay, where
        that is asked for if_empty, and one of them ever had a message."""
        numbers = [number for number, name, _ in self.queues() if name == topic]
        if if_empty and any(map(self.next_offset, numbers)):
            return False
        for number in numbers:
            lib.mq_control_queue_delete(self.handle, number)
        return True

    def is_live(self, number: int) -> bool:
        """Whether there is a queue of this number."""
        return bool(lib.mq_control_queue_state(self.handle, number) == lib.MQ_QUEUE_LIVE)

    def next_offset(self, number: int) -> int:
        return int(lib.mq_control_queue_next(self.handle, number))

    def min_offset(self, number: int) -> int:
        return int(lib.mq_control_queue_min(self.handle, number))

    def duty_writer(self, mapped: mmap) -> Callable[[Mapping[int, int]], None]:
        """What stores values by place, in order, into the words of a shared file, as one of the duties. It
        raises StoreLocked, and stores nothing, once another process has these."""
        # Of the map itself: Python crashes when it collects a memoryview in a cycle that cffi has a view of.
        target = ffi.from_buffer("int64_t[]", mapped, require_writable=True)

        def write(values: Mapping[int, int]) -> None:
            result = lib.mq_duties_store(
                self.handle, self.duties_term, target, list(values), list(values.values()), len(values)
            )
            check(result, str(self.path))

        return write

    def word(self, word: int) -> Word:
        """A word to look at often."""
        return Word(self.handle, word)

    def close(self, refusal: MQError | None = None) -> None:
        """Let go of it; later calls get this error."""
        if refusal is not None:
            self._refusal = refusal
        self._handle = None


class Word:
    """One word of a control file: word[0] is its value. Keeps the file mapped as long as it lives."""

    __slots__ = ("_handle", "_pointer")

    def __init__(self, handle: Any, word: int) -> None:
        self._handle = handle
        self._pointer = lib.mq_control_word(handle, word)

    def __getitem__(self, place: int) -> int:
        return int(self._pointer[place])
