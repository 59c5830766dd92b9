"""Filters in SQL92 that are evaluated once, when a message is sent, for all its readers.

For brokers that write extensions of queue units (enable_consume_queue_ext=True): the outcome is kept beside
the message as bits (mq/filter/bloom.py), and a consumer that does not want it passes over it without reading
the log.

On disk: config/consumerFilter.json, as RocketMQ has it, with one member of ours for each filter: bits of
messages that begin before the log offset mqBornLogOffset know nothing of it. Without that member, as a
broker leaves it, the filter is born anew. One more, mqFiltersVersion, is the control file's epoch and the
version of the set that the file holds. With any other one the file is an older copy, or another store's, and
all its filters are born anew: later messages have bits of other filters.

A filter is in the file before the version of the set grows, under the append lock; bits are stored only if
that version, seen before they were computed, still is the right one then. So every message from where the
filter was born on has bits that know it, or none, and none means that it may be wanted.

RocketMQ: broker/filter/ConsumerFilterManager.java, CommitLogDispatcherCalcBitMap.java.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Protocol

from mq.api.group import Member
from mq.api.queues import Puller
from mq.api.results import MessageQueue, PullResult
from mq.errors import FilterSyntaxError, MQError
from mq.fastpath import Guard
from mq.filter.bloom import BloomFilter
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names
from mq.store.queue.extensions import Marks
from mq.store.queue.filters_version import filters_changed, filters_version
from mq.store.queue.reader import Reader
from mq.store.shared.lock_guards import file_lock, thread_locks
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store

__all__ = ["ConsumerFilters"]

BORN_MEMBER = "mqBornLogOffset"
VERSION_MEMBER = "mqFiltersVersion"
# Properties that a message gets when it is stored, after the bits are computed.
ADDED_LATER = ("UNIQ_KEY", "__CRC32#")
BLOOM = BloomFilter.of()

log = logging.getLogger("mq.groups")


class Owner(Protocol):
    """A member of a group that owns a queue: see LocalMembership."""

    group: str
    member: Member


class ConsumerFilters:
    """The SQL92 consumers of a store, for one broker. From any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = store.root / "config" / "consumerFilter.json"
        self._locked = thread_locks(self._path, "reading filters")
        self._known: tuple[int, dict[str, dict[str, Any]]] = -1, {}
        self._marks: dict[tuple[str, str, str], tuple[int, Marks | None]] = {}

    def version(self) -> int:
        """Of the set of filters that bits() goes by."""
        if filters_version(self._store) != self._known[0]:
            # One at a time: what was read before takes no place from what was read after.
            with self._locked():
                # The version first: a filter that comes between the two makes it grow again.
                version = filters_version(self._store)
                if version != self._known[0]:
                    self._known = version, self._matchers()
        return self._known[0]

    def bits(self, topic: str, properties: bytes) -> bytes:
        """The bits of the consumers that want a message; none if nobody filters the topic."""
        matchers = self._known[1].get(topic)
        if not matchers:
            return b""
        return BLOOM.bits(
            text for text, matches in matchers.items() if matches is None or matches(properties)
        )

    def _matchers(self) -> dict[str, dict[str, Any]]:
        """By topic: each consumer's text in the filter, and its condition; None: it may want anything."""
        # The parser is loaded when it is first needed.
        from mq.filter.sql import compiled

        found: dict[str, dict[str, Any]] = {}
        for topic, of_topic in self._load().items():
            for group, one in of_topic.items():
                expression = str(one.get("expression"))
                matches: Any = None
                if not any(name in expression for name in ADDED_LATER):
                    try:
                        matches = compiled(expression)
                    except FilterSyntaxError:
                        matches = None  # A broker is not as strict.
                found.setdefault(topic, {})[f"{group}#{topic}"] = matches
        return found

    def puller(self, reader: Reader, queue: MessageQueue, owner: Owner | None) -> Puller:
        """What pulls from a queue: its owner is spared what is not for it."""
        usual = reader.puller(queue)
        if owner is None:
            return usual

        def pull(
            offset: int, count_max: int, byte_max: int, tag_hashes: frozenset[int] | None, wait: float
        ) -> PullResult:
            # Asked each time: what a member subscribes to may change.
            marks = None if tag_hashes is not None else self._marks_of(owner, queue.topic)
            if marks is None:
                return usual(offset, count_max, byte_max, tag_hashes, wait)
            return reader.marked_pull(queue, marks, offset, count_max, byte_max, wait)

        return pull

    def _marks_of(self, owner: Owner, topic: str) -> Marks | None:
        for subscribed, expression, kind in owner.member.subscriptions:
            if subscribed != topic or kind != "SQL92":
                continue
            key = owner.group, topic, expression
            version = filters_version(self._store)
            known = self._marks.get(key)
            if known is None or known[0] != version:
                try:
                    known = version, self.marks(*key)
                except (MQError, OSError) as error:
                    log.warning("%s: no bits for %s: %s", self._path, owner.group, error)
                    known = version, None  # It gets all, as without bits.
                self._marks[key] = known
            return known[1]
        return None

    def marks(self, group: str, topic: str, expression: str) -> Marks:
        """What a pull of this consumer goes by: from here on messages are sent with its bits."""
        with self._changing():
            table = self._load()
            of_topic = table.setdefault(topic, {})
            one = of_topic.get(group, {})
            positions = BLOOM.positions(f"{group}#{topic}")
            known = one.get("expression") == expression and isinstance(one.get(BORN_MEMBER), int)
            if not known or one.get("dead"):
                now = time.time_ns() // 1_000_000
                of_topic[group] = one = {
                    "bloomFilterData": {"bitNum": BLOOM.bit_count, "bitPos": list(positions)},
                    "bornTime": now,
                    "clientVersion": now,
                    "consumerGroup": group,
                    "dead": False,
                    "deadTime": 0,
                    "expression": expression,
                    "expressionType": "SQL92",
                    "topic": topic,
                }
                self._save(table)
                one[BORN_MEMBER] = filters_changed(self._store)
                self._save(table)  # as that of the new version
            return Marks(positions, BLOOM.bit_count // 8, int(one[BORN_MEMBER]))

    def forget(self, group: str) -> None:
        """Compute no more bits for a group."""
        if not self._path.exists():
            return
        with self._changing():
            table = self._load()
            if any(group in of_topic for of_topic in table.values()):
                for of_topic in table.values():
                    of_topic.pop(group, None)
                self._save(table)
                filters_changed(self._store)
                self._save(table)  # as that of the new version

    def _load(self) -> dict[str, dict[str, Any]]:
        """By topic and group. A file that is damaged, or of another set, costs bits and nothing else."""
        try:
            content = json.loads(self._path.read_bytes().decode())
            unknown = set() if content.get(VERSION_MEMBER) == self._stamp() else {BORN_MEMBER}
            found = {
                str(topic): {
                    str(group): {name: value for name, value in one.items() if name not in unknown}
                    for group, one in of_topic["groupFilterData"].items()
                    if one["expressionType"] == "SQL92"
                }
                for topic, of_topic in content["filterDataByTopic"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("%s cannot be read and is made anew: %s", self._path, error)
            return {}
        return {topic: groups for topic, groups in found.items() if groups}

    def _stamp(self) -> list[int]:
        return [Numbers(self._store).epoch, filters_version(self._store)]

    def _save(self, table: dict[str, dict[str, Any]]) -> None:
        topics = {
            topic: {"groupFilterData": dict(sorted(groups.items())), "topic": topic}
            for topic, groups in sorted(table.items())
        }
        content = {"filterDataByTopic": topics, VERSION_MEMBER: self._stamp()}
        text = json.dumps(content, indent="\t", separators=(",", ":"), ensure_ascii=False)
        write_config(self._path, text)

    def _changing(self) -> Guard:
        if not self._path.parent.is_dir():
            make_directory(self._path.parent)
            sync_names(self._store.root)
        return file_lock(self._store.root / "mq" / "filters.lock", 0, "changing filters")
