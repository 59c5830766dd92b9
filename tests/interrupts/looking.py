"""What another process finds after a call was cut short: every lock can be had, and sends go through."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

import mq
from mq.broker.local import LocalBroker
from mq.broker.topics.config import Topics
from mq.store.dedup.table import BUCKET_COUNT, LOCK_SIZE
from mq.store.directory.file_locks import FLOCK
from mq.store.native import lib
from mq.store.shared.group_file import CHANGING_BYTE, READY_BYTE
from mq.store.shared.lock_guards import control_lock
from mq.store.transactions.table import MAKING_BYTE, UNLISTED_BYTE
from tests.support.insides import catalog_of, control_of, store_of

PATIENCE = 60.0  # seconds; the duties of the other broker hold locks as well, each for a moment
WHOLE = (
    (0, 0),
)  # begin and length of the range that must be unlocked; length 0 reaches to the end of the file
OWN_FILES = {
    "topics.lock": WHOLE,
    "filters.lock": WHOLE,
    "offsets": WHOLE,
    "redrive": WHOLE,
    "dedup": ((0, 1 << 62),),  # the bytes of those that have it open lie behind
    "gate": ((0, 1),),
    "transactions": ((MAKING_BYTE, 1), (UNLISTED_BYTE, 1)),
}


def look(broker: LocalBroker) -> None:
    """Raises an error that names a lock that is still held."""
    for which in range(lib.MQ_LOCK_COUNT):
        with control_lock(control_of(broker), which, broker.path, PATIENCE):
            pass
    own = broker.path / "mq"
    files = {own / name: ranges for name, ranges in OWN_FILES.items()}
    for path in (own / "groups").glob("*"):
        files[path] = (CHANGING_BYTE, 1), (READY_BYTE, 1)
    for path in (own / "once").glob("*"):
        files[path] = WHOLE
    deadline = time.monotonic() + PATIENCE
    while held := [
        *(f"{path} from byte {at}" for path, ranges in files.items() for at in _held(path, ranges)),
        *(f"the keys of bucket {number}" for number in _held_buckets(own / "dedup")),
    ]:
        assert time.monotonic() < deadline, f"still locked: {held}"
        time.sleep(0.001)
    while half_done := _half_done(broker):
        assert time.monotonic() < deadline, half_done
        time.sleep(0.001)


def _half_done(broker: LocalBroker) -> str:
    """Which topic is said to be there by one and not by another; empty if there is none."""
    known, said = catalog_of(broker).current(), Topics(broker.path).load()
    if known != said:
        wrong = [name for name in {**known, **said} if known.get(name) != said.get(name)]
        return f"changed on disk without being published: {wrong}"
    queues = {topic for topic, _ in store_of(broker).queues()} - set(known)
    return f"queues without a topic: {queues}" if queues else ""


def _held(path: Path, ranges: tuple[tuple[int, int], ...]) -> list[int]:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return [begin for begin, size in ranges if _is_held(fd, begin, size)]
    finally:
        os.close(fd)


def _held_buckets(path: Path) -> list[int]:
    if not path.exists():
        return []
    locks = path.read_bytes()[-LOCK_SIZE * BUCKET_COUNT :]
    return [number for number, (owner,) in enumerate(struct.iter_unpack("=q", locks)) if owner]


def _is_held(fd: int, begin: int, size: int) -> bool:
    request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, size, 0)
    return bool(FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))[0] != fcntl.F_UNLCK)


def send_beside(broker: LocalBroker, number: int) -> None:
    """What another process wants to do meanwhile, all of which needs locks."""
    with mq.Producer(broker, timeout=PATIENCE, dedup_window=600) as producer:
        producer.send(mq.Message("beside", b"%d" % number), dedup_key=f"beside-{number}")
    assert len(broker.query("beside", f"beside-{number}")) == 1


def members(broker: LocalBroker) -> list[str]:
    """The members of the groups, by group and client id."""
    return [f"{name}/{each.client_id}" for name in broker.groups() for each in broker.group(name).members()]
