"""Stores of small files for the tests here: filled, read back whole, and left as a crash leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mq
from mq.broker.local import LocalBroker
from mq.store import retention
from mq.store.directory.checkpoint import Checkpoint, write_checkpoint
from mq.store.recovery.recover import Recovered
from tests.support.appending import append_one
from tests.support.insides import compaction_of, store_of

LOG_FILE_SIZE = 4096
QUEUE_FILE_UNITS = 4
# A dozen messages fill a file of the log, four a file of a queue.
SMALL: dict[str, Any] = {
    "commitlog_file_size": LOG_FILE_SIZE,
    "queue_file_units": QUEUE_FILE_UNITS,
    "index_slot_count": 16,
    "index_unit_count": 64,
}
COPIES_MAX = 20
FOR_EVER_MS = 1 << 42  # a checkpoint that vouches for everything

# Of every queue: the oldest offset, the next one, and what lies between.
Contents = dict[tuple[str, int], tuple[int, int, list[tuple[int, bytes]]]]


def open_small(path: Path, **options: Any) -> LocalBroker:
    return mq.open(path, **SMALL, **options)


def send(
    broker: LocalBroker,
    topic: str,
    queue_id: int,
    body: bytes,
    tags: str | None = None,
    keys: str | Sequence[str] = (),
) -> mq.SendResult:
    """To this very queue."""
    message = mq.Message(topic, body, tags=tags, keys=keys)
    return append_one(broker, topic, queue_id, message, body, 0)


def fill(
    broker: LocalBroker, topic: str, count: int, queue_count: int = 1, prefix: str = "message"
) -> list[int]:
    """Send numbered messages in turn to the queues; the log offset of each."""
    offsets = []
    for number in range(count):
        sent = send(
            broker, topic, number % queue_count, f"{prefix} {number}".encode(), keys=f"{prefix}{number}"
        )
        offsets.append(log_offset_of(sent))
    return offsets


def log_offset_of(sent: mq.SendResult) -> int:
    return int(sent.offset_msg_id[-16:], 16)


def messages_of(queue: mq.Queue) -> list[mq.MessageExt]:
    """All that is kept, read in small steps."""
    found: list[mq.MessageExt] = []
    offset = queue.min_offset
    while True:
        result = queue.read(offset, count_max=7)
        if not result.messages:
            assert result.status is mq.PullStatus.NO_NEW_MESSAGE
            assert offset == queue.max_offset
            return found
        found += result.messages
        assert result.next_offset == offset + len(result.messages)
        offset = result.next_offset


def contents(broker: LocalBroker) -> Contents:
    found: Contents = {}
    for topic in broker.topics():
        for queue in broker.topic(topic).queues:
            messages = [(message.queue_offset, message.body) for message in messages_of(queue)]
            found[topic, queue.queue_id] = queue.min_offset, queue.max_offset, messages
    return found


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def written(root: Path) -> list[Path]:
    """The log's files that hold messages: one that is made ahead comes at any time."""
    return [file for file in log_files(root) if any(file.read_bytes())]


def queue_files(root: Path, topic: str, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def overwrite_log(root: Path, log_offset: int, data: bytes) -> None:
    """Change bytes of the log, in one of its files."""
    file = root / "commitlog" / f"{log_offset // LOG_FILE_SIZE * LOG_FILE_SIZE:020}"
    overwrite(file, log_offset % LOG_FILE_SIZE, data)


def zero_log_from(root: Path, log_offset: int) -> None:
    """What a crash of the machine leaves of a log whose end was not written yet."""
    for file in log_files(root):
        start = int(file.name)
        if start + LOG_FILE_SIZE > log_offset:
            inside = max(0, log_offset - start)
            overwrite(file, inside, bytes(LOG_FILE_SIZE - inside))


def copy_beside_others(root: Path, target: Path, **options: Any) -> None:
    """A copy of a directory that a process has open. Files that duties put in the place of others may go
    between the look at their names and the copying; then it is begun again."""
    for _ in range(COPIES_MAX - 1):
        try:
            shutil.copytree(root, target, **options)
            return
        except shutil.Error:
            shutil.rmtree(target)
    shutil.copytree(root, target, **options)


def expire_at(broker: LocalBroker, now_ms: int, kept_ms: int = 1) -> int:
    """Retention at a time to come; how many files of the log went."""
    due = retention.due(store_of(broker), now_ms, kept_ms)
    if due is None:
        return 0
    with compaction_of(broker).compacted(due.log_min, now_ms):
        retention.delete(store_of(broker), due)
    return len(due.files)


def crash_of(
    broker: LocalBroker, target: Path, *, physic_time: int = 0, logics_time: int | None = None
) -> Path:
    """A copy of the directory as it is now, as after a crash of the machine: with `abort`, and without what
    was shared in memory. The times are those of its checkpoint."""
    copy_beside_others(broker.path, target, ignore=shutil.ignore_patterns("mq"))
    logics_time = physic_time if logics_time is None else logics_time
    write_checkpoint(target, Checkpoint(physic_time, logics_time, 0), sync=False)
    assert (target / "abort").exists()
    return target


def as_rocketmq_left_it(broker: LocalBroker, target: Path) -> Path:
    """Closed cleanly by a broker that knows nothing of mq/."""
    broker.close()
    shutil.copytree(broker.path, target, ignore=shutil.ignore_patterns("mq"))
    assert not (target / "abort").exists()
    return target


def recovered(broker: LocalBroker) -> Recovered:
    """What its recovery found; there was one."""
    found = store_of(broker).recovered
    assert found is not None
    return found


def bodies(broker: LocalBroker, topic: str = "A", queue_id: int = 0) -> list[bytes]:
    return [body for _, body in contents(broker)[topic, queue_id][2]]


def numbered(count: int, prefix: str = "message", start: int = 0) -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(start, count)]
