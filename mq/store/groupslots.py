"""The slots of a group file: what is committed of a queue, and who has it. groupfile.py has the layout.

A slot goes by the place that its queue has in the table of queues, and says which use of the place it is of.
A process that has not noticed yet that a topic was deleted may commit into the slot when it is the next
queue's already: so each commit bears the last bits of the use that it is for, and one that bears others
counts as none. What was committed in the moment before is then consumed again.
"""

from __future__ import annotations

from mq.store.native import lib

__all__ = [
    "APPLIED",
    "CHECK",
    "COMMITTED",
    "NOTE_AT",
    "NOTE_SIZE",
    "OFFSET_MAX",
    "OWNER",
    "RESETS",
    "RESET_TO",
    "SLOTS_AT",
    "SLOT_COUNT",
    "SLOT_SIZE",
    "TURN",
    "WANTED_BY",
    "offsets_in",
    "place_of",
    "queue_byte",
    "slot_word",
    "tag_of",
    "use_of",
    "value_of",
]

SLOTS_AT, SLOT_SIZE = 69_632, 256
SLOT_COUNT: int = lib.MQ_QUEUE_MAX
PLACE_BITS: int = lib.MQ_PLACE_BITS
NOTE_AT, NOTE_SIZE = 64, 192
# Words of eight bytes, counted from the beginning of a slot.
COMMITTED, RESET_TO, RESETS, APPLIED, OWNER, WANTED_BY, TURN, CHECK = 0, 1, 2, 3, 4, 5, 6, 7
OFFSET_BITS = 56
OFFSET_MAX = (1 << OFFSET_BITS) - 1
TAG_MASK = 63
QUEUE_BYTES = 4096
TURN_MASK = (1 << 30) - 1


def place_of(number: int) -> int:
    """The place that the queue of a number has in the table."""
    return number & (SLOT_COUNT - 1)


def use_of(number: int) -> int:
    """Which use of its place a number is of."""
    return number >> PLACE_BITS


def tag_of(number: int) -> int:
    """What a commit for this queue bears."""
    return (use_of(number) & TAG_MASK) << OFFSET_BITS


def slot_word(number: int) -> int:
    """The first word of a queue's slot."""
    return (SLOTS_AT + SLOT_SIZE * place_of(number)) // 8


def queue_byte(number: int, turn: int) -> int:
    """The byte that the owner of a queue locks; another one for each use of its place."""
    return QUEUE_BYTES + number + (turn & TURN_MASK) * SLOT_COUNT * int(lib.MQ_USES_MAX)


def offsets_in(slots: bytes) -> dict[int, int]:
    """Queue number to what is committed of it."""
    words = memoryview(slots).cast("q")
    found = {}
    for at in range(0, len(words), SLOT_SIZE // 8):
        if words[at] or words[at + RESETS] != words[at + APPLIED] or words[at + CHECK]:
            value = value_of(words, at)
            if value > 0:
                use = words[at + TURN] >> 32
                found[use * SLOT_COUNT + at * 8 // SLOT_SIZE] = value - 1
    return found


def value_of(words: memoryview, at: int) -> int:
    """What is committed, plus one, by the words of a slot; 0 for nothing."""
    if words[at + RESETS] != words[at + APPLIED]:
        value = words[at + RESET_TO]
        return int(value) if 0 <= value <= OFFSET_MAX else 0
    tag = (words[at + TURN] >> 32 & TAG_MASK) << OFFSET_BITS
    value, check = words[at], -words[at + CHECK]
    value, check = value and value - tag, check and check - tag
    if value != check or not 0 <= value <= OFFSET_MAX:
        value = min((each for each in (value, check) if 0 <= each <= OFFSET_MAX), default=0)
    return int(value)
