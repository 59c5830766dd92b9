"""How far each delay level is delivered: mq/delay for the moment, config/delayOffset.json for good.

On disk: mq/delay, mapped by all processes that deliver or send delayed messages; native byte order:

    offset  size  field
         0     8  stamp
         8     8  epoch        of the control file that it belongs to
        16     8  wake_ms      when the leader looks next; a sender of what is due before notifies
        24     8  level        whose message is being delivered, 0 if none is
        32     8  offset       of that message, in the level's queue
        40     8  queue        number of the queue that it goes to
        48     8  begin        that queue's next offset before
        56     4  event        futex word: raised to wake the leader
        64   8*n  offsets      the next to deliver of each level, from level 1 on
       576     8  doubt        store time of the last message that another life of the store left, ms

Written by the leader; others read wake_ms, and notify. A delivery is stated (level, last), done,
and counted (offsets, then level back to 0). So a leader that follows a dead one looks into that
queue, from `begin` on, for the one message of which nobody knows.

config/delayOffset.json, as RocketMQ has it (level to offset), is what counts after a reboot, or when a
RocketMQ broker was here: the control file is another one then. It never says more than what is on disk of
what was delivered, and may say less. So what was due while that life lasted is looked for before it is
delivered: see `doubt_ms`. A file of another store, or of a newer log, says more. No more of it is believed
than the log can tell of: a delivery is a record, stored when the message was due or later, and store times
never go back. So what was due after the last record was not delivered. Where the file says more than the
mq/delay of this life, the lower offset counts, and what is due by now is looked for.

RocketMQ: broker/schedule/ScheduleMessageService.java, DelayOffsetSerializeWrapper.java.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mq.broker.topics.config import UNQUOTED_KEY
from mq.store.directory.config_file import write_config
from mq.store.directory.delay_levels import LEVEL_COUNT_MAX
from mq.store.directory.layouts import LAYOUTS
from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names
from mq.store.shared.due_event import ALWAYS, AT_EPOCH, AT_STAMP, AT_WAKE, SIZE, DueEvent

__all__ = ["DelayOffsets", "LevelProgress", "Stated"]

STAMP = int.from_bytes(b"mqdelay%d" % LAYOUTS["mq/delay"], "little")
AT_LEVEL, AT_OFFSET, AT_QUEUE, AT_BEGIN, AT_OFFSETS = 3, 4, 5, 6, 8
AT_DOUBT = AT_OFFSETS + LEVEL_COUNT_MAX
OFFSET_MAX = 1 << 56
assert (AT_DOUBT + 1) * 8 <= SIZE

log = logging.getLogger("mq.timer")


class Stated(NamedTuple):
    """A delivery that was begun."""

    level: int
    offset: int
    queue: int
    begin: int


class LevelProgress(DueEvent):
    """mq/delay, mapped: when the leader looks next, and how far it is."""

    def __init__(self, root: Path, epoch: int) -> None:
        super().__init__(root / "mq" / "delay", STAMP, epoch)

    def delivered(self, level: int) -> int:
        """The next of a level to be delivered, where is_ours()."""
        return max(self.words[AT_OFFSETS + level - 1], 0)


class DelayOffsets:
    """The offsets of all levels, for the leader. levels: how many of them are delivered;
    last_store_ms: store time of the last message there is; put: stores values by place, in order, into the
    words of the progress, as long as this process has the duties; undelivered(level): the first message of
    a level of which the log may not have the delivery, and by when it is due at the latest."""

    def __init__(
        self,
        root: Path,
        progress: LevelProgress,
        levels: int,
        last_store_ms: int = 0,
        *,
        put: Callable[[Mapping[int, int]], None] | None = None,
        undelivered: Callable[[int], tuple[int, int]] = lambda _level: (OFFSET_MAX, 0),
    ) -> None:
        self.path = root / "config" / "delayOffset.json"
        self._levels = levels
        self._others: dict[str, Any] = {}
        self._data_version: dict[str, Any] = {}
        self._saved: dict[int, int] = {}
        self._words = words = progress.words
        self._put = put or self._put_here
        saved = self._load()
        if progress.is_ours():
            self._compare(saved or {}, last_store_ms)
            return
        # Where the file is damaged, what was known in another life is better than nothing.
        if saved is None and words[AT_STAMP] == STAMP:
            saved = {level: words[self._at(level)] for level in self._range()}
        begun, doubt_ms = dict.fromkeys(map(self._at, self._range()), 0), last_store_ms
        for level, offset in (saved or {}).items():
            if level in self._range() and offset > 0:
                first, due_ms = undelivered(level)
                begun[self._at(level)] = min(offset, first)
                if first < offset:
                    doubt_ms = max(doubt_ms, due_ms)
        self._put({AT_STAMP: 0})
        self._put({AT_LEVEL: 0, **begun, AT_DOUBT: doubt_ms, AT_WAKE: ALWAYS})
        self._put({AT_EPOCH: progress.epoch, AT_STAMP: STAMP})

    def _compare(self, saved: Mapping[int, int], last_store_ms: int) -> None:
        """In the life that mq/delay is of, the file cannot rightly say more."""
        more = [
            level
            for level, offset in sorted(saved.items())
            if level in self._range() and offset > self[level]
        ]
        if more:
            log.warning(
                "%s says more than mq/delay of delay levels %s: the lower offsets count, and what is due is"
                " looked up before it is delivered",
                self.path,
                ", ".join(map(str, more)),
            )
            self.doubt(max(time.time_ns() // 1_000_000, last_store_ms))

    def _put_here(self, values: Mapping[int, int]) -> None:
        for place, value in values.items():
            self._words[place] = value

    def _range(self) -> range:
        return range(1, LEVEL_COUNT_MAX + 1)

    @staticmethod
    def _at(level: int) -> int:
        assert 1 <= level <= LEVEL_COUNT_MAX
        return AT_OFFSETS + level - 1

    def __getitem__(self, level: int) -> int:
        """The next of this level to be delivered."""
        return max(self._words[self._at(level)], 0)

    def __setitem__(self, level: int, offset: int) -> None:
        self._put({self._at(level): offset})

    @property
    def doubt_ms(self) -> int:
        """What was due by then may have been delivered in another life of the store, which nobody noted."""
        return self._words[AT_DOUBT]

    def doubt(self, time_ms: int) -> None:
        """What was due by then may have been delivered."""
        self._put({AT_DOUBT: max(self._words[AT_DOUBT], time_ms)})

    def wake_at(self, time_ms: int | None) -> None:
        """Say when the next look is, unless it is notified before; None: somebody is looking."""
        self._put({AT_WAKE: ALWAYS if time_ms is None else time_ms})

    def state(self, level: int, offset: int, queue: int, begin: int) -> None:
        """A message is about to be delivered."""
        self._put({AT_OFFSET: offset, AT_QUEUE: queue, AT_BEGIN: begin, AT_LEVEL: level})

    def count(self, level: int, offset: int) -> None:
        """What was stated is done: that level goes on here."""
        self._put({self._at(level): offset, AT_LEVEL: 0})

    def stated(self) -> Stated | None:
        """The delivery of which nobody said that it was done."""
        words = self._words
        level, offset = words[AT_LEVEL], words[AT_OFFSET]
        if level == 0:
            return None
        if not 1 <= level <= self._levels or self[level] != offset:
            self._put({AT_LEVEL: 0})
            return None
        return Stated(level, offset, words[AT_QUEUE], words[AT_BEGIN])

    def unsaved(self) -> dict[int, int]:
        """All offsets, if they differ from the file's; else nothing."""
        now = {level: self[level] for level in self._range() if self[level]}
        return {} if now == self._saved else now

    def saved(self, level: int, end: int) -> int:
        """What the file says of a level; nothing where that is beyond its end."""
        saved = self._saved.get(level, 0)
        return saved if saved <= end else 0

    def save(self, offsets: dict[int, int]) -> None:
        """Write the file. The caller has synced the messages that these offsets count as delivered. Raises
        StoreLocked where another process has the duties by now."""
        if not self.path.parent.is_dir():
            make_directory(self.path.parent)
            sync_names(self.path.parent.parent)
        version = {
            "counter": int(self._data_version.get("counter", 0)) + 1,
            "stateVersion": int(self._data_version.get("stateVersion", 0)),
            "timestamp": time.time_ns() // 1_000_000,
        }
        table = {str(level): offset for level, offset in sorted(offsets.items())}
        content = {**self._others, "dataVersion": version, "offsetTable": table}
        text = json.dumps(content, indent="\t", separators=(",", ":"))
        # One that was stopped since it saw that it has the duties finds out before it replaces the file.
        write_config(self.path, text, check=lambda: self._put({}))
        self._data_version = version
        self._saved = offsets

    def _load(self) -> dict[int, int] | None:
        """What the file says, or the one before it; nothing if there is none, None if they are damaged."""
        problems = []
        for path in (self.path, self.path.with_name("delayOffset.json.bak")):
            try:
                text = path.read_bytes().decode()
                if text.strip():
                    self._saved = self._parse(text)
                    return dict(self._saved)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                problems.append(f"{path}: {error}")
        if problems:
            log.warning(
                "%s: how far delayed messages were delivered is taken from mq/delay; if that is gone too,"
                " those that are still kept are delivered again",
                "; ".join(problems),
            )
            return None
        return {}

    def _parse(self, text: str) -> dict[int, int]:
        try:
            content = json.loads(text)
        except ValueError:
            content = json.loads(UNQUOTED_KEY.sub(r'\1"\2"\3', text))
        table = {int(level): int(offset) for level, offset in content.get("offsetTable", {}).items()}
        self._data_version = dict(content.get("dataVersion") or {})
        self._others = {k: v for k, v in content.items() if k not in ("offsetTable", "dataVersion")}
        return {level: offset for level, offset in table.items() if 0 < offset < OFFSET_MAX}
