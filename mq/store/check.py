"""Every invariant of a store, as a list of what breaks it.

    files       the log's files follow each other without a gap, all of one length
    records     from the first to the end, each whole, in its place, store times never falling
    queues      each record has its unit, in order, without gaps, and no unit lacks a record; a unit's
                extension says what the record does
    index       chains and headers keep the rules of index.h
    shared      queue ends and the log's end agree with all that

Works beside running processes too: what is sent while it looks is not looked at.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mq.errors import MQError
from mq.message import MessageExt
from mq.store.directory.root import is_listed, size_of
from mq.store.directory.topic_journal import listed_topics
from mq.store.log.commitlog import is_segment_name, segment_files
from mq.store.native import check, ffi, lib
from mq.store.recovery.losses import Loss, is_refuted, kept_losses, lost_messages
from mq.store.shared.lock_guards import control_lock
from mq.store.store import Store
from mq.uninterrupted import handed_over, uninterrupted

__all__ = ["problems"]

PROBLEMS_LISTED = 100
RANGES_NAMED = 20  # of one queue
PROBLEMS_MAX = 1 << 20  # that are looked at: most may be of deleted topics, and no problem
LOCK_TIMEOUT = 60.0  # seconds: its holder may index much
WORDS = {
    lib.MQ_WRONG_RECORD: "log offset {log}: no whole record; the message there is lost",
    lib.MQ_WRONG_TIME: "log offset {log}: stored earlier than the record before it",
    lib.MQ_WRONG_UNIT: "log offset {log}: its unit {offset} of {queue} is missing or points elsewhere",
    lib.MQ_WRONG_OFFSET: "log offset {log}: queue offset {offset} of {queue} is not the next one{ranges}",
    lib.MQ_WRONG_QUEUE: "log offset {log}: its queue has no units at all",
    lib.MQ_WRONG_EXTENSION: "log offset {log}: unit {offset} of {queue} has a wrong extension, or none",
    lib.MQ_WRONG_COUNT: "{offset} units point to no record; the messages there are lost: {ranges}",
}


def problems(
    root: str | os.PathLike[str], *, progress: Callable[[str, int, int], None] | None = None
) -> Iterator[str]:
    """Yield each broken invariant in words; nothing if the store is sound. Raises nothing but for
    arguments."""
    root = Path(os.fspath(root))
    with _Opened() as opened:
        try:
            store = uninterrupted(lambda: opened.open(root, progress), Store.close)
        except (MQError, OSError) as error:
            yield f"{root} cannot be opened: {error}"
            return
        try:
            losses = store.recovered.losses if store.recovered else _kept(store)
            yield from (f"{store.root}: {loss}" for loss in losses)
            yield from _of_files(store)
            yield from _of_records(store, losses)
            yield from _of_index(store)
        except (MQError, OSError) as error:
            yield f"{root}: {error}"


class _Opened:
    """Closes at the end what was opened, wherever an interrupt comes."""

    def __init__(self) -> None:
        self._store: Store | None = None

    def open(self, root: Path, progress: Callable[[str, int, int], None] | None) -> Store:
        self._store = store = Store(root, create=False, read_only=True, progress=progress)
        return store

    def __enter__(self) -> _Opened:
        return self

    @handed_over
    def __exit__(self, *_exception: object) -> None:
        if self._store is not None:
            self._store.close()


def _of_files(store: Store) -> Iterator[str]:
    assert store.control is not None
    files = segment_files(store.root / "commitlog")
    if files and size_of(files[-1]) == 0:
        files.pop()  # Its maker died, or is at it: the next process that needs it goes on.
    size, ext_size = store.file_sizes.commitlog_file_size, store.file_sizes.consume_queue_ext_file_size
    for before, after in itertools.pairwise(files):
        between = int(before.name) + size
        # Names are read while the oldest go and new ones come: some of both may not have been seen.
        is_there = between < int(after.name) and (before.parent / f"{between:020}").exists()
        if between != int(after.name) and not is_there and between >= store.control.get(lib.MQ_LOG_MIN):
            yield f"{before.parent}: no file between {before.name} and {after.name}"
    for file in files:
        if (found := size_of(file)) not in (None, size):
            yield f"{file}: {found:,} bytes, not {size:,}"
    for directory in ("commitlog", "consumequeue", "consumequeue_ext"):
        walk = os.walk(store.root / directory)
        for path in sorted(Path(parent) / name for parent, _, names in walk for name in names):
            if path.is_file() and not is_segment_name(path.name):
                yield f"{path}: a foreign file; a RocketMQ broker would not start"
            elif directory == "consumequeue_ext" and (found := size_of(path)) not in (None, ext_size):
                yield f"{path}: {found:,} bytes, not {ext_size:,}"


def _of_index(store: Store) -> Iterator[str]:
    """What is wrong while nobody writes to it."""
    if not list(store.index.problems()):
        return
    assert store.control is not None
    with control_lock(store.control, lib.MQ_LOCK_INDEX, store.root, LOCK_TIMEOUT):
        found = list(store.index.problems())
    yield from found


def _topic_at(store: Store, log_offset: int) -> str:
    buffer, size = ffi.new("char[]", store.file_sizes.commitlog_file_size), ffi.new("int64_t *")
    code = lib.mq_log_record(store.live(), log_offset, buffer, len(buffer), size)
    return MessageExt(ffi.buffer(buffer, check(code, str(store.root)))[:], "").topic


def _kept(store: Store) -> list[Loss]:
    """What earlier recoveries found to be lost."""
    control, log = store.control, store.live()
    assert control is not None
    kept = kept_losses(store.root, log, control.get(lib.MQ_LOG_MIN))
    losses = [loss for loss in kept if not is_refuted(log, control, loss)]
    for loss in losses:
        loss.messages = list(lost_messages(log, control, loss))
    return losses


def _ends_of(name: str, losses: list[Loss]) -> set[int]:
    """Where a queue goes on behind messages that are told to be lost."""
    return {
        last for loss in losses for topic, queue_id, _, last in loss.messages if f"{topic}/{queue_id}" == name
    }


def _told_of(name: str, losses: list[Loss]) -> int:
    """How many messages of a queue are told to be lost."""
    return sum(
        last - first
        for loss in losses
        for topic, queue_id, first, last in loss.messages
        if f"{topic}/{queue_id}" == name
    )


def _lost_ranges(store: Store, number: int, *, before: int | None = None) -> Iterator[tuple[int, int]]:
    """The first ones of a queue whose units point to no record, and the offset behind each; before: the one
    alone that ends there."""
    assert store.control is not None
    at, end = store.control.min_offset(number), ffi.new("int64_t *")
    next_offset, count = store.control.next_offset(number), 0
    while at < next_offset and count < RANGES_NAMED:
        first = check(lib.mq_queue_lost(store.live(), number, at, end), str(store.root))
        if first >= next_offset or (before is not None and first >= before):
            return
        at = end[0]
        if before is None or at == before:
            count += 1
            yield first, at


def _in_words(name: str, ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(
        f"{name} queue offset{f's {first:,} to' if end > first + 1 else ''} {end - 1:,}"
        for first, end in ranges
    )


def _of_records(store: Store, losses: list[Loss]) -> Iterator[str]:
    assert store.control is not None
    control = store.control
    begin, end = control.get(lib.MQ_LOG_MIN), control.get(lib.MQ_LOG_END)
    records, room, count = ffi.new("int64_t *"), 0, PROBLEMS_LISTED
    names = {number: f"{topic}/{queue_id}" for number, topic, queue_id in control.queues()}
    while room < min(count, PROBLEMS_MAX):
        room = min(2 * count, PROBLEMS_MAX)
        found = ffi.new("mq_problem[]", room)
        count = check(lib.mq_log_check(store.live(), begin, end, found, room, records), str(store.root))
    listed = listed_topics(store.root)  # Now, and not when the store was opened.
    listed_count = 0
    for place in range(min(count, room)):
        problem = found[place]
        if problem.kind == lib.MQ_WRONG_RECORD and any(
            loss.begin <= problem.log_offset < loss.end for loss in losses
        ):
            continue
        if 0 <= problem.log_offset < control.get(lib.MQ_LOG_MIN):
            continue  # Retention took it while it was looked at.
        if (
            problem.queue >= 0
            and lib.mq_control_queue_state(control.handle, problem.queue) != lib.MQ_QUEUE_LIVE
        ):
            continue  # Its topic was deleted meanwhile.
        if problem.kind == lib.MQ_WRONG_QUEUE and not is_listed(
            listed, _topic_at(store, problem.log_offset), problem.log_offset
        ):
            continue  # Of a deleted topic: the log keeps its records until they are too old.
        name, ranges = names.get(problem.queue, "no queue"), ""
        if problem.kind == lib.MQ_WRONG_OFFSET:
            if problem.queue_offset in _ends_of(name, losses):
                continue
            ranges = _in_words(name, _lost_ranges(store, problem.queue, before=problem.queue_offset))
            ranges = f"; messages are lost: {ranges}" if ranges else ""
        if problem.kind == lib.MQ_WRONG_COUNT:
            if problem.queue_offset == _told_of(name, losses):
                continue
            ranges = _in_words(name, _lost_ranges(store, problem.queue))
        listed_count += 1
        if listed_count > PROBLEMS_LISTED:
            continue
        yield f"{store.root}: " + WORDS[problem.kind].format(
            log=problem.log_offset, offset=problem.queue_offset, queue=name, ranges=ranges
        )
    listed_count += max(0, count - room)
    if listed_count > PROBLEMS_LISTED:
        yield f"{store.root}: and {listed_count - PROBLEMS_LISTED:,} more of these"
    for name, word in (("flushed end", lib.MQ_FLUSHED_END), ("indexed end", lib.MQ_INDEXED_END)):
        if control.get(word) > control.get(lib.MQ_LOG_END):
            yield f"{store.root}/mq/control: the {name} {control.get(word)} lies beyond the log's end {end}"
