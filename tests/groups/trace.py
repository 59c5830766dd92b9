"""What consumers under fire write down, and what must hold of it.

Each consumer process appends to a file of its own, records of fixed size, one write each, so that a kill
leaves at most one torn record, at the end. Times are of the monotonic clock, which all processes share.

    Event   kind, process, queue, queue_offset, time_ns, run, sequence, attempt
            Entered: a listener is about to work on a message. Returned, Raised: it has, written before
            anything is made of it. A queue of the retry topic counts as -1 - queue_id.
    Ack     run, sequence, queue, queue_offset      a message as its sender was promised that it is stored
    Look    group, queue, committed, time_ns        an offset of a group as an observer saw it, afterwards
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tests.support.processes.trace import records

__all__ = [
    "ACK",
    "EVENT",
    "LOOK",
    "Ack",
    "Event",
    "Kind",
    "Look",
    "acks",
    "events",
    "looks",
    "missing",
    "overlaps",
    "repeats",
    "unordered",
]

EVENT = struct.Struct(">BIiqqIIi")
ACK = struct.Struct(">IIiq")
LOOK = struct.Struct(">Iiqq")
SHOWN = 20


class Kind(IntEnum):
    STARTED = 1
    ENTERED = 2
    RETURNED = 3
    RAISED = 4
    LEAVING = 5
    LEFT = 6


class Event(NamedTuple):
    kind: int
    process: int
    queue: int
    queue_offset: int
    time_ns: int
    run: int
    sequence: int
    attempt: int

    @property
    def place(self) -> tuple[int, int]:
        return self.queue, self.queue_offset

    @property
    def name(self) -> tuple[int, int]:
        return self.run, self.sequence


class Ack(NamedTuple):
    run: int
    sequence: int
    queue: int
    queue_offset: int


class Look(NamedTuple):
    group: int
    queue: int
    committed: int
    time_ns: int


Deaths = Mapping[int, int]
"""Process -> the time just before it was killed."""


def events(paths: Iterable[Path]) -> list[Event]:
    """All of one group, in the order in which they happened."""
    found = [Event(*fields) for path in paths for fields in records(path, EVENT)]
    return sorted(found, key=lambda event: event.time_ns)


def acks(paths: Iterable[Path]) -> list[Ack]:
    return [Ack(*fields) for path in paths for fields in records(path, ACK)]


def looks(path: Path) -> list[Look]:
    return [Look(*fields) for fields in records(path, LOOK)]


def missing(promised: Iterable[Ack], happened: Iterable[Event]) -> list[str]:
    """What was acknowledged, and no listener of the group has returned from."""
    done = {event.name for event in happened if event.kind == Kind.RETURNED}
    lost = [ack for ack in promised if (ack.run, ack.sequence) not in done]
    return [f"{ack} was never consumed" for ack in lost[:SHOWN]]


def repeats(happened: Iterable[Event], deaths: Deaths, seen: Iterable[Look] = ()) -> tuple[int, list[str]]:
    """How often a stored message came again, and each time that it had no business to: its last consumer was
    not killed, or what it did was committed. `seen`: what an observer saw of this group."""
    wrong: list[str] = []
    count = 0
    committed: defaultdict[int, list[Look]] = defaultdict(list)
    for look in seen:
        if committed[look.queue] and look.committed < committed[look.queue][-1].committed:
            wrong.append(f"{look} after {committed[look.queue][-1]}")
        committed[look.queue].append(look)
    heights = {queue: [look.committed for look in over] for queue, over in committed.items()}
    before: dict[tuple[int, int], Event] = {}
    for event in happened:
        if event.kind != Kind.ENTERED:
            continue
        first = before.get(event.place)
        before[event.place] = event
        over = committed[event.queue]
        place = bisect_right(heights.get(event.queue, []), event.queue_offset)
        if place < len(over) and over[place].time_ns < event.time_ns:
            wrong.append(f"{event} although {over[place]}")
        if first is None:
            continue
        count += 1
        if first.process not in deaths:
            wrong.append(f"{event} after {first}, whose process was not killed")
        elif first.process == event.process:
            wrong.append(f"{event} after {first}, in the same process")
    return count, wrong[:SHOWN]


def overlaps(happened: Iterable[Event], deaths: Deaths, *, by_queue: bool) -> list[str]:
    """Where two were inside a listener at a time, for the same queue or else for the same message.

    A listener that did not return was in it until its process was killed.
    """
    entered: dict[tuple[int, tuple[int, int]], Event] = {}
    spans: defaultdict[object, list[tuple[int, int, Event]]] = defaultdict(list)

    def span(event: Event, end: int) -> None:
        key = event.queue if by_queue else event.place
        spans[key].append((event.time_ns, max(end, event.time_ns), event))

    for event in happened:
        at = (event.process, event.place)
        if event.kind == Kind.ENTERED:
            if at in entered:
                span(entered[at], deaths.get(event.process, event.time_ns))
            entered[at] = event
        elif event.kind in {Kind.RETURNED, Kind.RAISED} and at in entered:
            span(entered.pop(at), event.time_ns)
    wrong = []
    for event in entered.values():
        if event.process in deaths:
            span(event, deaths[event.process])
        else:
            wrong.append(f"{event} never ended")
    for of_key in spans.values():
        of_key.sort(key=lambda item: item[:2])
        latest, inside = 0, of_key[0][2]
        for begin, end, event in of_key:
            if begin < latest:
                wrong.append(f"{event} while {inside} was still inside, until {latest}")
            if end > latest:
                latest, inside = end, event
    return wrong[:SHOWN]


def unordered(happened: Iterable[Event]) -> list[str]:
    """First deliveries that are not in the order of their key: `run` is the key, `sequence` counts in it."""
    newest: dict[int, int] = {}
    known: set[tuple[int, int]] = set()
    wrong = []
    for event in happened:
        if event.kind != Kind.ENTERED or event.name in known:
            continue
        known.add(event.name)
        if event.sequence <= newest.get(event.run, -1):
            wrong.append(f"{event} after number {newest[event.run]} of its key")
        newest[event.run] = event.sequence
    return wrong[:SHOWN]


def percentile(figures: Sequence[float], fraction: float) -> float:
    """The least figure that this share of them does not exceed."""
    return sorted(figures)[max(0, math.ceil(len(figures) * fraction) - 1)]
