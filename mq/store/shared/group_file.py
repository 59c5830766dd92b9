"""The file of one consumer group: its members, the owner of each queue, and how far each queue is consumed.

On disk: mq/groups/<group>, sparse, in native byte order, mapped by every process that uses the group:

    offset    size  field
         0       8  stamp        LAYOUT_STAMP
         8       8  layout       raised when a field moves
        16       8  epoch        of the control file, whose numbers of queues the slots go by
        24      16  boot_id
        40       8  slots_ready  so many slots are allocated, and may be touched
        48       4  version      raised with every change; a futex
        52       4  -
        56       8  places_high  places from here on were never taken

From PLACES_AT, 1024 places of 128 bytes, one for each consumer:

         0       8  life         how often it was taken, given up or written; odd while taken
         8       8  pid
        16       8  start_time   of the process, which tells a pid used again
        24       8  namespace    of the pid
        32       8  since_ms
        40       8  news         raised when a queue that it waits for may have become free
        48       4  event        a futex: raised with news, and by a wakeup
        52       4  -
        56       8  refused      queues that it wanted and another one has
        64       8  lease        when its lease is over, in ns of CLOCK_MONOTONIC: its process renews that; 0:
                                 it has none; EVICTED: others saw it lapsed

From SLOTS_AT, 131072 slots of 256 bytes, by the place of the queue in the table (see group_slots.py):

         0       8  committed    offset + 1, 0: nothing yet; from bit 48 on the last 8 bits of `turn`, then
                                 the last 6 of `use`: see native/control/group_slots.h
         8       8  reset_to     offset + 1, instead of `committed` while `resets` is not `applied`
        16       8  resets
        24       8  applied
        32       8  owner        place + 1
        40       8  wanted_by    place + 1 of the last member that was refused
        48       4  turn         chooses the byte that is locked; raised where an owner is dead or stopped,
                                 and its lock stays
        52       4  use          of the place, by the queue that has this slot: it is none of another use
        56       8  check        minus `committed`; the lower of two that differ counts: of a torn commit the
                                 one before, and of damage the one that skips nothing
        64     176  note         why the queue does not move, UTF-8, filled up with zeros
       240       8  reserved     until when only one client may own it, in ns of CLOCK_MONOTONIC; 0: anybody
       248       8  client       XXH3 of that one's client id, without its last bit

From TEXTS_AT, not mapped, a text of up to 64 KiB for each place: size, XXH32, then JSON on the member.

A place is taken while its byte of the file is locked, a queue owned while its byte is (see *_byte below); the
kernel drops both with the descriptor that a consumer has for itself. What a place nobody locks says means
nothing. All else changes under byte 0 (slots_ready under 2048), but for the words of a slot, which its owner
writes, the lease, `resets` and `reset_to`, which a reset writes in that order reversed, and the counters,
which are added to in one step.

The file is believed if its stamp, layout, epoch and boot are right. Otherwise it is made anew, out of
config/consumerOffset.json: nothing in it is needed after a reboot.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from mq.errors import NotPermitted, StoreFull
from mq.fastpath import Guard
from mq.store.directory.file_locks import byte_owner
from mq.store.directory.layouts import LAYOUTS
from mq.store.directory.owner import make_directory, opened_file
from mq.store.native import ffi, lib
from mq.store.os_errors import named_errors
from mq.store.shared.control import boot_id
from mq.store.shared.group_slots import (
    NOTE_AT,
    NOTE_SIZE,
    OWNER,
    RESET_TO,
    RESETS,
    SLOT_COUNT,
    SLOT_SIZE,
    SLOTS_AT,
    TURN,
    clear_slot,
    closed_memory,
    no_slot,
    place_of,
    slot_word,
    use_of,
)
from mq.store.shared.lock_guards import file_lock
from mq.store.shared.queue_table import Numbers
from mq.store.shared.waiting import Futex
from mq.store.store import Store

__all__ = [
    "EVICTED",
    "HIGH",
    "LEASE",
    "LIFE",
    "NAMESPACE",
    "NEWS",
    "PID",
    "PLACE_COUNT",
    "READY",
    "REFUSED",
    "SINCE",
    "START_TIME",
    "GroupFile",
    "Header",
    "damage_of",
    "place_byte",
    "place_word",
    "slots_in",
]

LAYOUT_STAMP, LAYOUT = b"mqgroup\0", LAYOUTS["mq/groups"]
HEADER = struct.Struct("@8sqq16sqIIq")
PLACES_AT, PLACE_SIZE, PLACE_COUNT = 4096, 128, 1024
MAPPED_SIZE = SLOTS_AT + SLOT_SIZE * SLOT_COUNT
TEXTS_AT, TEXT_SIZE = MAPPED_SIZE, 64 << 10
TEXT_HEAD = struct.Struct("@II")
READY_STEP = 512  # slots that are allocated at a time
CHANGING_BYTE, PLACE_BYTES, READY_BYTE = 0, 1, 2048
CHANGE_TIMEOUT = 10.0
MADV_POPULATE_WRITE = 23
# Words of eight bytes, counted from the beginning of the file, of a place, of a slot.
EPOCH, READY, HIGH = 2, 5, 7
LIFE, PID, START_TIME, NAMESPACE, SINCE, NEWS, REFUSED, LEASE = 0, 1, 2, 3, 4, 5, 7, 8
EVICTED = -1
VERSION_AT, BELL_AT = 48, 48
assert PLACES_AT + PLACE_SIZE * PLACE_COUNT == SLOTS_AT
assert HEADER.size == 64


def place_byte(place: int) -> int:
    return PLACE_BYTES + place


def place_word(place: int) -> int:
    return (PLACES_AT + PLACE_SIZE * place) // 8


class Header:
    """What a group file says of itself, read without mapping it."""

    def __init__(self, data: bytes) -> None:
        fields = HEADER.unpack(data.ljust(HEADER.size, b"\0"))
        stamp, layout, self.epoch, self.boot, self.ready, _, _, self.high = fields
        self.is_whole = (
            stamp == LAYOUT_STAMP
            and layout == LAYOUT
            and 0 <= self.ready <= SLOT_COUNT
            and 0 <= self.high <= PLACE_COUNT
        )

    def is_of(self, epoch: int) -> bool:
        """Whether the numbers in it mean what they do now."""
        return bool(self.is_whole and self.epoch == epoch and self.boot == boot_id())


def slots_in(path: Path, epoch: int, *, of_any_boot: bool = False) -> bytes | None:
    """The slots of a file as they are; None if it is not to be believed, or not there.

    of_any_boot: believe it after a reboot too. Changes nothing, keeps nothing open, and asks nobody.
    """
    try:
        with opened_file(path, os.O_RDONLY) as fd:
            header = Header(os.pread(fd, HEADER.size, 0))
            is_kept = of_any_boot and header.is_whole and header.epoch == epoch
            if not (is_kept or header.is_of(epoch)) or os.fstat(fd).st_size < MAPPED_SIZE:
                return None
            data = os.pread(fd, header.ready * SLOT_SIZE, SLOTS_AT)
            return data[: len(data) // SLOT_SIZE * SLOT_SIZE]
    except OSError:
        return None


def damage_of(path: Path) -> str | None:
    """What is wrong with a file, in words; None for one that is whole, of whichever boot it is."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = Header(file.read(HEADER.size))
            if size and not header.is_whole:
                if byte_owner(file.fileno(), CHANGING_BYTE) is not None:
                    return None  # Somebody is making it.
                header = Header(os.pread(file.fileno(), HEADER.size, 0))  # Or was until now.
    except OSError as error:
        return str(error)
    if size == 0:
        return None  # Its maker died, or is at it.
    if not header.is_whole:
        return "its header is damaged, or another version's"
    if size < MAPPED_SIZE:
        return f"{size:,} bytes, cut short of {MAPPED_SIZE:,}"
    return None


