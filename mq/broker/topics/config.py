"""The topics of a store, and what may be done with each.

On disk: config/topics.json, as RocketMQ has it (store-wide table of topic name to settings, with a data
version), and topics.json.bak, the state before. Strict JSON with quoted keys, which RocketMQ reads; what a
broker wrote is read with its unquoted keys too. Members that are unknown here are kept as they are.

A file is never seen half written: the new one is complete and on disk before it takes the name. A store of
many topics has the latest changes in mq/topics.journal, for as long as somebody has it open (see
mq/store/directory/topic_journal.py). Processes learn of a change through a version word in shared memory,
which grows after the change is on disk.

RocketMQ: broker/topic/TopicConfigManager.java, common/TopicConfig.java, common/ConfigManager.java.
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mq.api.topic import TopicChange
from mq.errors import StoreCorrupted, StoreFull
from mq.fastpath import Guard
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import make_directory
from mq.store.directory.root import BEGIN_MEMBER, sync_names
from mq.store.directory.topic_journal import FOLDED_MEMBER, Entry, TopicJournal
from mq.store.os_errors import named_errors
from mq.store.shared.lock_guards import file_lock, thread_locks

__all__ = ["PERM_INHERIT", "PERM_READ", "PERM_WRITE", "TopicSettings", "Topics"]

PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1
JOURNAL_FROM = 64  # topics: with fewer, topics.json is written at once
JOURNAL_SPARE = 4096  # lines of a journal, beyond as many as there are topics
READ_MAX = 8
WANTING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Of a topic that is being shrunk: how many queues it is to have to read. A broker ignores it.
SHRINK_MEMBER = "mqReadQueueNums"
# The version of a topics.json, and that mq has written it.
COUNTER, COUNTER_WITHIN = re.compile(rb'"dataVersion"\s*:\s*\{[^{}]*"counter"\s*:\s*(\d{1,18})'), 4096
OWN_MEMBER = f'"{BEGIN_MEMBER}"'.encode()
UNQUOTED_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What RocketMQ's TopicConfig says of one topic.

    shrink_to: the read queues it is to have once the others are consumed, which are read until then.
    """

    name: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = PERM_READ | PERM_WRITE
    ordered: bool = False
    shrink_to: int | None = None
    others: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def final_read_count(self) -> int:
        """The queues to read that are there to stay."""
        return self.read_queue_count if self.shrink_to is None else self.shrink_to

    @property
    def made_at(self) -> int | None:
        """Where the log ended when the topic was made; None where nobody said."""
        begin = self.others.get(BEGIN_MEMBER)
        return begin if type(begin) is int and begin >= 0 else None

    @property
    def begin_log_offset(self) -> int:
        """The same; 0 where nobody said."""
        return self.made_at or 0

    def to_json(self) -> dict[str, Any]:
        table = {
            "attributes": {},
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            **self.others,
            "order": self.ordered,
            "perm": self.perm,
            "readQueueNums": self.read_queue_count,
            "topicName": self.name,
            "writeQueueNums": self.write_queue_count,
        }
        if self.shrink_to is not None:
            table[SHRINK_MEMBER] = self.shrink_to
        return dict(sorted(table.items()))

    @staticmethod
    def from_json(name: str, table: dict[str, Any]) -> TopicSettings:
        """Takes over the table, of which `others` is what is left."""
        table.pop("topicName", None)
        read_queue_count = _count(table.pop("readQueueNums", 16))
        shrink_to = _count(table.pop(SHRINK_MEMBER, 0))
        return TopicSettings(
            name,
            read_queue_count,
            _count(table.pop("writeQueueNums", 16)),
            int(table.pop("perm", 6)) & 15,
            bool(table.pop("order", False)),
            shrink_to if 0 < shrink_to < read_queue_count else None,
            table,
        )


def _count(value: Any) -> int:
    return max(0, min(int(value), 65_536))


