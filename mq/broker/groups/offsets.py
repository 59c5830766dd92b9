"""How far every group has consumed every queue, for good.

On disk: config/consumerOffset.json, as RocketMQ has it, and consumerOffset.json.bak, the state before:

    {"dataVersion": {...},
     "groupTopicMap": {"billing": ["orders"]},           derived, ignored when read
     "offsetTable": {"orders@billing": {"0": 5, "1": 7}}}  topic@group to queue id to next offset

An entry without offsets, {"orders@billing": {}}, says that the group awaits the topic: it wanted the topic
before there was one of that name, or consumed one that was deleted since. RocketMQ reads and keeps such an
entry as well. They stand last, the newest at the end, of which each group has 1,000 at the most.

Strict JSON with quoted keys, which RocketMQ reads; what a broker wrote is read with its unquoted keys too.
While the machine runs, the group files (mq/store/shared/group_file.py) know better: they are written here
every 5 s and by the last one to close, so a power cut costs 5 s of commits at the most, and the death of
processes none.

Where a recovery found less of a queue than a group has consumed, the offset comes down to what is there:
what is sent later must not be taken for consumed. How far transactions have ended, and dead letters are sent
back, is forgotten then: these offsets tell of records that may be lost, and only save a search.

RocketMQ: broker/offset/ConsumerOffsetManager.java.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from mq.broker.topics.config import UNQUOTED_KEY
from mq.fastpath import Guard
from mq.names import REDRIVE_GROUP, RETRY_PREFIX, TRANSACTION_GROUP
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names
from mq.store.shared import group_slots
from mq.store.shared.control import Control
from mq.store.shared.group_file import slots_in
from mq.store.shared.group_slots import offsets_in
from mq.store.shared.lock_guards import file_lock
from mq.store.shared.queue_table import Numbers

__all__ = ["Offsets", "Table", "awaited", "check_offset", "clamp_offsets"]

OFFSET_MAX = 1 << 56
QUEUE_ID_MAX = 65_535
NAMED_MAX = 50  # offsets, in a warning
AWAITED_MAX = 1000  # topics of a group: the newest, where topics are made and deleted for ever
OF_RECORDS = (TRANSACTION_GROUP, REDRIVE_GROUP)  # Groups whose work shows in the log.

# Group to topic to queue id to offset. Of a topic that the group awaits there are none.
Table = dict[str, dict[str, dict[int, int]]]

log = logging.getLogger("mq.groups")


class Offsets:
    """config/consumerOffset.json of one store, and what the group files say."""

    def __init__(self, root: Path) -> None:
        self.path = root / "config" / "consumerOffset.json"
        self._root = root
        self._read: tuple[Any, Table, dict[str, Any]] = (None, {}, {})
        self._reported: set[str] = set()
        self._parsed_slots: dict[str, tuple[int | None, dict[int, int]]] = {}

    def load(self) -> Table:
        """What the file says; of a damaged one, what its .bak says, which is reported."""
        seen = _signature(self.path), _signature(self._backup)
        if self._read[0] != seen:
            table, others, problems = self._parsed()
            for problem in problems:
                if problem not in self._reported:
                    self._reported.add(problem)
                    log.warning("%s", problem)
            self._read = seen, table, others
        return self._read[1]

    def problems(self) -> list[str]:
        """What is wrong with the file, in words."""
        return [*self._parsed()[2], *self.older_copies()]

    def older_copies(self) -> Iterator[str]:
        """Whether the file is older than its .bak, in words. One that a RocketMQ broker wrote may be as old:
        it counts by other rules, and its keys are not quoted."""
        try:
            texts = self.path.read_bytes(), self._backup.read_bytes()
            is_same = self.path.samefile(self._backup)  # The writer died before it replaced the file.
            counters = [json.loads(text)["dataVersion"]["counter"] for text in texts]
            is_older = counters[0] <= counters[1] and not is_same
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return
        if is_older:
            yield (
                f"{self.path} is an older copy: its version is {counters[0]}, and that of its .bak"
                f" {counters[1]}. Groups that go by it consume again what they had consumed since"
            )

    @property
    def _backup(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")

    def _parsed(self) -> tuple[Table, dict[str, Any], list[str]]:
        problems = []
        for path, otherwise in (
            (self.path, "its .bak is read instead"),
            (self._backup, "groups go on from what is known of them in memory, or begin anew"),
        ):
            try:
                text = path.read_bytes().decode()
                if not text.strip():
                    continue
                table, others, skipped = _parse(text)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{path}: {error}; {otherwise}")
                continue
            problems += [f"{path}: {entry} is no offset of a queue, and is left out" for entry in skipped]
            return table, others, problems
        return {}, {}, problems

    def save(
        self, numbers: Numbers, exists: Callable[[str], bool], before: Callable[[], object] = lambda: None
    ) -> bool:
        """Have on disk what all groups have committed; whether there was anything new. before() is called
        when it is known what that is: it has on disk what an offset must not be ahead of."""
        with self.changing():
            table = self.current(numbers, exists)
            if table == self.load():
                return False
            before()
            self.write(table)
            return True

    def current(self, numbers: Numbers, exists: Callable[[str], bool]) -> Table:
        """What all groups have committed by now, of the topics that there are, and what they await."""
        groups = {*self.load(), *self.group_files()}
        table = {group: self.of_group(group, numbers, exists) for group in groups}
        return {group: topics for group, topics in table.items() if topics}

    def of_group(
        self, group: str, numbers: Numbers, exists: Callable[[str], bool]
    ) -> dict[str, dict[int, int]]:
        """The same of one group."""
        known = self.load().get(group, {})
        found = self.current_of(group, numbers, exists)
        saved = _of(group, known, exists)
        # Without a group file to believe, consumerOffset.json has the offsets.
        return saved if found is None else {**awaited(saved), **found}

    def current_of(
        self, group: str, numbers: Numbers, exists: Callable[[str], bool]
    ) -> dict[str, dict[int, int]] | None:
        """What a group has committed, as its file has it; None if there is no file that may be believed."""
        slots = slots_in(self._root / "mq" / "groups" / group, numbers.epoch)
        if slots is None:
            return None
        digest = xxhash.xxh3_64_intdigest(slots)
        seen, found = self._parsed_slots.get(group, (None, {}))
        if seen != digest:
            found = offsets_in(slots)
            self._parsed_slots[group] = digest, found
        queues, topics = numbers.named(), dict[str, dict[int, int]]()
        for number, offset in found.items():
            if number in queues:
                topic, queue_id = queues[number]
                topics.setdefault(topic, {})[queue_id] = offset
        return _of(group, topics, exists)

    def group_files(self) -> list[str]:
        """The groups that have a file in shared memory."""
        try:
            paths = list((self._root / "mq" / "groups").iterdir())
        except FileNotFoundError:
            return []
        return sorted(path.name for path in paths)

    def remove_empty(self, numbers: Numbers) -> None:
        """Remove the files of groups that have no offsets, such as those that were deleted. While nobody else
        has the store open: others may have them mapped."""
        for group in self.group_files():
            if self.current_of(group, numbers, lambda _topic: True) == {}:
                with suppress(IsADirectoryError):  # None of ours.
                    (self._root / "mq" / "groups" / group).unlink(missing_ok=True)

    def has(self, group: str, numbers: Numbers, exists: Callable[[str], bool]) -> bool:
        """Whether anything is committed for a group."""
        found = self.current_of(group, numbers, exists)
        return any((_of(group, self.load().get(group, {}), exists) if found is None else found).values())

    def awaits(self, group: str, topic: str) -> bool:
        """Whether a group wanted a topic before there was the one of that name."""
        return self.load().get(group, {}).get(topic) == {}

    def await_topic(self, group: str, topic: str) -> None:
        """Have on disk that a group wants a topic that is not there yet."""
        if topic in self.load().get(group, {}):
            return
        with self.changing():
            known = self.load()
            self.write({**known, group: {**known.get(group, {}), topic: {}}})

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: so are all offsets of it. Who had some awaits the next one of that name."""
        with self.changing():
            known = self.load()
            table = {group: _of(group, topics, topic.__ne__) for group, topics in known.items()}
            if table != known:
                self.write(table)

    def forget_group(self, group: str) -> None:
        """A group was deleted, and what it awaits with it."""
        with self.changing():
            known = self.load()
            if group in known:
                self.write({name: topics for name, topics in known.items() if name != group})

    def clamp(self, ends: Mapping[tuple[str, int], int]) -> None:
        """After a recovery: nobody has consumed what is not there."""
        if not self.path.exists() and not self._backup.exists():
            return
        with self.changing():
            known = self.load()
            table = {
                group: {
                    topic: {
                        queue_id: min(offset, ends.get((topic, queue_id), 0))
                        for queue_id, offset in ids.items()
                    }
                    for topic, ids in topics.items()
                }
                for group, topics in known.items()
            }
            if table != known:
                log.warning(
                    "%s: messages that were consumed are lost; offsets beyond the end of a queue are its end:"
                    " %s",
                    self._root,
                    ", ".join(_lowered(known, table)),
                )
                # In what is there, less was done than these say: the log tells what was.
                for group in OF_RECORDS:
                    table.pop(group, None)
                self.write(table)
                self._backup.unlink(missing_ok=True)  # Its offsets are beyond the ends.

    def write(self, table: Table) -> None:
        """Write the file, within `changing`."""
        others = self._read[2]
        version = others.get("dataVersion")
        version = version if isinstance(version, dict) else {}
        table = {group: _in_order(topics) for group, topics in sorted(table.items())}
        text = json.dumps(
            {
                **others,
                "dataVersion": {
                    "counter": _number(version.get("counter")) + 1,
                    "stateVersion": _number(version.get("stateVersion")),
                    "timestamp": time.time_ns() // 1_000_000,
                },
                "groupTopicMap": {group: sorted(topics) for group, topics in table.items() if topics},
                "offsetTable": {
                    f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in sorted(ids.items())}
                    for group, topics in table.items()
                    for topic, ids in topics.items()
                },
            },
            indent="\t",
            separators=(",", ":"),
            ensure_ascii=False,
        )
        write_config(self.path, text)

    def changing(self) -> Guard:
        """For a with statement: one process at a time writes the file."""
        if not self.path.parent.is_dir():
            make_directory(self.path.parent)
            sync_names(self._root)
        return file_lock(self._root / "mq" / "offsets", 0, "writing offsets")


