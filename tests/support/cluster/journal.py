"""The journal of a group: what its members did, in the order in which it happened.

Members append to one file, each event by one write:

    begin TIME MEMBER BROKER QUEUE_ID QUEUE_OFFSET BODY    a listener was called
    end TIME MEMBER BROKER QUEUE_ID QUEUE_OFFSET BODY      it has returned
    killed TIME MEMBER                                     the process was killed, and has ended

TIME is in ms, of the machine's clock.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Event", "Overlap", "out_of_order", "overlaps", "read", "write"]


class Event(NamedTuple):
    """A line."""

    kind: str
    time_ms: int
    member: str
    queue: tuple[str, int] = ("", -1)  # broker and queue id
    queue_offset: int = -1
    body: str = ""


class Overlap(NamedTuple):
    """Two members at work on one queue at the same time."""

    earlier: Event
    later: Event

    @property
    def running_ms(self) -> int:
        """For how long the earlier listener ran when the later one was called."""
        return self.later.time_ms - self.earlier.time_ms


def write(journal: Path, kind: str, *words: object) -> None:
    """Append an event of now."""
    lines = os.open(journal, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(lines, " ".join(map(str, (kind, time.time_ns() // 1_000_000, *words))).encode() + b"\n")
    finally:
        os.close(lines)


def read(journal: Path) -> list[Event]:
    """All events so far."""
    found = []
    whole, _, _ = journal.read_text().rpartition("\n")  # The rest is a line that is being written.
    for line in whole.splitlines():
        kind, time_ms, member, *rest = line.split(" ")
        if not rest:
            found.append(Event(kind, int(time_ms), member))
            continue
        broker, queue_id, queue_offset, body = rest
        found.append(Event(kind, int(time_ms), member, (broker, int(queue_id)), int(queue_offset), body))
    return found


def overlaps(events: Iterable[Event]) -> list[Overlap]:
    """Where a member began to work on a queue while another live member was at work on it."""
    working: dict[tuple[str, int], dict[str, Event]] = defaultdict(dict)
    found = []
    for event in events:
        if event.kind == "killed":
            for at_work in working.values():
                at_work.pop(event.member, None)
            continue
        at_work = working[event.queue]
        if event.kind == "end":
            at_work.pop(event.member, None)
            continue
        found += [Overlap(each, event) for member, each in at_work.items() if member != event.member]
        at_work[event.member] = event
    return found


def out_of_order(events: Iterable[Event], key_of: Callable[[str], object]) -> list[Event]:
    """Bodies that came for the first time after a later one of their key had come. A body ends with its
    number."""
    newest: dict[object, int] = defaultdict(lambda: -1)
    seen: set[str] = set()
    found = []
    for event in events:
        if event.kind != "begin" or event.body in seen:
            continue
        seen.add(event.body)
        number = int(event.body[1:])
        key = key_of(event.body)
        if number < newest[key]:
            found.append(event)
        newest[key] = number
    return found
