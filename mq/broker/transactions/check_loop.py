"""Which half messages are to be asked about: RocketMQ's check loop, without clock, thread or file.

Half messages lie in one queue. A cursor goes over it: everything below is handled, since the transaction has
ended, or since the half message was stored once more at the end of the queue, to be looked at again. A Ledger
keeps what is known of those above the cursor.

A round looks at them in order and stops at the first that is too young: those after it are younger still.
Each that is due is copied to the end, its count of checks raised by one, and asked about; at the limit of
checks, or older than what is kept of the log, it is given up. A half message with an immunity time of its own
would keep younger ones waiting: while it is too young it is copied, and its count stays.

A transaction's name is the place of its first half message in the queue; its copies bear it.

RocketMQ: broker/transaction/queue/TransactionalMessageServiceImpl.java. There the op queue alone tells what
has ended, so that a round waits for op records; here the checker has read them all, and knows what none
tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

__all__ = ["Action", "Half", "Ledger", "Rules", "decide", "due"]

ROUND_MS_MAX = 60_000


class Half(NamedTuple):
    """What of a half message tells whether it is due."""

    place: int  # in the queue of half messages
    name: int  # the place of the first one
    times_checked: int
    born_ms: int
    store_ms: int
    immunity_ms: int | None  # None: it has no time of its own


class Rules(NamedTuple):
    """Options of the broker."""

    timeout_ms: int
    check_max: int
    retention_ms: int


class Action(Enum):
    """What is to be done about a half message."""

    ASK = "copy it, count one more check, and ask"
    KEEP = "copy it as it is"
    GIVE_UP = "put it where it waits to be resumed"
    STOP = "nothing, nor about those after it"
    FORGET = "say of this copy too that its transaction has ended"


class Ledger:
    """Which half messages from `base` on are handled; those below all are."""

    def __init__(self, base: int, op_base: int) -> None:
        self.base = base
        self.op_base = op_base
        self._handled = bytearray()  # of each place from base on, 1 if it is
        self._newest: dict[int, int] = {}  # name to its newest copy
        self._ops: deque[tuple[int, int]] = deque()  # op offset, and the last place it tells of

    def handle(self, place: int) -> None:
        """This one is handled."""
        at = place - self.base
        if at < 0:
            return
        if at >= len(self._handled):
            self._handled.extend(bytes(at + 1 - len(self._handled)))
        self._handled[at] = 1

    def room(self, end: int) -> bytearray:
        """Whether each from `base` on, below `end` at least, is handled: a byte that is 1 where it is."""
        if end - self.base > len(self._handled):
            self._handled.extend(bytes(end - self.base - len(self._handled)))
        return self._handled

    def is_open(self, place: int) -> bool:
        at = place - self.base
        return at >= 0 and (at >= len(self._handled) or not self._handled[at])

    def next_open(self, place: int) -> int:
        """The first from there on that is not handled; those never heard of are not."""
        at = max(place - self.base, 0)
        found = self._handled.find(0, at)
        return self.base + (found if found >= 0 else max(len(self._handled), at))

    def run(self, place: int, count_max: int) -> int:
        """How many that are not handled follow each other there."""
        at = place - self.base
        found = self._handled.find(1, at, at + count_max)
        return count_max if found < 0 else found - at

    def copied(self, name: int, place: int) -> None:
        """A copy of that transaction's half message lies there."""
        if place > self._newest.get(name, name):
            self._newest[name] = place

    def newest(self, name: int) -> int:
        return self._newest.get(name, name)

    def given_up(self, name: int) -> None:
        """Nobody is asked about it any more."""
        self._newest.pop(name, None)

    def copies_of(self, names: Collection[int]) -> list[int]:
        """The newest copies of these, whose transactions have ended, where they have any."""
        if not self._newest:
            return []
        return [self._newest.pop(name) for name in self._newest.keys() & set(names)]

    def told(self, op_offset: int, places: Sequence[int]) -> None:
        """There is an op record that tells of these. Records are told of in their order."""
        last = max(places, default=-1)
        handled, base = self.room(last + 1), self.base
        for place in places:  # Of millions, after a death at full rate.
            if place >= base:
                handled[place - base] = 1
        self.noted(op_offset, last)

    def noted(self, op_offset: int, last: int) -> None:
        """There is an op record, of which all is handled; the last place that it tells of."""
        self._ops.append((op_offset, last))

    def advance(self, base: int) -> None:
        """All below are handled."""
        del self._handled[: max(base - self.base, 0)]
        self.base = max(base, self.base)

    def settle(self) -> tuple[int, int]:
        """Forget what is of no use any more; where the cursors of both queues are."""
        base = self.next_open(self.base)
        del self._handled[: base - self.base]
        self.base = base
        while self._ops and self._ops[0][1] < base:
            self.op_base = self._ops.popleft()[0] + 1
        return self.base, self.op_base


def decide(half: Half, now_ms: int, started_ms: int, rules: Rules) -> Action:
    """What is to be done about a half message whose transaction has not ended, in a round started then."""
    age_ms = now_ms - half.born_ms
    if half.times_checked >= rules.check_max:
        return Action.GIVE_UP
    if started_ms <= half.store_ms <= now_ms:
        return Action.STOP
    # Store times never go back: one that lies ahead says nothing where the clock was set back.
    if age_ms < 0:
        return Action.ASK  # The clock was set back: to wait for it could take for ever.
    if half.immunity_ms is None:
        return Action.STOP if age_ms <= rules.timeout_ms else Action.ASK
    # One whose message would be deleted is asked about, which stores it again.
    return Action.KEEP if age_ms <= min(half.immunity_ms, rules.retention_ms) else Action.ASK


def due(
    ledger: Ledger,
    end: int,
    read: Callable[[int], Half | None],
    has_ended: Callable[[int], bool],
    clock: Callable[[], int],
    started_ms: int,
    rules: Rules,
) -> Iterator[tuple[Action, Half]]:
    """What a round has to do about the half messages below `end`, each before the next is asked for.

    read(place) is a half message, None if it is lost; has_ended(name) what is known besides the ledger.
    """
    place = ledger.base
    while (place := ledger.next_open(place)) < end and clock() - started_ms <= ROUND_MS_MAX:
        half = read(place)
        if half is not None and place >= ledger.newest(half.name):
            if has_ended(half.name):
                if place != half.name:
                    yield Action.FORGET, half
            else:
                action = decide(half, clock(), started_ms, rules)
                if action is Action.STOP:
                    return
                yield action, half
        # Also one that has a newer copy: the leader that made that died before it could say so.
        ledger.handle(place)
        place += 1
