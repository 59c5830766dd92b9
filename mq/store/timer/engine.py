"""The engine of timer messages, for the leader: see native/timer/timer.h.

It goes on where mq/timer says, if that is of this life of the store. Otherwise (after a reboot, or when a
RocketMQ broker was here), and where the wheel or the timer log is damaged, cut or missing, the wheel is made
anew from the log, the log from the timer topic: from the last unit that is whole. What is due by then may
have been delivered before: that is asked for, message by message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from mq.errors import StoreCorrupted
from mq.message import MessageExt
from mq.store.index.find_records import is_delivery, record_at, stored
from mq.store.native import check, ffi, lib
from mq.store.queue.unit_repair import made_anew
from mq.store.shared.control import boot_id
from mq.store.store import Store
from mq.store.timer import timer_log
from mq.store.timer import wheel as timerwheel
from mq.store.timer.check import TOPIC
from mq.store.timer.checkpoint import TimerCheck, path_of, read_timer_check, write_timer_check
from mq.store.timer.progress import STAMP, TimerProgress

__all__ = ["LATE_MS", "Event", "Stop", "TimerEngine", "rolls_of"]

ROLL_SLOTS = 172_800  # RocketMQ: timerRollWindowSlot, two days of seconds
ROLL_MAX_MS = (1 << 30) - 1
KEPT_SLOTS = 604_800 - 60  # what is due longer ago than that stands in one slot, the oldest of the wheel
LATE_MS = 10_000  # Nobody delivers, if so long passes; that is looked at every 5 s when nothing is due.

log = logging.getLogger("mq.timer")


class Event(NamedTuple):
    """What the engine leaves to its caller."""

    kind: int
    position: int  # of the unit
    log_offset: int
    queue_offset: int
    is_rolled: bool
    next_ms: int


class Stop:
    """What ends a run: set, then the event is notified."""

    def __init__(self) -> None:
        self.word = ffi.new("int32_t *", 0)

    def set(self, value: bool) -> None:
        self.word[0] = value


class TimerEngine:
    """Wheel and timer log of one store, of which the timer topic's queue has this number.

    One thread runs it; another one may save meanwhile. now_ms and last_store_ms, when the last message of the
    store was stored, are known without being given. Raises StoreFull, StoreCorrupted.
    """

    PLACE, ASK, LOST, TOO_LARGE = (
        lib.MQ_TIMER_PLACE,
        lib.MQ_TIMER_ASK,
        lib.MQ_TIMER_LOST,
        lib.MQ_TIMER_TOO_LARGE,
    )

    def __init__(
        self,
        store: Store,
        progress: TimerProgress,
        number: int,
        precision_ms: int,
        *,
        roll_ms: int | None = None,
        file_size: int = timer_log.FILE_SIZE,
        now_ms: int | None = None,
        last_store_ms: int | None = None,
    ) -> None:
        self._store = store
        self._progress = progress
        self._words: Any = ffi.from_buffer("int64_t[]", progress.mapped, require_writable=True)
        self._precision_ms = precision_ms
        self._file_size = file_size
        self._event = ffi.new("mq_timer_event *")
        self._counter = 0
        self._saved_changes = -1
        self._last_rebuilt: tuple[int, int] | None = None
        self._last_store_ms = last_store_ms
        self._number = number
        self._repaired_at = -1
        self._log = store.live()  # Freed after the engine.
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        with self._entered():
            self._go_on(number, precision_ms, file_size, now_ms, roll_ms)

    def _go_on(
        self, number: int, precision_ms: int, file_size: int, now_ms: int, roll_ms: int | None
    ) -> None:
        root, control = self._store.root, self._store.control
        assert control is not None
        is_ours = self._is_ours()
        mended = self._mend_lengths(is_ours)
        out = ffi.new("mq_timer **")
        wanted = self._bounded_roll(ROLL_MAX_MS if roll_ms is None else roll_ms)
        check(
            lib.mq_timer_open(
                self._log, self._words, bytes(timerwheel.path_of(root)), bytes(timer_log.directory_of(root)),
                file_size, number, precision_ms, wanted, control.duties_term, out,
            ),
            str(timerwheel.path_of(root)),
        )  # fmt: skip
        self._handle = ffi.gc(out[0], lib.mq_timer_close)
        kept = read_timer_check(root)
        self._counter = kept.counter if kept is not None else 0
        if is_ours and not mended:
            result = lib.mq_timer_attach(self._handle)
            if result == 0:
                return
            if result != lib.MQ_CORRUPT:
                check(result, str(root))
        if is_ours:
            self._rebuild(now_ms, mended or "the wheel or its log is not as it was")
        else:
            self._begin(now_ms, kept, mended)

    def _bounded_roll(self, roll_ms: int) -> int:
        wanted = min(ROLL_SLOTS * self._precision_ms, ROLL_MAX_MS, roll_ms)
        return max(wanted, 2 * self._precision_ms)  # Half of it is a slot: it is not stored again at once.

    def set_roll(self, roll_ms: int) -> None:
        """What is put aside from now on, and is due later than that, is stored once more on the way."""
        lib.mq_timer_set_roll(self._handle, self._bounded_roll(roll_ms))

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Have the wheel, its log and mq/timer for this process alone. Raises StoreLocked where another one
        has the duties by now, or was stopped in here. On a thread of the duties: no signal handler runs."""
        control = self._store.control
        assert control is not None
        check(lib.mq_duties_enter(control.handle, control.duties_term), str(self._store.root))
        try:
            yield
        finally:
            lib.mq_duties_exit(control.handle)

    def _is_ours(self) -> bool:
        words = self._words
        return bool(
            self._progress.is_ours()
            and (words[lib.MQ_TIMER_BOOT], words[lib.MQ_TIMER_BOOT + 1]) == _boot_words()
            and words[lib.MQ_TIMER_PRECISION] > 0
        )

    def _mend_lengths(self, is_ours: bool) -> str:
        """Give files of another length the right one, to be mapped; what was wrong, in words."""
        root, wrong = self._store.root, []
        wheel = timerwheel.path_of(root)
        size = timerwheel.SLOT_COUNT * timerwheel.SLOT_SIZE
        if wheel.exists():
            if wheel.stat().st_size != size:
                wrong.append(f"{wheel} has {wheel.stat().st_size:,} bytes, not {size:,}")
                with wheel.open("r+b") as file:
                    file.truncate(0)
        elif is_ours or path_of(root).exists():
            wrong.append(f"{wheel} is missing")
        for path in timer_log.files(root):
            if path.stat().st_size != self._file_size:
                wrong.append(f"{path} has {path.stat().st_size:,} bytes, not {self._file_size:,}")
                with path.open("r+b") as file:
                    file.truncate(self._file_size)
        return "; ".join(wrong)

    def _begin(self, now_ms: int, kept: TimerCheck | None, mended: str) -> None:
        """Go on in another life of the store, by what its files say."""
        words = self._words
        words[lib.MQ_TIMER_STAMP] = 0
        for place in range(lib.MQ_TIMER_ENQUEUED, lib.MQ_TIMER_WORDS):
            if place != lib.MQ_TIMER_EVENT:
                words[place] = 0
        words[lib.MQ_TIMER_EPOCH] = self._progress.epoch
        words[lib.MQ_TIMER_BOOT], words[lib.MQ_TIMER_BOOT + 1] = _boot_words()
        if kept is None:
            mended = "; ".join(filter(None, [mended, f"{path_of(self._store.root)} is damaged"]))
            kept = TimerCheck()
        done_ms = self._done_ms(kept)
        is_short = self._made_anew(now_ms, kept, done_ms)
        if is_short and done_ms:
            # It speaks of other files than these, and so does what it says of the time.
            self._made_anew(now_ms, kept, 0)
        if is_short and not mended:
            mended = "the timer log ends before its time, or is missing"
        if mended:
            self._tell(mended)
        words[lib.MQ_TIMER_STAMP] = STAMP

    def _done_ms(self, kept: TimerCheck) -> int:
        """What was due before is delivered. The check may be of a newer log than this one: a delivery is a
        record, stored when the message was due or somewhat later, and store times never go back."""
        return max(0, min(kept.read_ms, self._last_ms() - LATE_MS))

    def _made_anew(self, now_ms: int, kept: TimerCheck, done_ms: int) -> bool:
        """Make the wheel anew: all that was due before done_ms is delivered. Whether `kept` tells of more
        than there is."""
        oldest = now_ms - KEPT_SLOTS * self._precision_ms
        result = lib.mq_timer_rebuild(
            self._handle, self._doubt_ms(now_ms), done_ms, max(done_ms, oldest), kept.queue_offset,
            kept.log_end, False,
        )  # fmt: skip
        return bool(check(result, str(self._store.root)))

    def _doubt_ms(self, now_ms: int) -> int:
        """What is due by then may have been delivered: the clock may have been set back since."""
        return max(now_ms, self._last_ms())

    def _last_ms(self) -> int:
        last = self._last_store_ms
        return self._store.word(lib.MQ_LAST_STORE_TIME) if last is None else last

    def _rebuild(self, now_ms: int, why: str) -> None:
        """Make the wheel anew in the middle of a life of the store."""
        words = self._words
        progress = int(words[lib.MQ_TIMER_ENQUEUED]), int(words[lib.MQ_TIMER_DELIVERED])
        if progress == self._last_rebuilt:
            path = str(timer_log.directory_of(self._store.root))
            raise StoreCorrupted(f"{path}: {why}, also after it was made anew", path=path)
        self._last_rebuilt = progress
        check(
            lib.mq_timer_rebuild(
                self._handle, self._doubt_ms(now_ms), words[lib.MQ_TIMER_READ], words[lib.MQ_TIMER_READ],
                words[lib.MQ_TIMER_ENQUEUED], words[lib.MQ_TIMER_LOG_END], True,
            ),
            str(self._store.root),
        )  # fmt: skip
        self._tell(why)

    def _tell(self, why: str) -> None:
        log.warning("%s: the timer wheel is made anew, from its log and the timer topic", why)

    def step(self, now_ms: int, budget: int = 512) -> Event | None:
        """Enqueue and deliver what there is at this time; None if there may be more, an Event of kind IDLE if
        there is nothing before next_ms."""
        return self._done(lib.mq_timer_step(self._handle, now_ms, budget, self._event), now_ms)

    def run(self, stop: Stop, idle_ms: int) -> Event | None:
        """The same by the clock, asleep until there is something to do; None if it is to stop, or to be
        called again."""
        result = lib.mq_timer_run(self._handle, stop.word, idle_ms, self._event)
        return self._done(result, time.time_ns() // 1_000_000)

    def _done(self, result: int, now_ms: int) -> Event | None:
        if result == lib.MQ_TIMER_STOPPED:
            return None
        if result == lib.MQ_CORRUPT:
            with self._entered():
                self._rebuild(now_ms, f"{timer_log.directory_of(self._store.root)} or its wheel is damaged")
            return None
        event = self._event
        return Event(
            check(result, str(self._store.root)), event.position, event.log_offset, event.queue_offset,
            bool(event.magic & lib.MQ_TIMER_ROLL), event.next_ms,
        )  # fmt: skip

    def place(self, number: int) -> None:
        """The message of the last event is delivered to this queue, as are others for the same one."""
        check(lib.mq_timer_place(self._handle, self._event, number), str(self._store.root))

    def answer(self, done: bool) -> None:
        """The message of the last event was delivered before, or is left out; or else is to be delivered."""
        check(lib.mq_timer_answer(self._handle, self._event, done), str(self._store.root))

    def enqueue_again(self, event: Event) -> bool:
        """Whether a message that was lost is put into the wheel after all: its unit was damaged, and is made
        anew."""
        offset = event.queue_offset
        if offset == self._repaired_at or not made_anew(self._store, f"{TOPIC}/0", self._number, offset):
            return False
        self._repaired_at = offset
        with self._entered():
            self._words[lib.MQ_TIMER_ENQUEUED] = offset
        return True

    def record(self, log_offset: int) -> MessageExt | None:
        """The message at this place of the log; None if it cannot be read."""
        return record_at(self._store, log_offset, "")

    def was_stored(self, topic: str, own: MessageExt, rolls: int) -> bool:
        """Whether a topic has a copy of this timer message; rolls: one that was rolled more often than so."""
        if "UNIQ_KEY" not in own.properties:
            return False  # Nothing to look for: rather twice than not at all.
        return any(
            is_delivery(found, own) and rolls_of(found) > rolls
            for found in stored(self._store, topic, own.msg_id, own.store_time_ms)
        )

    def save(self, *, last: bool = False, now_ms: int | None = None) -> None:
        """Have on disk what was done; last: nobody runs it any more, and a RocketMQ broker may come next."""
        state = ffi.new("mq_timer_state *")
        root = str(self._store.root)
        lib.mq_timer_look(self._handle, state)
        if state.changes == self._saved_changes and not last:
            return
        self._store.flush_log()
        if last:
            now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
            check(lib.mq_timer_seal(self._handle, now_ms), root)
            lib.mq_timer_look(self._handle, state)
        check(lib.mq_timer_sync(self._handle, state), root)
        self._counter += 1
        control = self._store.control
        assert control is not None
        # It may have been stopped in the flush. The lock of the wheel is not held meanwhile: one that is
        # stopped while it writes the file would keep it.
        check(lib.mq_duties_check(control.handle, control.duties_term), root)
        write_timer_check(
            self._store.root,
            TimerCheck(
                state.read_ms,
                state.log_end,
                state.enqueued,
                state.enqueued,
                0,
                time.time_ns() // 1_000_000,
                self._counter,
            ),
        )
        self._saved_changes = state.changes

    def expire(self) -> int:
        """Remove files of the timer log whose messages are gone; how many."""
        return check(lib.mq_timer_expire(self._handle), str(timer_log.directory_of(self._store.root)))

    def close(self) -> None:
        """Nobody uses it any more."""
        self._handle = None
        self._log = None
        self._words = None


def rolls_of(message: MessageExt) -> int:
    """How often a timer message was stored once more on its way."""
    times = message.properties.get("TIMER_ROLL_TIMES", "0")
    return int(times) if times.isdecimal() and len(times) < 9 else 0


def _boot_words() -> tuple[int, int]:
    boot = boot_id()
    return int.from_bytes(boot[:8], "little", signed=True), int.from_bytes(boot[8:], "little", signed=True)
