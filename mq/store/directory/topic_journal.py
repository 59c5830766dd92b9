"""Changes of topics that config/topics.json does not say yet.

On disk: mq/topics.journal, lines of text, oldest first:

    mqtopics 1 <id>                                 which journal it is: 16 hex digits
    <XXH64 of what follows, 16 hex digits> <JSON>   {"name": ..., "settings": {...} or null for a deleted one}

A store of many topics would write all of them anew for each change. A line here costs as much as one topic,
and is on disk before the change counts. From time to time all is written into topics.json, which then bears
the id of the journal that is in it (FOLDED_MEMBER), and the journal goes. So a process that finds both knows
whether the journal says more. A line that is not whole ends the journal: its writer died, and nobody was told
of it. Zeros follow the last line, up to the end of the file: written ahead, so that a line that takes their
place changes neither the file's size nor its blocks, which makes its sync several times as fast.

What is read here may be in the page cache alone, since its writer was killed, or has not synced it yet. It is
on disk before it is believed: a message that is synced must not be in a topic that a power cut takes.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from mq.errors import MQError
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import made_file
from mq.store.directory.root import size_of, sync_names
from mq.store.os_errors import named_errors

__all__ = ["FOLDED_MEMBER", "Entry", "TopicJournal", "fold_journal", "fold_long_journal", "listed_topics"]

FOLDED_MEMBER = "mqJournal"
STAMP = b"mqtopics 1 "
DIGEST_SIZE = 16
JOURNAL_SIZE_MAX = 64 << 20
READ_MAX = 8
FOLD_SHARE = 10  # When a store is opened, a journal is folded from this part of topics.json on.
AHEAD_SIZE = 64 << 10  # of zeros, at the most

# What became of a topic: its name, and its settings as in topics.json; None if it was deleted.
Entry = tuple[str, dict[str, Any] | None]


class TopicJournal:
    """The journal of one store. Changed under the lock of topics alone."""

    def __init__(self, root: Path) -> None:
        self.path = root / "mq" / "topics.journal"
        self._ends_at = -1  # where the last line ends that was written here, with nothing but zeros behind it

    def signature(self) -> tuple[int, int] | None:
        """Inode and size; None if there is none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size

    def read(self, start: int = 0) -> tuple[str, list[Entry], int]:
        """The journal's id ("" from the middle on, or if there is none), what it says from byte `start` on,
        and where that ends. What it says is on disk then."""
        try:
            with named_errors(self.path), self.path.open("rb", buffering=0) as file:
                if not os.pread(file.fileno(), 1, start).strip(b"\0"):
                    return "", [], start
                file.seek(start)
                data = file.read(JOURNAL_SIZE_MAX) or b""
                os.fdatasync(file.fileno())
            if start == 0:
                sync_names(self.path.parent)
        except FileNotFoundError:
            return "", [], 0
        name, at = "", 0
        if start == 0:
            end = data.find(b"\n")
            if not data.startswith(STAMP) or end < 0:
                return "", [], 0
            name, at = data[len(STAMP) : end].decode("ascii", "replace"), end + 1
        entries = []
        while (end := data.find(b"\n", at)) >= 0 and (entry := _parsed(data[at:end])) is not None:
            entries.append(entry)
            at = end + 1
        return name, entries, start + at

    def append(self, entries: list[Entry], end: int) -> int:
        """Add lines at `end`, where the last whole one ends, and have them on disk; where they end. 0 makes
        the journal."""
        data = b"".join(map(_line, entries))
        with named_errors(self.path), made_file(self.path) as fd:
            if end == 0:
                data = STAMP + os.urandom(8).hex().encode() + b"\n" + data
            size = os.fstat(fd).st_size
            if end != self._ends_at and any(os.pread(fd, JOURNAL_SIZE_MAX, end)):
                os.ftruncate(fd, end)  # Of a line whose writer died.
                size = end
            self._ends_at = -1
            at = end
            while data:
                written = os.pwrite(fd, data, at)
                at, data = at + written, data[written:]
            if at > size:
                with suppress(OSError):  # A full disk: then there are none.
                    os.pwrite(fd, bytes(AHEAD_SIZE - at % AHEAD_SIZE), at)
            if end == 0:
                os.fsync(fd)
                sync_names(self.path.parent)
            else:
                os.fdatasync(fd)
        self._ends_at = at
        return at

    def remove(self) -> None:
        """What it says is in topics.json, and on disk."""
        self.path.unlink(missing_ok=True)


def listed_topics(root: Path) -> dict[str, Any] | None:
    """The table in config/topics.json, which mq.broker.topics.config owns, brought up to date by the journal;
    None if it cannot tell."""
    journal = TopicJournal(root)
    for _ in range(READ_MAX):
        before = journal.signature()
        name, entries, _end = journal.read()  # First: what is taken out of it is in the file by then.
        content = _content(root)
        if before == journal.signature():
            break
    table = (content or {}).get("topicConfigTable")
    if name and content is not None and content.get(FOLDED_MEMBER) != name:
        table = _applied(table, entries)
    return table if isinstance(table, dict) and table else None


def fold_long_journal(root: Path) -> None:
    """Write into topics.json what a dead process left in the journal. Called by a process that is alone.
    A journal that is short against topics.json stays: to fold it costs as much as all topics."""
    with suppress(MQError, OSError):  # A full disk: the journal says it as well.
        _name, _entries, end = TopicJournal(root).read()
        if end * FOLD_SHARE >= (size_of(root / "config" / "topics.json") or 0):
            fold_journal(root)


def fold_journal(root: Path) -> None:
    """Write into topics.json whatever the journal says. Called by a process that is alone."""
    journal = TopicJournal(root)
    name, entries, _end = journal.read()
    content = _content(root) if name else None
    if content is None:
        return  # Where topics.json cannot be read, the call that wants topics says so.
    if content.get(FOLDED_MEMBER) != name:
        content["topicConfigTable"] = _applied(content.get("topicConfigTable"), entries)
        content[FOLDED_MEMBER] = name
        text = json.dumps(content, indent="\t", separators=(",", ":"), ensure_ascii=False)
        write_config(root / "config" / "topics.json", text)
    journal.remove()


def _content(root: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((root / "config" / "topics.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _applied(table: Any, entries: list[Entry]) -> dict[str, Any]:
    topics = dict(table) if isinstance(table, dict) else {}
    for name, settings in entries:
        topics.pop(name, None)
        if settings is not None:
            topics[name] = settings
    return topics


def _line(entry: Entry) -> bytes:
    text = json.dumps({"name": entry[0], "settings": entry[1]}, ensure_ascii=True).encode()
    return b"%016x %s\n" % (xxhash.xxh64_intdigest(text), text)


def _parsed(line: bytes) -> Entry | None:
    digest, text = line[:DIGEST_SIZE], line[DIGEST_SIZE + 1 :]
    if digest != b"%016x" % xxhash.xxh64_intdigest(text):
        return None
    try:
        table = json.loads(text)
        name, settings = table["name"], table["settings"]
    except (ValueError, KeyError, TypeError):
        return None
    sound = isinstance(name, str) and (settings is None or isinstance(settings, dict))
    return (name, settings) if sound else None