class Topics:
    """The topics of one store on disk: config/topics.json, and the journal of what is new."""

    def __init__(self, root: Path) -> None:
        self.path = root / "config" / "topics.json"
        self._root = root
        self._journal = TopicJournal(root)
        self._data_version: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._locked = thread_locks(self.path, "reading topics")  # guards what follows
        self._table: dict[str, TopicSettings] = {}  # as of what was read last; grows in place
        self._seen: tuple[Any, Any] = None, None  # of which file and journal that is
        self._unread = ""  # why topics.json itself was not read, where its .bak was
        self._journal_id, self._journal_end, self._line_count = "", 0, 0

    def load(self) -> dict[str, TopicSettings]:
        """All topics by name, not to be changed; of a journal that grew only what is new is read. Raises
        StoreCorrupted if neither the file nor the one before it can be read, and OSError where that is for
        want of descriptors or memory: an older state would take its place."""
        with self._locked():
            journal = self._journal.signature()
            seen = _signature(self.path), journal and journal[0]
            if self._seen[0] is None or self._seen != seen:
                self._load_all()
            elif journal is not None and self._journal_end:
                _, entries, self._journal_end = self._journal.read(self._journal_end)
                self._apply(entries)
            return self._table

    def _load_all(self) -> None:
        for _ in range(READ_MAX):
            journal = self._journal.signature()
            name, entries, end = self._journal.read()
            seen = _signature(self.path), journal and journal[0]
            table = self._read()
            if seen[0] is not None:
                self.sync()  # Its maker may have died before, or not have come so far.
            if journal == self._journal.signature() and seen[0] == _signature(self.path):
                break
        is_folded = self._others.pop(FOLDED_MEMBER, None) == name or not name
        self._table, self._seen, self._line_count = table, seen, 0
        self._journal_id, self._journal_end = ("", 0) if is_folded else (name, end)
        if not is_folded:
            self._apply(entries)

    def _apply(self, entries: list[Entry]) -> None:
        self._line_count += len(entries)
        for name, settings in entries:
            if settings is None:
                self._table.pop(name, None)
            else:  # In one step: others read the table without the lock.
                self._table[name] = TopicSettings.from_json(name, settings)

    def _read(self) -> dict[str, TopicSettings]:
        problems, self._unread = [], ""
        for path in (self.path, self._backup):
            try:
                text = path.read_bytes().decode()
                if text.strip():
                    return self._parse(text)
                self._unread = self._unread or f"{path} is empty"
            except FileNotFoundError:
                self._unread = self._unread or f"{path} is missing"
            except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                if isinstance(error, OSError) and error.errno in WANTING:
                    raise
                problems.append(f"{path}: {error}")
                self._unread = self._unread or f"{path} is damaged ({error})"
        if problems:
            raise StoreCorrupted(
                f"{'; '.join(problems)}: mend the file, or delete it and its .bak: topics are then found"
                " again by their queues, with as many queues as have had messages",
                path=str(self.path),
            )
        return {}

    def doubts(self) -> list[str]:
        """Why what load() gave may be older than what was written last, in words."""
        if self._unread:
            is_known = self._backup.exists()  # Else there is no state before, which queues would contradict.
            return [f"{self._unread}: {self._backup}, the state before it, counts"] if is_known else []
        try:
            seen = _signature(self.path)
            texts = self.path.read_bytes(), self._backup.read_bytes()
            if self.path.samefile(self._backup):
                return []  # The writer died before it replaced the file.
            if seen != _signature(self.path):
                return []  # It has just been written.
        except OSError:
            return []
        counters = [int(found[1]) for text in texts if (found := COUNTER.search(text, 0, COUNTER_WITHIN))]
        is_older = len(counters) == 2 and counters[0] < counters[1]
        # A broker may write the same state twice.
        if is_older or (texts[0] == texts[1] and OWN_MEMBER in texts[0]):
            return [f"{self.path} is an older copy: {self._backup} is as new, or newer"]
        return []

    @property
    def _backup(self) -> Path:
        return self.path.with_name("topics.json.bak")

    def _parse(self, text: str) -> dict[str, TopicSettings]:
        try:
            table = json.loads(text)
        except ValueError:
            table = json.loads(UNQUOTED_KEY.sub(r'\1"\2"\3', text))
        topics = table.get("topicConfigTable", {})
        self._data_version = dict(table.get("dataVersion") or {})
        self._others = {k: v for k, v in table.items() if k not in ("topicConfigTable", "dataVersion")}
        return {name: TopicSettings.from_json(name, settings) for name, settings in topics.items()}

    def change(self, topics: dict[str, TopicSettings], changed: Mapping[str, TopicSettings | None]) -> None:
        """Put on disk what is changed of these topics; None is deleted. Called under `changing`, with what
        was loaded under it."""
        entries = [(name, None if each is None else each.to_json()) for name, each in changed.items()]
        with self._locked():
            many = len(topics) >= JOURNAL_FROM and self._line_count < len(topics) + JOURNAL_SPARE
            if many and topics is self._table and self._seen[0] is not None:
                if not self._journal_end:
                    self._journal.remove()  # One that topics.json has.
                self._journal_end = self._journal.append(entries, self._journal_end)
                self._apply(entries)
                if not self._journal_id:
                    self._journal_id, journal = self._journal.read()[0], self._journal.signature()
                    self._seen = self._seen[0], journal and journal[0]
                return
            fresh = {**topics, **changed}
            self._save({name: each for name, each in fresh.items() if each is not None})

    def take_back(self, topics: dict[str, TopicSettings], name: str, implied: TopicSettings) -> None:
        """Delete a topic as `change` does, with no more space than what goes with it frees: the disk may be
        full. implied: settings that need not stand in the file."""
        try:
            self.change(topics, {name: None})
            return
        except StoreFull:
            for suffix in (".new", ".bak"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        if all(each == implied for each in topics.values() if each.name != name):
            with self._locked():
                self.path.unlink()
                sync_names(self.path.parent)
                self._table, self._seen = {}, (None, None)
        else:
            self.change(topics, {name: None})

    def rewrite(self, topics: dict[str, TopicSettings]) -> None:
        """Have a file that says just this. Called under `changing`."""
        with self._locked():
            self._save(topics)

    def fold(self) -> None:
        """Have in topics.json what the journal says. Called under `changing`."""
        topics = self.load()
        with self._locked():
            if self._journal_end:
                self._save(topics)

    def has_journal(self) -> bool:
        return self._journal.signature() is not None

    def _save(self, topics: dict[str, TopicSettings]) -> None:
        version = {
            "counter": int(self._data_version.get("counter", 0)) + 1,
            "stateVersion": int(self._data_version.get("stateVersion", 0)),
            "timestamp": time.time_ns() // 1_000_000,
        }
        table = {
            **self._others,
            **({FOLDED_MEMBER: self._journal_id} if self._journal_id else {}),
            "dataVersion": version,
            "topicConfigTable": {name: topics[name].to_json() for name in sorted(topics)},
        }
        write_config(self.path, json.dumps(table, indent="\t", separators=(",", ":"), ensure_ascii=False))
        self._journal.remove()
        self._data_version, self._unread = version, ""
        self._table, self._seen, self._line_count = topics, (_signature(self.path), None), 0
        self._journal_id, self._journal_end = "", 0

    def sync(self) -> None:
        """Have on disk what is there."""
        sync_names(self.path.parent)

    def changing(self) -> Guard:
        """For a with statement: one process at a time changes topics. Raises StoreLocked."""
        if not self.path.parent.is_dir():
            make_directory(self.path.parent)
            sync_names(self._root)
        return file_lock(self._root / "mq" / "topics.lock", 0, "changing topics")


def reshaped(settings: TopicSettings, change: TopicChange) -> TopicSettings:
    """The same topic with what is given changed; None leaves what is there.

    Fewer queues to read are what it shrinks to: those that it has are read until somebody finds them
    consumed, which is RocketMQ's order of shrinking (fewer to write, wait, fewer to read). So they are not
    written either, unless the queues to write are given too."""
    read, write = change.read_queue_count or settings.final_read_count, settings.write_queue_count
    if read < settings.final_read_count:
        write = min(write, read)
    return replace(
        settings,
        read_queue_count=max(read, settings.read_queue_count),
        write_queue_count=change.write_queue_count or write,
        perm=settings.perm if change.perm is None else bits_of(change.perm),
        ordered=settings.ordered if change.ordered is None else change.ordered,
        shrink_to=read if read < settings.read_queue_count else None,
    )


def bits_of(perm: str) -> int:
    """RocketMQ's number of a permission in letters."""
    return (PERM_READ if "r" in perm else 0) | (PERM_WRITE if "w" in perm else 0)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        with named_errors(path):
            status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def grown(settings: TopicSettings, queue_id: int) -> TopicSettings:
    """The same topic with at least the queue of this id, as messages were found in it."""
    count = max(settings.read_queue_count, queue_id + 1)
    return replace(
        settings, read_queue_count=count, write_queue_count=max(settings.write_queue_count, queue_id + 1)
    )