class GroupFile:
    """A mapped group file. Any number of consumers of a process use one together.

    words and bytes are the file as it is in memory, words of eight bytes each; pointer is to the first word.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self.path = path
        self._store = store
        # Opened for itself alone: a mapping keeps its open file, and with it every lock that was taken by it.
        with opened_file(path) as fd:
            self.memory = mmap.mmap(fd, MAPPED_SIZE)
        self.bytes = memoryview(self.memory)
        self.words = self.bytes.cast("q")
        self.counters = self.bytes.cast("I")
        self.version = Futex(self.memory, VERSION_AT)
        self.pointer = ffi.from_buffer("int64_t[]", self.memory, require_writable=True)

    @classmethod
    def existing(cls, store: Store, path: Path) -> GroupFile | None:
        """The file as it is; None if there is none that may be believed."""
        try:
            file = opened_file(path)
        except OSError:
            return None
        with file as fd:
            whole = Header(os.pread(fd, HEADER.size, 0)).is_of(Numbers(store).epoch)
            if not whole or os.fstat(fd).st_size < MAPPED_SIZE:
                return None
            return cls(store, path)

    @classmethod
    def made(cls, store: Store, path: Path, fill: Callable[[GroupFile], None]) -> GroupFile:
        """The file, made anew if it cannot be believed: fill() then writes what is known of old."""
        found = cls.existing(store, path)
        if found is not None:
            return found
        with named_errors(path):
            make_directory(path.parent)
            with file_lock(path, CHANGING_BYTE, "changing this group", CHANGE_TIMEOUT) as fd:
                found = cls.existing(store, path)
                return found if found is not None else cls._fresh(store, path, fd, fill)

    @classmethod
    def _fresh(cls, store: Store, path: Path, fd: int, fill: Callable[[GroupFile], None]) -> GroupFile:
        """Under byte 0. Where members live in it, only what tells whether it is believed was damaged."""
        inhabited = os.fstat(fd).st_size >= MAPPED_SIZE and any(
            byte_owner(fd, place_byte(place)) is not None for place in range(PLACE_COUNT)
        )
        if not inhabited:
            os.ftruncate(fd, 0)
            os.ftruncate(fd, MAPPED_SIZE)
        try:
            os.posix_fallocate(fd, 0, SLOTS_AT)
        except OSError:
            if not inhabited:
                os.ftruncate(fd, 0)  # Else it would look like one that is damaged.
            raise
        file = cls(store, path)
        file._populate(0, SLOTS_AT)
        file.words[READY] = 0
        if inhabited:
            file.words[HIGH] = PLACE_COUNT
            file.words[READY] = (os.lseek(fd, SLOTS_AT, os.SEEK_HOLE) - SLOTS_AT) // SLOT_SIZE
        else:
            fill(file)
        file.words[EPOCH] = Numbers(store).epoch
        file.bytes[24:40] = boot_id()
        file.words[1] = LAYOUT
        file.bytes[0:8] = LAYOUT_STAMP  # Last: until here the next process makes it anew.
        return file

    def _populate(self, start: int, size: int) -> None:
        """Have pages that can be written to, or an error, where a store into them would be a signal."""
        try:
            self.memory.madvise(MADV_POPULATE_WRITE, start // 4096 * 4096, size + start % 4096)
        except OSError as error:
            if error.errno == 14:  # EFAULT: no room after all. Kernels that do not know how say EINVAL.
                raise StoreFull(f"no space left for {self.path}: free some", path=str(self.path)) from error
        except ValueError:  # Another thread has closed it.
            raise self._store.refusal() from None

    def ready(self, number: int) -> None:
        """Have the slot of a queue, so that it may be touched. Raises StoreFull; NotPermitted for a queue
        that was deleted, and whose slot another one may have."""
        if self.has(number):
            return
        count = min((place_of(number) // READY_STEP + 1) * READY_STEP, SLOT_COUNT)
        # One at a time: else the lower one of two may be what remains.
        with named_errors(self.path), self._locked(READY_BYTE) as fd:
            if count > self.words[READY]:
                os.posix_fallocate(fd, SLOTS_AT, count * SLOT_SIZE)
                self._populate(SLOTS_AT, count * SLOT_SIZE)
                self.words[READY] = max(count, self.words[READY])
            if not self.has(number):
                self._hand_on(number)

    def has(self, number: int) -> bool:
        """Whether there is a slot, and it is of this queue."""
        words = self.words
        return (
            number >= 0
            and place_of(number) < words[READY]
            and words[slot_word(number) + TURN] >> 32 == use_of(number)
        )

    def _hand_on(self, number: int) -> None:
        """Have a slot be of the queue that has the place now. A death on the way leaves it the old one's."""
        control, words, at = self._store.control, self.words, slot_word(number)
        if control is None or not control.is_live(number):
            raise NotPermitted(f"{self.path}: the topic of a queue was deleted just now: try again")
        clear_slot(words, number)
        self.bytes[at * 8 + NOTE_AT : at * 8 + NOTE_AT + NOTE_SIZE] = bytes(NOTE_SIZE)
        self.version.add(0)  # A barrier: what shows the new one shows nothing of the old one.
        words[at + TURN] = use_of(number) << 32

    @property
    def slots_ready(self) -> int:
        return int(self.words[READY])

    def committed(self, number: int) -> int | None:
        """What is committed of a queue."""
        if not self.has(number):
            return None
        pointer, at = self._slot(number)
        value = int(lib.mq_slot_value(pointer + at))
        return value - 1 if value > 0 else None

    def _slot(self, number: int) -> tuple[Any, int]:
        """Where its slot is. Keep the pointer while C is at it: another thread may close this file, and then
        it is to the words of nobody."""
        pointer, at = self.pointer, slot_word(number)
        return (pointer, at) if at < len(pointer) else (pointer, 0)

    def apply_reset(self, number: int, turn: int) -> int:
        """Have `committed` be what is committed, sound, and of this turn; how many resets there were. -1:
        this is another's turn. For the owner of the queue, or under byte 0."""
        pointer, at = self._slot(number)
        return int(lib.mq_slot_apply(pointer + at, turn))

    def reset(self, number: int, offset: int) -> None:
        """Under byte 0: set what is committed, whatever member has the queue."""
        self.ready(number)
        words, at = self.words, slot_word(number)
        words[at + RESET_TO] = offset + 1
        self.version.add(0)  # A barrier: a process that sees the count sees the offset.
        words[at + RESETS] += 1

    def forget(self, number: int) -> None:
        """Under byte 0: have nothing committed of a queue that no member has."""
        # First: what one that had it commits just now counts no more.
        self.words[slot_word(number) + TURN] += 1
        clear_slot(self.words, number)

    def raise_to(self, number: int, offset: int) -> None:
        """Under byte 0: commit for a queue that nobody needs to own."""
        self.ready(number)
        turn = self.words[slot_word(number) + TURN]
        self.apply_reset(number, turn)
        pointer, at = self._slot(number)
        lib.mq_slot_commit(pointer + at, turn, -1, offset)

    def correct(self, number: int, offset: int) -> None:
        """The same, also downwards."""
        self.ready(number)
        turn = self.words[slot_word(number) + TURN]
        self.apply_reset(number, turn)
        pointer, at = self._slot(number)
        lib.mq_slot_correct(pointer + at, turn, -1, offset)

    def status(self, number: int) -> str:
        start = slot_word(number) * 8 + NOTE_AT
        return bytes(self.bytes[start : start + NOTE_SIZE]).rstrip(b"\0").decode("utf-8", "ignore")

    def changing(self, timeout: float = CHANGE_TIMEOUT) -> Guard:
        """For a with statement: one at a time changes members, and holds byte 0. Gives a descriptor to look
        at locks with. Raises StoreLocked."""
        return self._locked(CHANGING_BYTE, timeout)

    def _locked(self, byte: int, timeout: float = CHANGE_TIMEOUT) -> Guard:
        return file_lock(self.path, byte, "changing this group", timeout, create=False)

    def swap(self, word: int, was: int, value: int) -> bool:
        """Change a word that still says `was`; whether it did."""
        pointer = self.pointer  # Kept while C is at it.
        return word < len(pointer) and bool(lib.mq_word_swap(pointer + word, was, value))

    def end_turns(self, place: int) -> None:
        """Under byte 0: have the queues of a member be free for the others, whatever it has locked."""
        step, begin = SLOT_SIZE // 8, SLOTS_AT // 8
        end = begin + step * self.slots_ready
        owners = self.words[begin + OWNER : end : step].tolist()
        for at in [begin + step * slot for slot, owner in enumerate(owners) if owner == place + 1]:
            self.words[at + TURN] += 1

    def changed(self) -> None:
        """Tell everybody."""
        self.version.add()
        self.version.wake()

    def write_text(self, fd: int, place: int, text: bytes) -> bool:
        """What else is to be known of the member at a place; False if that is too long."""
        if TEXT_HEAD.size + len(text) > TEXT_SIZE:
            return False
        head = TEXT_HEAD.pack(len(text), xxhash.xxh32_intdigest(text))
        data, at = head + text, TEXTS_AT + place * TEXT_SIZE
        while data:
            count = os.pwrite(fd, data, at)
            data, at = data[count:], at + count
        return True

    def read_text(self, fd: int, place: int) -> bytes | None:
        """None while it is being written, or where it is damaged."""
        data = os.pread(fd, TEXT_SIZE, TEXTS_AT + place * TEXT_SIZE)
        if len(data) < TEXT_HEAD.size:
            return None
        size, digest = TEXT_HEAD.unpack_from(data)
        text = data[TEXT_HEAD.size : TEXT_HEAD.size + size]
        return text if len(text) == size and xxhash.xxh32_intdigest(text) == digest else None

    def taken(self) -> list[int]:
        """Places that were taken and not given up; its owner may be dead."""
        words = self.words
        high = min(max(words[HIGH], 0), PLACE_COUNT)
        return [place for place in range(high) if words[place_word(place)] % 2]

    def event(self, place: int) -> Futex:
        return Futex(self.memory, PLACES_AT + place * PLACE_SIZE + BELL_AT)

    def notify(self, place: int) -> None:
        """Tell one consumer that a queue may have become free."""
        news = place_word(place) + NEWS
        while not self.swap(news, was := self.words[news], was + 1):
            pass  # Another process did so just now: a member that saw that one sees this one, too.
        event = self.event(place)
        event.add()
        event.wake()

    def close(self) -> None:
        """Let go of the memory, as far as nobody else looks at it."""
        self.version = Futex(bytearray(4))
        self.counters = memoryview(bytearray(64)).cast("I")
        self.words, self.bytes = closed_memory(self._store.refusal)
        self.pointer = no_slot()[1]
        with suppress(BufferError):  # A consumer that was not closed still looks.
            self.memory.close()
