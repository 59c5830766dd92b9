"""The files of queues as a recovery finds them: what can be right is kept, and where the rest is to be made
anew from.

A file that is missing, of another length, or that begins or ends with what no unit is, ends the queue before
it: the log's records from the last unit on tell what follows. Without its first file a queue is made anew
from the log's first record on. Where a control file knows that a queue had more units, the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq.store.directory.file_sizes import FileSizes
from mq.store.directory.root import size_of
from mq.store.log.commitlog import segment_files
from mq.store.native import check, ffi, lib
from mq.store.queue.consumequeue import queue_directories
from mq.store.queue.extensions import discard_extensions, extension_files, load_extensions
from mq.store.recovery.control_validation import Hint
from mq.store.recovery.misplaced import set_aside
from mq.store.recovery.plausibility import are_extensions_sound, first_bad_file, unit_at
from mq.store.shared.control import Control

__all__ = ["Loaded", "load_queues"]

Queue = tuple[str, int]


@dataclass(slots=True)
class Loaded:
    """What was kept of the queues' files."""

    lost: list[str] = field(default_factory=list)  # what has to be made anew from the log's first record on
    cut: list[str] = field(default_factory=list)  # … and from where the queue's last unit points to
    from_log_offset: int | None = None  # the lowest of those
    starts: dict[Queue, int] = field(
        default_factory=dict
    )  # where the first file of each queue starts, in bytes

    reached: dict[Queue, int] = field(
        default_factory=dict
    )  # where queues whose files were removed may have ended

    def cut_at(self, what: str, log_offset: int) -> None:
        self.cut.append(what)
        if self.from_log_offset is None or log_offset < self.from_log_offset:
            self.from_log_offset = log_offset


def load_queues(
    root: Path,
    log: Any,
    control: Control,
    sizes: FileSizes,
    known: Hint,
    log_end: int,
    before_removal: Callable[[], None],
    *,
    writable: bool,
) -> Loaded:
    """Find each queue's end, at the latest where the log ends, and remove files that cannot be what was
    written."""
    found, unit = Loaded(), int(lib.MQ_UNIT_SIZE)
    misplaced: list[Path] = []
    for topic, queue_id, directory in queue_directories(root, misplaced=misplaced):
        name = topic.encode()
        if len(name) >= lib.MQ_TOPIC_MAX:
            continue
        files = segment_files(directory, misplaced)
        low, high = known.queues.get((topic, queue_id), (0, 0))
        bad = first_bad_file(files, sizes.queue_file_size, log_end)
        if bad is not None and bad == len(files) - 1 > 0 and _follows(files, sizes.queue_file_size):
            bad = None  # Where units end, it may have none: that is found when it is loaded.
        if files and (topic, queue_id) in known.queues and int(files[0].name) > max(low, 0) * unit:
            bad = 0  # Its first file is missing.
        if bad is not None:
            if not found.lost and not found.cut:
                before_removal()
            if bad == 0 and files:
                found.reached[topic, queue_id] = (int(files[-1].name) + sizes.queue_file_size) // unit
            for file in files[bad:]:
                file.unlink()
            del files[bad:]
        if not files:
            if bad is not None or high > low:
                found.lost.append(f"{topic}/{queue_id}")
                if writable:
                    discard_extensions(root, topic, queue_id)
            continue
        found.starts[topic, queue_id] = int(files[0].name)
        number = check(lib.mq_log_queue(log, name, len(name), queue_id, 2), str(directory))
        check(
            lib.mq_queue_load(log, number, int(files[0].name), int(files[-1].name), log_end), str(directory)
        )
        if writable:
            _remove_cut_extensions(root, topic, queue_id, sizes)
        load_extensions(root, log, number, topic, queue_id, writable=writable)
        units = control.next_offset(number)
        last_known = (high - 1) * unit // sizes.queue_file_size * sizes.queue_file_size if high > low else 0
        if bad is not None or int(files[-1].name) < last_known or (known.is_certain and units < high):
            _end_early(found, log, control, number, f"{topic}/{queue_id}")
        elif known.is_certain and not _has_extensions(root, control, number, topic, queue_id, sizes):
            found.lost.append(f"extensions of {topic}/{queue_id}")
    if misplaced:
        before_removal()
        found.lost += [str(path.relative_to(root)) for path in misplaced]
        set_aside(root, misplaced)
    found.lost += _without_directory(root, known)
    return found


def _without_directory(root: Path, known: Hint) -> list[str]:
    """Queues that are known to have had messages."""
    present = {(topic, queue_id) for topic, queue_id, _ in queue_directories(root)}
    return [
        f"{topic}/{queue_id}"
        for (topic, queue_id), (low, high) in known.queues.items()
        if high > low and (topic, queue_id) not in present
    ]


def _follows(files: list[Path], size: int) -> bool:
    """Whether the last file has its length, and the one before it is there."""
    return size_of(files[-1]) == size and int(files[-1].name) == int(files[-2].name) + size


def _end_early(found: Loaded, log: Any, control: Control, number: int, name: str) -> None:
    """A queue lacks units behind its end."""
    place, size, code = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
    last = control.next_offset(number) - 1
    if last < control.min_offset(number) or lib.mq_queue_unit(log, number, last, place, size, code):
        found.lost.append(name)
    else:
        found.cut_at(name, int(place[0]))


def _remove_cut_extensions(root: Path, topic: str, queue_id: int, sizes: FileSizes) -> None:
    for file in extension_files(root, topic, queue_id):
        if size_of(file) != sizes.consume_queue_ext_file_size:
            file.unlink()


def _has_extensions(
    root: Path, control: Control, number: int, topic: str, queue_id: int, sizes: FileSizes
) -> bool:
    """Whether the extensions that the first and last unit of each of the queue's files have are there."""
    directory, size = root / "consumequeue" / topic / str(queue_id), sizes.queue_file_size
    low, high = control.min_offset(number) * lib.MQ_UNIT_SIZE, control.next_offset(number) * lib.MQ_UNIT_SIZE
    places = {
        place
        for start in range(low // size * size, high, size)
        for place in (max(start, low), min(start + size, high) - lib.MQ_UNIT_SIZE)
    }
    units = [unit_at(directory / f"{place // size * size:020}", place % size) for place in sorted(places)]
    return are_extensions_sound(
        root,
        topic,
        queue_id,
        [unit for unit in units if unit is not None],
        sizes.consume_queue_ext_file_size,
    )
