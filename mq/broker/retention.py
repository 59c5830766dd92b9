"""Retention of a store: how long messages are kept, what goes next, and which groups have not read it.

The duty looks every 10 s. It goes by the settings of the store, whatever process it is; every deletion is
logged (mq.retention) with the offsets that go, as a warning where a group had not read them.

Nothing is deleted by it while retention is held: in a directory that is a copy of another one, or has lost
its settings, until somebody confirms it. A time in which no process had the store open does not count for
what was there before, so that a directory is not emptied seconds after it is opened again. A file in which a
message with a due time waits stays until that has a copy.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from mq.api.retention import DELAYED, Expiring, Range, Unread, Waiting
from mq.broker.delay.pending import due_ms_of
from mq.broker.live_settings import AgreedSettings
from mq.errors import MQError
from mq.message import MessageExt
from mq.store import retention
from mq.store.directory.settings import COPIED, LOST, check_number
from mq.store.retention import Away, Due
from mq.store.store import Store

__all__ = ["LocalRetention"]

log = logging.getLogger("mq.retention")

AWAY_MIN_MS = 60_000  # The leader looks every 10 s; on a machine that is short of time, later.
ALIVE_INTERVAL_MS = 3_600_000  # in mq/settings.json, which all processes read again after a change
# A message with a due time was stored again before it is so old, whatever the retention was when it was sent:
# after two days at the most (see roll_window_ms).
HELD_BACK_MS = 72 * 3_600_000
WARNED_AHEAD = 24.0  # hours
RANGES_SHOWN = 20
COPIES_LOOKED_AT = 20_000  # by the duty: a person who deletes messages waits for as many as there are
TIMES_LOOKED_AT = 10_000  # the same of messages that may wait: its thread saves offsets, too
WHY_HELD = {
    COPIED: "this directory is a copy, or was restored from one",
    LOST: "mq/settings.json, which says how long messages are kept, or mq/settings.lock beside it is lost or"
    " damaged",
}


class LocalRetention:
    """See mq.api.retention.Retention.

    unread(ranges) is what of these messages some group has not read; waiting(ranges, log_min, count_max=...)
    what of them no group can read yet (see ExpiringWaiting).
    first_of_times(ranges, log_min, count_max) is the first of those with a due time: its file is held back;
    or with False, where the search ended after so many.
    kept(log_min, now_ms) is entered when all before that log offset is about to go: what must stay is moved.
    """

    def __init__(
        self,
        store: Store,
        settings: AgreedSettings,
        unread: Callable[[Sequence[Range]], Iterable[Unread]],
        waiting: Callable[..., Iterable[Waiting]],
        kept: Callable[[int, int], AbstractContextManager[object]],
        first_of_times: Callable[[Sequence[Range], int, int | None], tuple[MessageExt, bool] | None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._unread = unread
        self._waiting = waiting
        self._kept = kept
        self._first_of_times = first_of_times
        self._held_back_for: int | None = None  # log offset of a message that the log has told of
        self._looked_ms: int | None = None  # when this broker last was at work as the leader
        if not store.read_only:
            store.at_last_close(self._say_closed)

    @property
    def hours(self) -> float:
        """How long messages are kept, at the least."""
        return float(self._settings.current().option("retention_hours"))

    @property
    def disk_ratio_max(self) -> float:
        """How full the disk may be (0 to 1) before messages go early; 1: they never do."""
        return float(self._settings.current().option("disk_ratio_max"))

    @property
    def held(self) -> str:
        """Why nothing is deleted before confirm() is called; "" where it is not so."""
        held = self._settings.current().held
        return WHY_HELD[held] if held else ""

    @property
    def away(self) -> tuple[int, int] | None:
        """The latest time, from and to (ms), in which no process had the store open. What was there before
        does not age in it, nor in the seven before that one."""
        return self._pending(wall_clock_ms()) or self._settings.current().away

    def change(self, *, hours: float | None = None, disk_ratio_max: float | None = None) -> None:
        """Change how long messages are kept, for all processes, within 10 s and for good.

        Raises ValueError, NotPermitted.
        """
        changes = {"retention_hours": hours, "disk_ratio_max": disk_ratio_max}
        self._settings.change(**{name: value for name, value in changes.items() if value is not None})

    def confirm(self) -> None:
        """Have messages deleted again where retention is held, and all that is too old now. Raises
        NotPermitted."""
        now_ms = wall_clock_ms()
        # Else the next look finds once more that nobody was here.
        self._settings.change(held="", away=None, former_away=(), alive=now_ms)
        self._settings.file.say_alive(now_ms)

    def expiring(self, *, hours: float | None = None, within_hours: float = 0.0) -> Expiring:
        """What would be deleted now, or within so many hours with the disk as full as it is now; held or not.

        hours: by another retention than the store's, and whatever disk_ratio_max is.
        """
        check_number("within_hours", within_hours, 0, 24 * 365 * 100)
        return self._expiring(self._due(hours, within_hours), None)

    def warned(self) -> Expiring:
        """What goes within warned_hours, as far as it is known by now."""
        return self._expiring(self._due(None, self.warned_hours), COPIES_LOOKED_AT)

    @property
    def warned_hours(self) -> float:
        """How long before a message is deleted `mq DIR groups` warns those that have not read it: a day, or a
        third of the retention if that is less."""
        return min(self.hours / 3, WARNED_AHEAD)

    def expire(self, hours: float | None = None) -> int:
        """Delete what is too old now; how many files of the log went.

        With hours, by these alone, held or not: a number that is given is meant. Without, by the store's
        settings.
        """
        if hours is not None:
            check_number("retention_hours", hours, 0, 24 * 365 * 100)
        return self._expire(hours, 0)

    def _expire(self, hours: float | None, term: int, times_max: int | None = None) -> int:
        settings = self._settings.current()
        if hours is None and settings.held:
            log.info("%s: nothing is deleted: %s", self._store.root, WHY_HELD[settings.held])
            return 0
        if (due := self._due(hours, times_max=times_max)) is None:
            return 0
        found = None
        with suppress(MQError, OSError):  # It is deleted whether or not the log can tell of it.
            found = self._expiring(due, None if hours is not None else COPIES_LOOKED_AT)
        with self._kept(due.log_min, wall_clock_ms()):
            retention.delete(self._store, due, term)
        if found is not None:
            ratio = settings.option("disk_ratio_max") if hours is None else 1.0
            why = f"retention of {self.hours if hours is None else hours:g} h"
            _tell(self._store.root, found, why + (f", disk_ratio_max {ratio:g}" if ratio < 1 else ""))
        return len(due.files)

    def work(self) -> None:
        """The duty: delete what is too old, unless that is held."""
        now_ms = wall_clock_ms()
        self._note_away(now_ms)
        if not self._settings.current().held:
            control = self._store.control
            assert control is not None
            self._expire(None, control.duties_term, TIMES_LOOKED_AT)

    def warn_if_held(self) -> None:
        """Say in the log that nothing is deleted."""
        if why := self.held:
            log.warning(
                "%s: %s. Nothing is deleted from it before this is confirmed: mq DIR retention --confirm, or"
                " broker.retention.confirm(). Messages are kept for %g h then",
                self._store.root,
                why,
                self.hours,
            )

    def _note_away(self, now_ms: int) -> None:
        settings = self._settings.current()
        if away := self._pending(now_ms):
            try:
                self._settings.change(**settings.with_away(away), alive=now_ms)
            except (MQError, OSError) as error:
                # A full disk, for one: what goes now makes room, and the next look tries again.
                log.warning("%s: the settings cannot be written: %s", self._store.root, error)
                return
            level = logging.WARNING if away[1] - away[0] > settings.retention_ms else logging.INFO
            log.log(
                level,
                "%s: no process had the store open from %s to %s: this time does not count for the retention"
                " of what was there before (mq DIR retention --confirm has it count)",
                self._store.root,
                *map(_moment, away),
            )
        else:
            self._write_alive(now_ms, min(ALIVE_INTERVAL_MS, self._long_ms() // 2))
        self._looked_ms = now_ms
        self._settings.file.say_alive(now_ms)

    def _long_ms(self) -> int:
        """What is longer than this was a time away."""
        return max(self._settings.current().retention_ms // 10, AWAY_MIN_MS)

    def _pending(self, now_ms: int) -> tuple[int, int] | None:
        """A time away, up to now, that no leader has noted yet."""
        alive_ms = self._settings.file.alive_ms(self._settings.current())
        if alive_ms is not None and self._looked_ms is not None:
            alive_ms = max(alive_ms, self._looked_ms)  # On a full disk the settings may tell of long ago.
        if alive_ms is None or now_ms - alive_ms <= self._long_ms():
            return None
        return alive_ms, now_ms

    def _absences(self, now_ms: int) -> list[Away]:
        pending = self._pending(now_ms)
        return [Away(*each) for each in (*self._settings.current().absences, pending) if each is not None]

    def _write_alive(self, now_ms: int, interval_ms: int) -> None:
        alive_ms = self._settings.current().alive
        if alive_ms is None or abs(now_ms - alive_ms) > interval_ms:
            with suppress(MQError, OSError):  # A full disk: the next look tries again.
                self._settings.change(alive=now_ms)

    def _say_closed(self) -> None:
        """At the last close. By a broker that never led, or not since the machine slept, a time away would be
        forgotten that no leader has noted."""
        now_ms = wall_clock_ms()
        if self._looked_ms is not None and self._pending(now_ms) is None:
            self._write_alive(now_ms, AWAY_MIN_MS)

    def _due(
        self, hours: float | None, within_hours: float = 0.0, *, times_max: int | None = None
    ) -> Due | None:
        """times_max: so many messages that may wait are looked at; from there on, files stay for now."""
        settings = self._settings.current()
        kept_ms = settings.retention_ms if hours is None else int(hours * 3_600_000)
        now_ms = wall_clock_ms()  # One for all that this look compares.
        due_after = partial(
            retention.due,
            self._store,
            now_ms + int(within_hours * 3_600_000),
            # Who names a number means that age, however full the disk is.
            disk_ratio_max=settings.option("disk_ratio_max") if hours is None else 1.0,
            one_by_one=not within_hours,
            absences=self._absences(now_ms) if hours is None else (),
        )
        due = due_after(kept_ms)
        if due is None or hours is not None or within_hours or kept_ms >= HELD_BACK_MS:
            return due
        first = self._first_of_times(retention.ranges(self._store, due.log_min), due.log_min, times_max)
        if first is None:
            return due
        waiting, is_certain = first
        if is_certain:
            self._tell_held_back(waiting)
        found = retention.before(due, waiting.log_offset), due_after(HELD_BACK_MS)
        return max(filter(None, found), key=lambda each: each.log_min, default=None)

    def _tell_held_back(self, waiting: MessageExt) -> None:
        if waiting.log_offset == self._held_back_for:
            return
        self._held_back_for = waiting.log_offset
        log.info(
            "%s: files of the commit log are kept longer than %g h: message %s, due at %s, waits in them and"
            " has no copy yet (mq DIR expire --hours deletes them all the same)",
            self._store.root,
            self.hours,
            waiting.msg_id,
            _moment(due_ms_of(waiting) or 0),
        )

    def _expiring(self, due: Due | None, copies_max: int | None) -> Expiring:
        if due is None:
            return Expiring(0, 0, (), ())
        ranges = retention.ranges(self._store, due.log_min)
        size = len(due.files) * self._store.file_sizes.commitlog_file_size
        unread = tuple(self._unread(ranges))
        waiting = tuple(self._waiting(ranges, due.log_min, count_max=copies_max))
        return Expiring(len(due.files), size, tuple(ranges), unread, waiting)


def _tell(root: Path, gone: Expiring, why: str) -> None:
    """Say in the log what was deleted: a line for each topic, a warning if a group had not read all of it."""
    log.info(
        "%s: %s: deleted %d files of the commit log, %d bytes",
        root,
        why,
        gone.file_count,
        gone.byte_count,
    )
    topics: dict[str, list[Range]] = {}
    for each in gone.ranges:
        topics.setdefault(each.topic, []).append(each)
    for topic, ranges in topics.items():
        shown = [f"queue {each.queue_id} offsets {each.first} to {each.last}" for each in ranges]
        if len(shown) > RANGES_SHOWN:
            shown[RANGES_SHOWN:] = [f"and of {len(shown) - RANGES_SHOWN} more queues"]
        unread = Counter[str]()
        for lost in gone.unread:
            if lost.topic == topic:
                unread[lost.group] += lost.count
        groups = "".join(f"; group {group} had not read {count} of them" for group, count in unread.items())
        log.log(
            logging.WARNING if unread else logging.INFO,
            "%s: deleted from topic %s: %s%s",
            root,
            topic,
            ", ".join(shown),
            groups,
        )
    for waited in gone.waiting:
        why = "before they were due" if waited.kind == DELAYED else "before their transactions ended"
        place = waited.lies_in
        log.warning(
            "%s: deleted %s messages for topic %s %s: %d of them, from %s queue %d offsets %d to %d",
            root,
            waited.kind,
            waited.topic,
            why,
            waited.count,
            place.topic,
            place.queue_id,
            place.first,
            place.last,
        )


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds")
