"""The slots of a group file: what is committed of a queue, and its owner. group_file.py has the layout.

A slot goes by the place that its queue has in the table of queues, and says which use of the place it is of.
A process that has not noticed yet that a topic was deleted may commit into the slot when it is the next
queue's already: so each commit bears the last bits of the use that it is for, and one that bears others
counts as none. What was committed in the moment before is then consumed again. It bears the last bits of the
turn as well, which is another one for each owner that did not get the queue from the one before: see
native/control/group_slots.h, which has the rules of what is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from mq.fastpath import bind_slots
from mq.store.native import ffi, lib
from mq.store.shared.lease import is_over, now_ns

__all__ = [
    "APPLIED",
    "CHECK",
    "COMMITTED",
    "NOTE_AT",
    "NOTE_SIZE",
    "OFFSET_MAX",
    "OWNER",
    "RESERVED_FOR",
    "RESERVED_UNTIL",
    "RESETS",
    "RESET_TO",
    "SLOTS_AT",
    "SLOT_COUNT",
    "SLOT_SIZE",
    "TURN",
    "WANTED_BY",
    "clear_slot",
    "closed_memory",
    "correct_slot",
    "no_slot",
    "offsets_in",
    "place_of",
    "queue_byte",
    "reserve_slot",
    "reserved_until",
    "slot_address",
    "slot_word",
    "use_of",
]

SLOTS_AT, SLOT_SIZE = 135_168, 256
SLOT_COUNT: int = lib.MQ_QUEUE_MAX
PLACE_BITS: int = lib.MQ_PLACE_BITS
NOTE_AT, NOTE_SIZE = 64, 176
# Words of eight bytes, counted from the beginning of a slot.
COMMITTED, RESET_TO, RESETS, APPLIED, OWNER, WANTED_BY, TURN, CHECK = 0, 1, 2, 3, 4, 5, 6, 7
RESERVED_UNTIL, RESERVED_FOR = 30, 31
OFFSET_MAX = (1 << int(lib.MQ_SLOT_OFFSET_BITS)) - 1
QUEUE_BYTES = 4096
TURN_MASK = (1 << 30) - 1


def place_of(number: int) -> int:
    """The place that the queue of a number has in the table."""
    return number & (SLOT_COUNT - 1)


def use_of(number: int) -> int:
    """Which use of its place a number is of."""
    return number >> PLACE_BITS


def slot_word(number: int) -> int:
    """The first word of a queue's slot."""
    return (SLOTS_AT + SLOT_SIZE * place_of(number)) // 8


def queue_byte(number: int, turn: int) -> int:
    """The byte that the owner of a queue locks; another one for each use of its place."""
    return QUEUE_BYTES + number + (turn & TURN_MASK) * SLOT_COUNT * int(lib.MQ_USES_MAX)


def no_slot() -> tuple[memoryview, Any]:
    """Words and a pointer to them, of a slot that is nobody's: whatever the turn, it is another one."""
    pointer = ffi.new("int64_t[]", SLOT_SIZE // 8)
    pointer[TURN] = -1
    return memoryview(bytes(SLOT_SIZE)).cast("q"), pointer


class ClosedMemory:
    """Instead of a file that was closed, as words or as bytes: a few zeros, as of a group that nobody is in,
    and beyond them an error. A thread may look at the file while another closes it."""

    def __init__(self, items: Literal["q", "B"], refusal: Callable[[], Exception]) -> None:
        self._head = memoryview(bytearray(64)).cast(items)
        self._refusal = refusal

    def __getitem__(self, at: int | slice) -> Any:
        try:
            return self._head[at]
        except IndexError:
            raise self._refusal() from None

    def __setitem__(self, at: int | slice, value: Any) -> None:
        try:
            self._head[at] = value
        except (IndexError, ValueError):  # ValueError: of a slice.
            raise self._refusal() from None


def closed_memory(refusal: Callable[[], Exception]) -> tuple[Any, Any]:
    """Words and bytes of a file that was closed."""
    return ClosedMemory("q", refusal), ClosedMemory("B", refusal)


def slot_address(pointer: Any, at: int) -> int:
    """Where a slot lies in memory, as long as the pointer is kept."""
    return int(ffi.cast("uintptr_t", pointer + at))


def clear_slot(words: memoryview, number: int) -> None:
    """Have nothing committed in a slot, and nobody own or want its queue."""
    at = slot_word(number)
    for word in (COMMITTED, CHECK, OWNER, WANTED_BY, RESERVED_UNTIL):
        words[at + word] = 0
    words[at + APPLIED] = words[at + RESETS]


def reserve_slot(words: memoryview, number: int, client: int, until: int) -> None:
    """The owner of a queue calls this. Until then only this client may own it, even after a kill."""
    at = slot_word(number)
    words[at + RESERVED_FOR] = client
    words[at + RESERVED_UNTIL] = until


def reserved_until(words: memoryview, number: int, client: int | None = None) -> int:
    """Until when a queue is reserved for another client than this one; 0: for none."""
    at = slot_word(number)
    until = words[at + RESERVED_UNTIL]
    is_over_now = not until or is_over(until, now_ns())
    return 0 if is_over_now or words[at + RESERVED_FOR] == client else int(until)


def correct_slot(address: int, turn: int, resets: int, offset: int) -> bool:
    """See native/control/group_slots.h."""
    slot = ffi.cast("int64_t *", address)
    return bool(lib.mq_slot_correct(slot, turn, resets, offset))


bind_slots(int(ffi.cast("uintptr_t", ffi.addressof(lib, "mq_slot_commit"))))


def offsets_in(slots: bytes) -> dict[int, int]:
    """Queue number to what is committed of it."""
    words = memoryview(slots).cast("q")
    base = ffi.from_buffer("int64_t[]", slots)
    found = {}
    for at in range(0, len(words), SLOT_SIZE // 8):
        if words[at] or words[at + RESETS] != words[at + APPLIED] or words[at + CHECK]:
            value = int(lib.mq_slot_value(base + at))
            if value > 0:
                use = words[at + TURN] >> 32
                found[use * SLOT_COUNT + at * 8 // SLOT_SIZE] = value - 1
    return found
