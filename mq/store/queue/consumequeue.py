"""Consume queues: for each message of one (topic, queue), where its record is.

On disk: consumequeue/<topic>/<queue id>/<byte offset of the first unit, 20 digits>, files of equal size. The
unit of queue offset q lies at byte 20 * q of the queue. Integers big-endian:

    offset  size  field
         0     8  log_offset       of the record
         8     4  size             of the record
        12     8  tags_code        hash of its tag; in SCHEDULE_TOPIC_XXXX when it is due, ms; or an
                                   address: extensions.py

Units have no checksum: they are derived, the record says topic, queue, offset and place itself, and every
reader compares. A unit of log offset 0 and size 0x7fffffff fills up what lies before the first message of a
queue that begins late; readers pass over it.

An all-zero file would be one phantom message to RocketMQ. So a file appears under its name only with its
first unit inside, and what is cut is zeroed.

RocketMQ: store/ConsumeQueue.java.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mq.names import is_topic_name
from mq.store.native import ffi, lib
from mq.store.shared.control import Control

__all__ = ["last_unit", "queue_directories", "remove_queue", "remove_queues"]


def queue_directories(
    root: Path, kind: str = "consumequeue", misplaced: list[Path] | None = None
) -> Iterator[tuple[str, int, Path]]:
    """(topic, queue id, directory) of every queue that has a directory, of this kind; other names are
    RocketMQ's to ignore too. misplaced gets what has such a name and is no directory."""
    others = [] if misplaced is None else misplaced
    try:
        topics = _directories(root / kind, is_topic_name, others)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        others.append(root / kind)
        return
    for topic in topics:
        try:
            queues = _directories(root / kind / topic, _is_queue_name, others)
        except FileNotFoundError:
            continue  # Another process deleted the topic since its name was read.
        for queue in queues:
            if _is_queue_name(queue):
                yield topic, int(queue), root / kind / topic / queue


def _is_queue_name(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _directories(path: Path, is_name: Callable[[str], bool], misplaced: list[Path]) -> list[str]:
    """The names of those in a directory, in their order."""
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                names.append(entry.name)
            elif is_name(entry.name):
                misplaced.append(path / entry.name)
    return sorted(names)


def remove_queue(root: Path, topic: str, queue_id: int) -> None:
    """Remove the files of one queue, as far as they can be."""
    for kind in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(root / kind / topic / str(queue_id), ignore_errors=True)


def last_unit(log: Any, control: Control, number: int) -> int:
    """Where a queue's last unit points to, as a log offset; -1 if it has none."""
    log_offset, size, tags_code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
    last = control.next_offset(number) - 1
    if last < 0 or lib.mq_queue_unit(log, number, last, log_offset, size, tags_code):
        return -1
    return int(log_offset[0])


def remove_queues(root: Path, topic: str) -> None:
    """Remove the files of all queues of a topic, as far as they can be."""
    for kind in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(root / kind / topic, ignore_errors=True)
