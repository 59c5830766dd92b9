"""What recoveries found to be lost: where in the log, and which messages of which queues.

Kept in mq/losses.json, a list of {"begin", "end", "why"} with log offsets: units of queues still point there,
and a later recovery must not take them for units of messages that were never sent. An entry goes when
retention has passed it, or when a record is there again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

from mq.store.directory.owner import open_made
from mq.store.directory.root import sync_names
from mq.store.native import ffi, lib
from mq.store.shared.control import Control

__all__ = [
    "Loss",
    "is_refuted",
    "keep_losses",
    "kept_losses",
    "lost_messages",
    "merged",
    "ranges_in",
    "tell",
]

QUEUES_NAMED = 20
LOSSES_MAX = 1000
OFFSET_MAX = 1 << 62
Offsets = tuple[str, int, int, int]  # topic, queue id, first queue offset, the one behind the last


@dataclass(slots=True)
class Loss:
    """A part of the log in which no record is whole, though there were some."""

    begin: int  # log offsets
    end: int
    why: str
    messages: list[Offsets] = field(default_factory=list)
    is_told: bool = False  # by an earlier recovery

    def __str__(self) -> str:
        named = [
            f"{topic}/{queue_id} queue offset{f's {first:,} to' if last > first + 1 else ''} {last - 1:,}"
            for topic, queue_id, first, last in self.messages[:QUEUES_NAMED]
        ]
        more = len(self.messages) - len(named)
        lost = ", ".join(named) + (f" and of {more:,} queues more" if more else "")
        return (
            f"log offsets {self.begin:,} to {self.end:,}: {self.why}; messages: {lost or 'none is known of'}"
        )


def kept_losses(root: Path, log: Any, log_min: int) -> list[Loss]:
    """What earlier recoveries found, as far as it still is so; nothing if the file cannot be read: it only
    helps."""
    try:
        entries = json.loads((root / "mq" / "losses.json").read_bytes())
        losses = [
            Loss(int(entry["begin"]), int(entry["end"]), str(entry["why"]), is_told=True) for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return []
    return [
        loss
        for loss in losses[:LOSSES_MAX]
        if max(log_min, 0) < loss.end < OFFSET_MAX
        and 0 <= loss.begin <= loss.end
        and not _is_whole(log, loss.begin)
    ]


def _is_whole(log: Any, log_offset: int) -> bool:
    """Whether a whole record is at this place of the log: somebody put its file back."""
    walk = ffi.new("mq_walk *")
    code = lib.mq_log_walk(log, log_offset, log_offset + 1, 0, -1, walk)
    return bool(code == 0 and walk.last_offset == log_offset)


def is_refuted(log: Any, control: Control, loss: Loss) -> bool:
    """Whether units point into this part of the log, and each to a whole record: another store's file says
    that it is lost. One that is lost in truth has a unit that points to no record, or none is left."""
    place, size, code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
    is_there = False
    for number, _, _ in control.queues():
        for at in range(
            _first_unit(log, control, number, loss.begin), _first_unit(log, control, number, loss.end)
        ):
            if lib.mq_queue_unit(log, number, at, place, size, code) < 0 or not _is_whole(log, place[0]):
                return False
            is_there = True
    return is_there


def keep_losses(root: Path, losses: Iterable[Loss]) -> None:
    path = root / "mq" / "losses.json"
    entries = [
        {"begin": loss.begin, "end": loss.end, "why": loss.why} for loss in losses if loss.end > loss.begin
    ]
    if not entries:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_suffix(".new")
    fd = open_made(fresh, os.O_WRONLY | os.O_TRUNC)
    with os.fdopen(fd, "w") as file:
        json.dump(entries[-LOSSES_MAX:], file, indent=1)
        file.flush()
        os.fsync(fd)
    fresh.replace(path)
    sync_names(path.parent)


def merged(losses: Iterable[Loss]) -> list[Loss]:
    """In the log's order, each part of the log once."""
    found: list[Loss] = []
    for loss in sorted(losses, key=lambda loss: (loss.begin, -loss.end)):
        if found and loss.end <= found[-1].end and loss.begin < loss.end:
            continue
        if found and loss.begin < found[-1].end:
            loss.begin = found[-1].end
        found.append(loss)
    return found


def ranges_in(losses: list[Loss]) -> Any:
    """The ranges as C takes them."""
    return ffi.new("int64_t[]", [offset for loss in losses for offset in (loss.begin, loss.end)])


def lost_messages(log: Any, control: Control, loss: Loss) -> Iterator[Offsets]:
    """The messages whose units point into a part of the log."""
    for number, topic, queue_id in control.queues():
        first = _first_unit(log, control, number, loss.begin)
        last = _first_unit(log, control, number, loss.end)
        if first < last:
            yield topic, queue_id, first, last


def _first_unit(log: Any, control: Control, number: int, log_offset: int) -> int:
    """The first queue offset whose unit points to this log offset or behind; the queue's end if none does."""
    place, size, code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
    low, high = control.min_offset(number), control.next_offset(number)
    while low < high:
        middle = (low + high) // 2
        found = lib.mq_queue_unit(log, number, middle, place, size, code)
        if found < 0 or place[0] < log_offset:
            low = middle + 1
        else:
            high = middle
    return low


def tell(root: Path, losses: Iterable[Loss], made_anew: list[str]) -> None:
    """What a recovery did, to the log of `mq.store`."""
    log = getLogger("mq.store")
    if made_anew:
        log.warning(
            "%s: made anew from the log, since files were missing or damaged: %s", root, _some(made_anew)
        )
    for loss in losses:
        if not loss.is_told:
            log.warning("%s: messages are lost: %s; `mq DIR verify` names them again", root, loss)


def _some(names: list[str]) -> str:
    more = len(names) - QUEUES_NAMED
    return ", ".join(names[:QUEUES_NAMED]) + (f" and {more:,} more" if more > 0 else "")
