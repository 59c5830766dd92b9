"""What to do with a directory that was not closed by us, or not at all, or whose files are not what they
were.

Pure of threads and locks: the caller is alone inside. Two passes. The first finds the log's end: from the
last file that the checkpoint vouches for (abnormal end), or from the last one (a broker closed it cleanly),
record by record. The second gives every record from there on the queue unit that it lacks. Where a queue
lacks units of earlier records, which means that its files were deleted or damaged, the second pass starts
where its last unit points to, or over at the log's first record.

Where the bytes are no record, the log ends, unless a whole record that was on disk follows: the time of the
checkpoint tells, or the clean end, or a control file. Then what is between is lost; it stays where it is, and
reading it is an error. A bulk that says how many records it has (see bulk.h) is found whole or not at all:
where the log ends inside it, it ends before it.

What lies behind the end is zeroed: RocketMQ takes well-formed bytes there for records. Where the log is known
to have been longer, it goes on behind what was lost, and so does each queue: no offset is given twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq.errors import StoreCorrupted
from mq.store.directory.checkpoint import Checkpoint, write_checkpoint
from mq.store.directory.file_sizes import FileSizes
from mq.store.directory.raw_read import head_at
from mq.store.directory.root import sync_file, sync_names
from mq.store.native import check, ffi, lib
from mq.store.queue.consumequeue import last_unit
from mq.store.recovery.control_validation import Hint
from mq.store.recovery.log_files import FILES_MISSING_MAX, fill, log_files, missing, set_aside, write_blank
from mq.store.recovery.losses import Loss, keep_losses, kept_losses, lost_messages, merged, ranges_in
from mq.store.recovery.queue_files import load_queues
from mq.store.recovery.topic_begins import lower_begins
from mq.store.shared.control import Control

__all__ = ["Progress", "Recovered", "recover"]

STEP = 64 << 20  # Bytes of log between two calls of `progress`.
NO_RECORD = (1, 3)  # Why a walk stopped: bytes that are no record, no file.
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
    made_anew: list[str] = field(default_factory=list)  # queues whose files could not be what was written
    losses: list[Loss] = field(default_factory=list)
    units_limit: int = 0  # log offset; units that point there or behind are of messages that never were


class Recovery:
    def __init__(
        self,
        root: Path,
        log: Any,
        control: Control,
        file_sizes: FileSizes,
        known: Hint,
        progress: Progress | None,
        *,
        writable: bool,
    ) -> None:
        self.root = root
        self.known = known
        self.writable = writable
        self.log = log
        self.control = control
        self.file_sizes = file_sizes
        self.progress = progress
        self.found = Recovered()
        self.unreadable: Sequence[int] = ()
        self.is_shorter = False  # The log ends before a message that was known, and that is told already.

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
            resumed = self.resync(walk.end, end) if walk.stopped in NO_RECORD else -1
            if resumed < 0:
                break
            stored = lib.mq_log_first_time(self.log, resumed)
            if flushed_time is not None and stored >= flushed_time and resumed >= self.known.log_end:
                break
            if resumed >= self.known.log_end and self.is_left_over(resumed, end):
                break
            self.lose(walk.end, resumed, "no whole record")
            at = resumed
        if flushed_time is not None and walk.bulk_at >= 0 and self.found.log_end >= self.known.log_end:
            self.found.log_end = walk.bulk_at  # The rest of this bulk is lost: none of it counts.
            self.is_shorter = True

    def is_left_over(self, resumed: int, end: int) -> bool:
        """Whether all records from here on are older than those before: time does not fall in a log for good,
        so a dead process wrote them behind its end."""
        at = resumed
        while at >= 0:
            walk = self.walk("verifying", at, end, 0)
            if walk.last_store_time >= self.found.last_store_time:
                return False
            at = self.resync(walk.end, end) if walk.stopped in NO_RECORD else -1
        return True

    def lose(self, begin: int, end: int, why: str) -> None:
        size = self.file_sizes.commitlog_file_size
        if begin // size * size in self.unreadable:
            why = (
                "a file of another length than the others, which cannot be read before somebody opens the"
                " store to write, and it is made right"
            )
        if not any(loss.begin <= begin < loss.end for loss in self.found.losses):
            self.found.losses.append(Loss(begin, end, why))
            if begin not in self.found.damaged:
                self.found.damaged = sorted([*self.found.damaged, begin])

    def lose_file(self, start: int, end: int, why: str) -> None:
        """A whole file of the log is lost: of a part that was found to be lost before, what is not in it
        stays."""
        before = [loss for loss in self.found.losses if loss.begin < start < loss.end <= end]
        self.found.losses = [loss for loss in self.found.losses if not (start < loss.end <= end)]
        for loss in before:
            self.lose(loss.begin, start, loss.why)
        self.lose(start, end, why)

    def look_at_files(self, changed: list[int]) -> None:
        """Files of the log that are not there, or not what was written, wherever they are. A filler takes
        the place of one in which no record is whole."""
        size, log_min, log_end = self.file_sizes.commitlog_file_size, self.found.log_min, self.found.log_end
        gone = set(missing(self.root, size, log_min, log_end))
        for start in range(log_min // size * size, log_end, size):
            path = self.root / "commitlog" / f"{start:020}"
            if start in gone:
                self.lose_file(start, start + size, f"commitlog/{path.name} is missing")
                if self.writable:
                    fill(self.root, start, size)
            elif start in changed or head_at(self.root, start, size)[0] == 0:
                self.look_into(path, start, min(start + size, log_end))

    def look_into(self, path: Path, start: int, end: int) -> None:
        """Which parts of a file of the log have no whole record."""
        at, records, size = start, 0, self.file_sizes.commitlog_file_size
        while at < end:
            walk = self.walk("verifying", at, end, 0)
            records += walk.records
            if walk.stopped not in NO_RECORD:
                break
            resumed = self.resync(walk.end, end)
            at = resumed if resumed >= 0 else end
            if records or resumed >= 0:
                self.lose(walk.end, at, f"no whole record in this part of commitlog/{path.name}")
        if records:
            return
        why = f"no whole record in commitlog/{path.name}"
        if self.writable:
            if set_aside(self.root, start) is not None:
                why += f", which is mq/damaged/{path.name} now"
            lib.mq_files_forget(lib.mq_log_files(self.log), start)
            fill(self.root, start, size)
        self.lose_file(start, end, why)

    def seal_tail(self, certain_end: int) -> None:
        """The log was longer, and its end is lost: it goes on behind that."""
        size, end = self.file_sizes.commitlog_file_size, self.found.log_end
        sealed = -(-certain_end // size) * size
        if certain_end <= end or (sealed - end) // size > FILES_MISSING_MAX:
            return
        self.lose(end, certain_end, "the end of the log is missing, or no whole record")
        self.is_shorter = True
        self.found.units_limit = sealed
        if self.writable:
            write_blank(self.root, end, size)
            for start in range(-(-end // size) * size, sealed, size):
                fill(self.root, start, size)
            self.found.log_end = sealed

    def recover_log(self, checkpoint: Checkpoint, indexed_end: int, *, closed_cleanly: bool) -> int:
        """First pass, and what it finds mended; the log offset where the second one may begin. A closed log
        has no records that nobody vouches for."""
        size, found, control = self.file_sizes.commitlog_file_size, self.found, self.control
        files, changed = log_files(self.root, size, self.known.log_end, writable=self.writable)
        self.unreadable = () if self.writable else changed
        if not files:
            had_messages = self.known.log_end > max(self.known.log_min, 0)
            if had_messages or (self.known.log_min > 0 and not self.known.ours):
                where = (
                    f"ended at {self.known.log_end:,}" if had_messages else f"began at {self.known.log_min:,}"
                )
                raise StoreCorrupted(
                    f"{self.root}/commitlog has no file at all, though the log {where}: put its files back,"
                    f" or delete {self.root}/mq/control and mq/log_begin to go on without any message",
                    path=f"{self.root}/commitlog",
                )
            return 0
        found.log_min = int(files[0].name)
        if self.known.log_min >= 0 and missing(self.root, size, self.known.log_min, found.log_min):
            found.log_min = self.known.log_min
        found.losses = kept_losses(self.root, self.log, found.log_min)
        # Files made ahead have nothing in them, and the last one that has something ends with a hole.
        # One that cannot be opened now is not one with nothing in it.
        ends = [
            check(lib.mq_files_data_end(lib.mq_log_files(self.log), int(file.name)), str(file))
            for file in files
        ]
        # One with nothing in it between others is a hole: what is behind it came to disk before its time.
        count = next((n for n in range(len(files), 0, -1) if ends[n - 1] > int(files[n - 1].name)), 1)
        written, end = files[:count], ends[count - 1]
        control.set(lib.MQ_LOG_MIN, found.log_min)
        # Nothing beyond is touched by a walk, and nothing below is hidden from it.
        control.set(lib.MQ_LOG_END, end)
        control.set(lib.MQ_ALLOCATED_END, end)
        start = self.start(written, None if closed_cleanly else checkpoint.start_time)
        self.find_end(start, end, None if closed_cleanly else checkpoint.physic_time)
        found.units_limit = found.log_end
        if self.writable:
            self.clear_tail(files)
        self.look_at_files(changed)
        self.seal_tail(self.known.log_end or (indexed_end if closed_cleanly else 0))
        now_ms = time.time_ns() // 1_000_000
        if found.last_store_time < checkpoint.physic_time <= now_ms and not self.is_shorter:
            found.losses.append(
                Loss(
                    found.log_end,
                    found.log_end,
                    f"the newest message is of {found.last_store_time} ms, and the checkpoint knows of later"
                    f" ones on disk, up to {checkpoint.physic_time} ms",
                )
            )
        found.losses = merged(found.losses)
        return start

    def recover_queues(self, start: int, listed_queues: set[tuple[str, int]]) -> None:
        """Second pass, from `start` or from where queues lack units on."""
        size, found = self.file_sizes.commitlog_file_size, self.found
        had_directory = (self.root / "consumequeue").is_dir()
        loaded = load_queues(
            self.root, self.log, self.control, self.file_sizes, self.known, found.units_limit,
            self.vouch_for_nothing, writable=self.writable,
        )  # fmt: skip
        from_first = bool(loaded.lost) or not had_directory
        if not from_first:
            from_first = not self.known.queues and not listed_queues <= loaded.starts.keys()
            # As long as retention took nothing, every queue begins with its first message.
            from_first = from_first or (found.log_min == 0 and any(at > 0 for at in loaded.starts.values()))
        found.made_anew = [*loaded.lost, *loaded.cut]
        self.reached = loaded.reached
        if from_first:
            self.vouch_for_nothing()
        # Queues of an older copy end before the log does: what is behind is looked for from there on. Where
        # there is no unit at all, nobody tells which queues there were.
        units_end = self.units_end()
        from_first = from_first or (units_end < 0 and found.log_end > found.log_min)
        if loaded.from_log_offset is not None:
            units_end = min(units_end, loaded.from_log_offset)
        if units_end < start:
            start = max(units_end // size * size, found.log_min)
        if found.log_end and (from_first or not self.dispatch(start, from_first=False)):
            self.vouch_for_nothing()
            found.rebuilt = True
            self.dispatch(found.log_min, from_first=True)

    def vouch_for_nothing(self) -> None:
        """Before queues are made anew: should the power fail meanwhile, the old checkpoint would speak of
        units that are gone, and the next recovery would not look for them."""
        if self.writable:
            write_checkpoint(self.root, Checkpoint(), sync=True)
            sync_names(self.root)

    def units_end(self) -> int:
        """Log offset of the newest record that a queue has a unit of; -1 if there is no unit."""
        numbers = [number for number, _, _ in self.control.queues()]
        return max((last_unit(self.log, self.control, number) for number in numbers), default=-1)

    def dispatch(self, start: int, *, from_first: bool) -> bool:
        """Second pass. Whether it came to the end; False at a queue that lacks earlier units."""
        at, hole = start, -1
        holes = [loss.begin for loss in self.found.losses if start <= loss.begin < self.found.log_end]
        for until in [*sorted(holes), self.found.log_end]:
            while 0 <= at < until:
                walk = self.walk("indexing", at, until, 2 if from_first or hole >= 0 else 1, hole)
                if walk.stopped == 2:
                    return False
                at = walk.end
                if walk.stopped not in NO_RECORD:
                    break
                # What is lost here the first pass did not see if it began behind.
                hole, at = at, self.resync(at, self.found.log_end)
                self.lose(hole, self.found.log_end if at < 0 else at, "no whole record")
            if at < 0:
                break
            hole = until
        ranges = ranges_in(self.found.losses)
        for number, _, _ in self.control.queues():
            check(
                lib.mq_queue_settle(self.log, number, start, ranges, len(self.found.losses)), str(self.root)
            )
        return True

    def raise_queues(self) -> None:
        """Have no queue end before what it gave out already, where records of it may be among the lost ones,
        or are all deleted."""
        lost = sum(loss.end - loss.begin for loss in self.found.losses)
        for (topic, queue_id), (low, high) in self.known.queues.items():
            most = self.found.log_min // int(lib.MQ_RECORD_SIZE_MIN)  # messages before the log's first record
            end = high if lost else max(high, min(self.reached.get((topic, queue_id), 0), most))
            if 0 < end <= most and (low == high or not lost):
                name = topic.encode()
                number = check(lib.mq_log_queue(self.log, name, len(name), queue_id, 2), str(self.root))
                if self.control.next_offset(number) == 0:
                    lib.mq_control_queue_set(self.control.handle, number, end, end)
        if not lost or not self.known.log_end:
            return
        hole, most = self.found.losses[-1].begin, lost // int(lib.MQ_RECORD_SIZE_MIN)
        for (topic, queue_id), (low, high) in self.known.queues.items():
            name = topic.encode()
            number = check(lib.mq_log_queue(self.log, name, len(name), queue_id, 2), str(self.root))
            end = self.control.next_offset(number)
            if end == 0 and low > 0:
                lib.mq_control_queue_set(self.control.handle, number, low, low)
                end = low
            if end < high <= end + most:
                # Units never point back: the last one's place is of another message, too.
                check(
                    lib.mq_queue_fill(
                        self.log, number, high, max(hole, last_unit(self.log, self.control, number))
                    ),
                    str(self.root),
                )

    def clear_tail(self, files: list[Path]) -> None:
        log_files = lib.mq_log_files(self.log)
        end = self.found.log_end
        for file in files:
            if end <= int(file.name) < self.known.log_end:
                set_aside(self.root, int(file.name))
        # The last one first: whenever the process dies, the log lacks no file between two others.
        for file in reversed(files):
            if int(file.name) >= end and int(file.name) > self.found.log_min:
                check(lib.mq_files_remove(log_files, int(file.name)), str(file))
            elif int(file.name) + self.file_sizes.commitlog_file_size > end:
                check(lib.mq_files_clear(log_files, max(end, int(file.name))), str(file))
                # On disk before anything is appended: what is cut must not come back with the next crash.
                sync_file(file)
        sync_names(self.root / "commitlog")


def recover(
    root: Path,
    log: Any,
    control: Control,
    file_sizes: FileSizes,
    *,
    checkpoint: Checkpoint,
    closed_cleanly: bool,
    known: Hint,
    indexed_end: int,
    listed_queues: set[tuple[str, int]],
    topics_begin: dict[str, tuple[int, int]],
    writable: bool = True,
    progress: Progress | None = None,
) -> Recovered:
    """Set every word of a fresh control file from what the directory holds, and mend the directory.

    known: what an older control file tells, of queues whose files are gone and of where the log ended.
    indexed_end: the end of the log that the index knows of. listed_queues: those that topics.json has; where
    no control file tells which of them had messages, one without files is looked for in the whole log.
    topics_begin: topic to its number of queues, and the log offset before which records of that name are of a
    topic that was deleted. Raises StoreCorrupted where the files contradict each other in a way that no crash
    leaves. Without writable the log is left alone; queues are mended all the same, so they are copies then.
    """
    work = Recovery(root, log, control, file_sizes, known, progress, writable=writable)
    found = work.found
    start = work.recover_log(checkpoint, indexed_end, closed_cleanly=closed_cleanly)
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
    work.recover_queues(start, listed_queues)
    work.raise_queues()
    for number, _, _ in control.queues():
        check(lib.mq_queue_trim_recovered(log, number, found.log_min), str(root))
    for loss in found.losses:
        loss.messages = list(lost_messages(log, control, loss))
    if writable:
        keep_losses(root, found.losses)
    return found
