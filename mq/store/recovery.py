"""What to do with a directory that was not closed by us, or not at all.

Pure of threads and locks: the caller is alone inside. Two passes. The first finds the log's end: from the
last file that the checkpoint vouches for (abnormal end), or from the last one (a broker closed it cleanly),
record by record. The second gives every record from there on the queue unit that it lacks. Where a queue
lacks units of earlier records, which means that its files were deleted, the second pass starts over at
the log's first record.

Where the bytes are no record, the log ends, unless a whole record that was on disk follows: the time of the
checkpoint tells, or the clean end. Then one record is damaged; it stays where it is, and reading it is an
error. A bulk that says how many records it has (see bulk.h) is found whole or not at all: where the log ends
inside it, it ends before it.

What lies behind the end is zeroed: RocketMQ takes well-formed bytes there for records.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq.errors import StoreCorrupted
from mq.store.checkpoint import Checkpoint, write_checkpoint
from mq.store.commitlog import segment_files
from mq.store.configfile import write_config
from mq.store.consumequeue import queue_directories
from mq.store.consumequeueext import discard_extensions, load_extensions
from mq.store.control import Control
from mq.store.directory import BEGIN_MEMBER, sync_file, sync_names
from mq.store.directory import topics_begin as begins_of
from mq.store.geometry import Geometry
from mq.store.native import check, ffi, lib
from mq.store.topicjournal import listed_topics

__all__ = ["Recovered", "recover"]

STEP = 64 << 20  # Bytes of log between two calls of `progress`.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Recovered:
    """What a recovery found and did."""

    log_min: int = 0
    log_end: int = 0
    last_store_time: int = 0
    records: int = 0
    damaged: list[int] = field(default_factory=list)  # log offsets of records that are not whole
    rebuilt: bool = False  # queues were made anew from the log's first record


class Recovery:
    def __init__(
        self,
        root: Path,
        log: Any,
        control: Control,
        geometry: Geometry,
        progress: Progress | None,
        *,
        writable: bool,
    ) -> None:
        self.root = root
        self.writable = writable
        self.log = log
        self.control = control
        self.geometry = geometry
        self.progress = progress
        self.found = Recovered()

    def segments(self) -> list[Path]:
        """The log's files, checked; an empty one at the end is a crash while it was made."""
        files = segment_files(self.root / "commitlog")
        while files and files[-1].stat().st_size == 0:
            empty = files.pop()
            if self.writable:
                empty.unlink()
        size = self.geometry.commitlog_file_size
        for before, after in itertools.pairwise(files):
            if int(after.name) - int(before.name) != size:
                raise StoreCorrupted(
                    f"{before.parent}: between {before.name} and {after.name} a file is missing",
                    path=str(before.parent),
                )
        for file in files:
            if file.stat().st_size != size or int(file.name) % size:
                raise StoreCorrupted(
                    f"{file} is not a file of {size:,} bytes at a multiple of that", path=str(file)
                )
        return files

    def start(self, files: list[Path], until_time: int | None) -> int:
        """Where to begin: the last file whose first record is whole and old enough."""
        for file in reversed(files):
            time = lib.mq_log_first_time(self.log, int(file.name))
            if time > 0 and (until_time is None or time <= until_time):
                return int(file.name)
        return int(files[0].name)

    def walk(self, what: str, start: int, end: int, dispatch: int, hole: int = -1) -> Any:
        """Walk until something stops it, in steps that end between records."""
        walk = ffi.new("mq_walk *")
        walk.bulk_at = -1
        last_time, records, at = 0, 0, start
        while at < end:
            check(lib.mq_log_walk(self.log, at, min(end, at + STEP), dispatch, hole, walk), str(self.root))
            records += walk.records
            if walk.records:
                last_time = walk.last_store_time
            at = walk.end
            if self.progress:
                self.progress(what, at - start, end - start)
            if walk.stopped:
                break
        walk.end = at
        walk.records = records
        walk.last_store_time = last_time
        return walk

    def resync(self, hole: int, end: int) -> int:
        """Where the first whole record behind a hole begins; -1 if there is none."""
        found = lib.mq_log_resync(self.log, hole, end)
        return -1 if found == lib.MQ_GONE else check(found, str(self.root))

    def find_end(self, start: int, end: int, flushed_time: int | None) -> None:
        """First pass. flushed_time: up to which store time all is known to be on disk; None: all of it is."""
        at = start
        while True:
            walk = self.walk("verifying", at, end, 0)
            self.found.records += walk.records
            self.found.last_store_time = max(self.found.last_store_time, walk.last_store_time)
            self.found.log_end = walk.end
            resumed = self.resync(walk.end, end) if walk.stopped == 1 else -1
            if resumed < 0:
                break
            time = lib.mq_log_first_time(self.log, resumed)
            if flushed_time is not None and time >= flushed_time:
                break
            self.found.damaged.append(walk.end)
            at = resumed
        if flushed_time is not None and walk.bulk_at >= 0:
            self.found.log_end = walk.bulk_at  # The rest of this bulk is lost: none of it counts.

    def load_queues(self, lost: set[tuple[str, int]]) -> None:
        """Find each queue's end, at the latest where the log ends."""
        for topic, queue_id, directory in queue_directories(self.root):
            files = segment_files(directory)
            size = self.geometry.queue_file_size
            for file in list(files):
                if file.stat().st_size == 0:
                    file.unlink()
                    files.remove(file)
                elif file.stat().st_size != size:
                    raise StoreCorrupted(
                        f"{file} has {file.stat().st_size:,} bytes, not {size:,}: delete {directory} while"
                        " nothing has the store open, and it is rebuilt from the log",
                        path=str(file),
                    )
            if (topic, queue_id) in lost:
                # What is left of it would keep the missing ones from being written where they belong.
                for file in files:
                    file.unlink()
                if self.writable:
                    discard_extensions(self.root, topic, queue_id)
                continue
            if not files:
                continue
            name = topic.encode()
            if len(name) >= lib.MQ_TOPIC_MAX:
                continue
            number = check(lib.mq_log_queue(self.log, name, len(name), queue_id, 2), str(directory))
            first, last = int(files[0].name), int(files[-1].name)
            check(lib.mq_queue_load(self.log, number, first, last, self.found.log_end), str(directory))
            load_extensions(self.root, self.log, number, topic, queue_id, writable=self.writable)

    def queue_starts(self) -> dict[tuple[str, int], int]:
        """Where the first file of each queue that has files starts, in bytes."""
        return {
            (topic, queue_id): int(files[0].name)
            for topic, queue_id, directory in queue_directories(self.root)
            if (files := segment_files(directory))
        }

    def lost_queues(self, known: dict[tuple[str, int], tuple[int, int]]) -> set[tuple[str, int]]:
        """Queues that lack a file, by their names or by what an older control file knew of them."""
        unit, size = lib.MQ_UNIT_SIZE, self.geometry.queue_file_size
        present = {
            (topic, queue_id): {int(file.name) for file in segment_files(directory)}
            for topic, queue_id, directory in queue_directories(self.root)
        }
        lost = set()
        for queue, starts in present.items():
            if starts and len(starts) != (max(starts) - min(starts)) // size + 1:
                lost.add(queue)
        for queue, (low, high) in known.items():
            starts = present.get(queue, set())
            if low < 0 or not all(
                start in starts for start in range(low * unit // size * size, high * unit, size)
            ):
                lost.add(queue)
        return lost

    def vouch_for_nothing(self) -> None:
        """Before queues are made anew: should the power fail meanwhile, the old checkpoint would speak of
        units that are gone, and the next recovery would not look for them."""
        if self.writable:
            write_checkpoint(self.root, Checkpoint(), sync=True)
            sync_names(self.root)

    def units_end(self) -> int:
        """Log offset of the newest record that a queue has a unit of; -1 if there is no unit."""
        newest, log_offset = -1, ffi.new("int64_t *")
        size, tags_code = ffi.new("int32_t *"), ffi.new("int64_t *")
        for number, _, _ in self.control.queues():
            last = self.control.next_offset(number) - 1
            if last < 0 or lib.mq_queue_unit(self.log, number, last, log_offset, size, tags_code):
                continue
            newest = max(newest, int(log_offset[0]))
        return newest

    def dispatch(self, start: int, *, from_first: bool) -> bool:
        """Second pass. Whether it came to the end; False at a queue that lacks earlier units."""
        at, end, hole = start, self.found.log_end, -1
        while at >= 0:
            walk = self.walk("indexing", at, end, 2 if from_first or hole >= 0 else 1, hole)
            if walk.stopped == 2:
                return False
            if walk.stopped != 1:
                break
            # A damaged record; the first pass did not see it if it began behind.
            hole = walk.end
            if hole not in self.found.damaged:
                self.found.damaged = sorted([*self.found.damaged, hole])
            at = self.resync(hole, end)
        damaged = ffi.new("int64_t[]", self.found.damaged)
        for number, _, _ in self.control.queues():
            check(
                lib.mq_queue_settle(self.log, number, start, damaged, len(self.found.damaged)), str(self.root)
            )
        return True

    def clear_tail(self, files: list[Path]) -> None:
        log_files = lib.mq_log_files(self.log)
        end = self.found.log_end
        # The last one first: who dies meanwhile must not leave a log that lacks a file between two others.
        for file in reversed(files):
            if int(file.name) >= end and int(file.name) > self.found.log_min:
                check(lib.mq_files_remove(log_files, int(file.name)), str(file))
            elif int(file.name) + self.geometry.commitlog_file_size > end:
                check(lib.mq_files_clear(log_files, max(end, int(file.name))), str(file))
                # On disk before anything is appended: what is cut must not come back with the next crash.
                sync_file(file)
        sync_names(self.root / "commitlog")


def lower_begins(root: Path, log_end: int) -> None:
    """No topic begins behind the log. It was made when the log was longer, and what is sent to it from now on
    would be taken for messages of a deleted one."""
    path = root / "config" / "topics.json"
    late = [name for name, (_, begin) in begins_of(listed_topics(root)).items() if begin > log_end]
    if late:
        content = json.loads(path.read_bytes())
        for name in late:
            if name in content["topicConfigTable"]:
                content["topicConfigTable"][name][BEGIN_MEMBER] = log_end
        write_config(path, json.dumps(content, indent="\t", separators=(",", ":"), ensure_ascii=False))


def recover(
    root: Path,
    log: Any,
    control: Control,
    geometry: Geometry,
    *,
    checkpoint: Checkpoint,
    closed_cleanly: bool,
    known_queues: dict[tuple[str, int], tuple[int, int]],
    listed_queues: set[tuple[str, int]],
    topics_begin: dict[str, tuple[int, int]],
    writable: bool = True,
    progress: Progress | None = None,
) -> Recovered:
    """Set every word of a fresh control file from what the directory holds, and mend the directory.

    known_queues: (topic, queue id) to first and next offset as an older control file had it, which tells of
    queues whose files are gone. listed_queues: those that topics.json has; where no control file tells which
    of them had messages, one without files is looked for in the whole log. topics_begin: topic to its number
    of queues, and the log offset before which records of that name are of a topic that was deleted. Raises
    StoreCorrupted where the files contradict each other in a way that no crash leaves. Without writable the
    log is left alone; queues are mended all the same, so they are copies then.
    """
    work = Recovery(root, log, control, geometry, progress, writable=writable)
    files = work.segments()
    found = work.found
    start = 0
    if files:
        found.log_min = int(files[0].name)
        # Files made ahead have nothing in them, and the last one that has something ends with a hole.
        # One that cannot be opened now is not one with nothing in it.
        ends = [
            check(lib.mq_files_data_end(lib.mq_log_files(log), int(file.name)), str(file)) for file in files
        ]
        # One with nothing in it between others is a hole: what is behind it came to disk before its time.
        count = next((n for n in range(len(files), 0, -1) if ends[n - 1] > int(files[n - 1].name)), 1)
        written, end = files[:count], ends[count - 1]
        control.set(lib.MQ_LOG_MIN, found.log_min)
        # Nothing beyond is touched by a walk, and nothing below is hidden from it.
        control.set(lib.MQ_LOG_END, end)
        control.set(lib.MQ_ALLOCATED_END, end)
        start = work.start(written, None if closed_cleanly else checkpoint.start_time)
        work.find_end(start, end, None if closed_cleanly else checkpoint.physic_time)
        if writable:
            work.clear_tail(files)
    for word, value in (
        (lib.MQ_LOG_MIN, found.log_min),
        (lib.MQ_LOG_END, found.log_end),
        (lib.MQ_ALLOCATED_END, found.log_end),
        (lib.MQ_FLUSHED_END, min(start, found.log_end) if writable else found.log_end),
        (lib.MQ_LAST_STORE_TIME, found.last_store_time),
    ):
        control.set(word, value)
    if writable:
        # What was read may be in memory alone, and later flushes begin behind it.
        check(lib.mq_log_flush(log, found.log_end, -1, 600_000), str(root))
        lower_begins(root, found.log_end)
    for topic, (queue_count, begin) in topics_begin.items():
        name = topic.encode()
        for queue_id in range(queue_count):
            number = check(lib.mq_log_queue(log, name, len(name), queue_id, 2), str(root))
            lib.mq_control_queue_set_begin(control.handle, number, min(begin, found.log_end))
    lost = work.lost_queues(known_queues)
    from_first = bool(lost) or not (root / "consumequeue").is_dir()
    if not from_first:
        starts = work.queue_starts()
        from_first = not known_queues and not listed_queues <= starts.keys()
        # As long as retention took nothing, every queue begins with its first message.
        from_first = from_first or (found.log_min == 0 and any(start > 0 for start in starts.values()))
    if from_first:
        work.vouch_for_nothing()
    work.load_queues(lost)
    # Queues of an older copy end before the log does: what is behind is looked for from there on. Where there
    # is no unit at all, nobody tells which queues there were.
    units_end = work.units_end()
    from_first = from_first or (units_end < 0 and found.log_end > found.log_min)
    if units_end < start:
        start = max(units_end // geometry.commitlog_file_size * geometry.commitlog_file_size, found.log_min)
    if files and (from_first or not work.dispatch(start, from_first=False)):
        work.vouch_for_nothing()
        found.rebuilt = True
        work.dispatch(found.log_min, from_first=True)
    for number, _, _ in control.queues():
        check(lib.mq_queue_trim(log, number, found.log_min), str(root))
    return found
