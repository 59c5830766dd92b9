"""How far a consumer is, where it does not share that with others: the offsets of a broadcasting consumer.

Every consumer of a broadcasting group gets every message, so each keeps offsets of its own, in RocketMQ's
file and place, <directory>/<client id>/<group>/offsets.json, the directory being .rocketmq_offsets in the
user's home:

    {"offsetTable":{{"brokerName":"mq","queueId":0,"topic":"orders"}:17,...}}

with objects for keys, which is no JSON, but what RocketMQ reads and writes. offsets.json.bak has what the
file said before; a broken file is replaced by it, and if both are broken the consumer does not start. A file
that cannot be read is never overwritten. `lock` beside it is held by the consumer that has the client id.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import weakref
from collections.abc import Mapping
from pathlib import Path

from mq.broker.results import MessageQueue
from mq.errors import GroupInvalid, StoreCorrupted

__all__ = ["LocalClaim", "LocalOffsets", "parse", "write_out"]

_ENTRY = re.compile(r"\s*(\{[^{}]*\})\s*:\s*(-?\d+)\s*")
_OPENING = re.compile(r'\s*\{\s*"offsetTable"\s*:\s*\{')
_CLOSING = re.compile(r"\s*\}\s*\}\s*")
_INSTANCES_MAX = 10_000


def write_out(offsets: Mapping[MessageQueue, int]) -> str:
    """The text of an offsets file."""
    entries = (
        json.dumps(
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic},
            separators=(",", ":"),
        )
        + f":{offset}"
        for queue, offset in sorted(offsets.items())
    )
    return '{"offsetTable":{' + ",".join(entries) + "}}"


def parse(text: str) -> dict[MessageQueue, int]:
    """What an offsets file says. Raises ValueError."""
    opening = _OPENING.match(text)
    if not opening:
        raise ValueError("it has no offsetTable")
    offsets: dict[MessageQueue, int] = {}
    at = opening.end()
    while entry := _ENTRY.match(text, at):
        key = json.loads(entry[1])
        queue = MessageQueue(key.get("topic"), key.get("brokerName"), key.get("queueId"))
        if tuple(map(type, queue)) != (str, str, int):
            raise ValueError(f"{entry[1]} names no queue")
        offsets[queue] = int(entry[2])
        at = entry.end()
        if text[at : at + 1] != ",":
            break
        at += 1
    if not _CLOSING.fullmatch(text, at):
        raise ValueError(f"it makes no sense from character {at} on")
    return offsets


class LocalOffsets:
    """The offsets of one broadcasting consumer. Raises StoreCorrupted, GroupInvalid.

    Without a client id it is the first of <host>@DEFAULT, <host>@DEFAULT-2, ... that no live consumer
    has: as many processes as there were the last time find the same ids again.
    """

    def __init__(self, directory: Path, group: str, client_id: str | None) -> None:
        self.is_dirty = False  # whether there is something to save
        self._group = group
        self._lock_fd = -1
        _open.add(self)
        if client_id is not None:
            self._path = _path(directory, client_id, group)
            if not self._lock():
                raise GroupInvalid(
                    f"client_id {client_id!r} is that of another live consumer of the broadcasting group"
                    f" {group}, which has {self._path}: give each consumer its own"
                )
            self.client_id = client_id
        else:
            host = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "localhost"
            for instance in range(1, _INSTANCES_MAX):
                self.client_id = f"{host}@DEFAULT" + (f"-{instance}" if instance > 1 else "")
                self._path = _path(directory, self.client_id, group)
                if self._lock():
                    break
            else:
                raise GroupInvalid(f"{directory}: {_INSTANCES_MAX:,} live consumers of {group}")
        try:
            self._offsets = self._load()
        except BaseException:
            self.close()
            raise

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset
        self.is_dirty = True

    def topics(self) -> set[str]:
        return {queue.topic for queue in list(self._offsets)}

    def save(self) -> None:
        """Have everything on disk that was set before. Raises OSError."""
        if not self.is_dirty:
            return
        self.is_dirty = False
        fresh = self._path.with_name("offsets.json.new")
        try:
            with fresh.open("w") as file:
                file.write(write_out(dict(self._offsets)))
                file.flush()
                os.fsync(file.fileno())
            backup = self._path.with_name("offsets.json.bak")
            if self._path.exists():
                self._path.replace(backup)
            fresh.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError:
            self.is_dirty = True
            raise

    def close(self) -> None:
        """Let another consumer have the client id. Twice is fine."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _lock(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path.with_name("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    def _load(self) -> dict[MessageQueue, int]:
        failures = []
        # Between the two renames of a save there is a backup alone.
        for path in (self._path, self._path.with_name("offsets.json.bak")):
            try:
                return parse(path.read_text())
            except FileNotFoundError:
                continue
            except (ValueError, AttributeError) as error:
                failures.append(f"{path}: {error}")
        if failures:
            raise StoreCorrupted(
                f"the offsets of group {self._group} cannot be read ({'; '.join(failures)}): repair the file,"
                " or remove it to begin where consume_from says",
                path=str(self._path),
            )
        return {}


# A lock lives on in a forked child's copy of the descriptor.
_open: weakref.WeakSet[LocalOffsets] = weakref.WeakSet()


def _close_in_child() -> None:
    for offsets in _open:
        offsets.close()


os.register_at_fork(after_in_child=_close_in_child)


class LocalClaim:
    """A queue of a broadcasting consumer: see mq.broker.membership.Claim. Nobody else commits on it."""

    def __init__(self, offsets: LocalOffsets, queue: MessageQueue) -> None:
        self.queue = queue
        self.reason = ""
        self._offsets = offsets

    def committed(self) -> int | None:
        return self._offsets.get(self.queue)

    def commit(self, offset: int) -> bool:
        known = self._offsets.get(self.queue)
        if known is None or offset > known:
            self._offsets.put(self.queue, offset)
        return True

    def correct(self, offset: int) -> None:
        self._offsets.put(self.queue, offset)

    def note(self, reason: str) -> None:
        self.reason = reason

    def release(self) -> None:
        pass


def _path(directory: Path, client_id: str, group: str) -> Path:
    return directory / client_id / group / "offsets.json"


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