def awaited(topics: Mapping[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Of the topics of a group, those that it awaits, to be filled in."""
    return {topic: {} for topic, ids in topics.items() if not ids}


def _in_order(topics: Mapping[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """As they are written: by name, and then those that are awaited, as they came."""
    begun = {topic: ids for topic, ids in sorted(topics.items()) if ids}
    return {**begun, **dict(list(awaited(topics).items())[-AWAITED_MAX:])}


def clamp_offsets(control: Control) -> None:
    """After a recovery, before anybody sends: see Offsets.clamp."""
    ends = {(topic, queue_id): control.next_offset(number) for number, topic, queue_id in control.queues()}
    Offsets(control.path.parents[1]).clamp(ends)


def _lowered(before: Table, after: Table) -> Iterator[str]:
    """Each offset that went down, in words; of many the first ones."""
    found = [
        f"group {group} {topic}/{queue_id} from {offset:,} to {after[group][topic][queue_id]:,}"
        for group, topics in sorted(before.items())
        for topic, ids in sorted(topics.items())
        for queue_id, offset in sorted(ids.items())
        if offset != after[group][topic][queue_id]
    ]
    yield from found[:NAMED_MAX]
    if len(found) > NAMED_MAX:
        yield f"and {len(found) - NAMED_MAX:,} more"


def check_offset(offset: int) -> None:
    """Raises TypeError, ValueError."""
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"an offset is an int, not {type(offset).__name__}")
    if not 0 <= offset < group_slots.OFFSET_MAX:
        raise ValueError(
            f"an offset is {offset}: it must be 0 or more, and less than {group_slots.OFFSET_MAX:,}"
        )


def _of(
    group: str, topics: Mapping[str, dict[int, int]], exists: Callable[[str], bool]
) -> dict[str, dict[int, int]]:
    """Of topics that are gone no offsets: who had some awaits the next one of that name. Not of its own retry
    topic, which a group begins with the first message anyway."""
    kept = {topic: ids for topic, ids in topics.items() if not ids or exists(topic)}
    if group in OF_RECORDS:
        return kept
    gone = (topic for topic in topics if topic not in kept and not topic.startswith(RETRY_PREFIX))
    return {**kept, **{topic: {} for topic in gone}}  # The newest last: see AWAITED_MAX.


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def _parse(text: str) -> tuple[Table, dict[str, Any], list[str]]:
    """The table, the other members of the file, and entries that make no sense."""
    try:
        whole = json.loads(text)
    except ValueError:
        whole = json.loads(UNQUOTED_KEY.sub(r'\1"\2"\3', text))
    if not isinstance(whole, dict):
        raise ValueError("it is no JSON object")
    table: Table = {}
    skipped = []
    entries = whole.get("offsetTable") or {}
    if not isinstance(entries, dict):
        raise ValueError("its offsetTable is no JSON object")
    for key, ids in entries.items():
        topic, at, group = key.partition("@")
        if not isinstance(ids, dict):
            raise ValueError(f"what it has of {key} is no JSON object")
        if at and not ids:
            table.setdefault(group, {})[topic] = {}
        for name, offset in ids.items():
            queue_id = int(name) if str(name).isdecimal() else -1
            sound = isinstance(offset, int) and not isinstance(offset, bool) and offset < OFFSET_MAX
            if not at or not 0 <= queue_id <= QUEUE_ID_MAX or not sound:
                skipped.append(f"{key} {name}: {offset!r}")
            elif offset >= 0:  # RocketMQ has -1 for none.
                table.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
    others = {name: value for name, value in whole.items() if name not in ("offsetTable", "groupTopicMap")}
    return table, others, skipped
