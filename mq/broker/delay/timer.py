"""Messages due at any time: where they wait, and how they are delivered.

Every broker puts them aside, into the one queue of rmq_sys_wheel_timer; the one that has the duties puts them
into the wheel (see mq/store/timer/wheel.py) and delivers them for all, asleep until the next is due. A sender
that stores one that is due before that wakes it. A store that has no such message has no wheel either.

RocketMQ: store/timer/TimerMessageStore.java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mq.broker.delay.levels import destination
from mq.errors import BrokerClosed, ForkedBroker, MQError
from mq.message import MessageExt
from mq.store.log.reappend import Copies
from mq.store.shared.due_event import ALWAYS
from mq.store.shared.lock_guards import thread_locks
from mq.store.store import Store
from mq.store.timer.engine import Event, Stop, TimerEngine, rolls_of
from mq.store.timer.progress import TimerProgress

__all__ = ["TIMER_TOPIC", "Timer", "roll_window_ms"]

TIMER_TOPIC = "rmq_sys_wheel_timer"
IDLE = 5.0  # seconds; a sender notifies when there is something to do, if memory is not damaged
AGAIN = 0.1  # after a failure, such as a full disk
EXPIRE_INTERVAL = 30.0
ROLL_MIN_MS = 60_000

log = logging.getLogger("mq.timer")


def roll_window_ms(retention_ms: int) -> int:
    """What is due later than that is stored once more on its way, long before retention takes its record: a
    third of the time is left for somebody to open the store. With 72 hours it is RocketMQ's two days."""
    return max(retention_ms * 2 // 3, ROLL_MIN_MS)


class Timer:
    """Timer messages of one broker.

    make_topic(name, queue_count) has the settings of a topic in place; place(topic, queue_id) is the queue
    where such a message can be read, or None where there is no such topic any more and it may not be made.
    roll_ms(): a message that is due later than that is stored once more on the way; RocketMQ's two days if
    that is less, or nothing is said. Asked when this broker begins to deliver, and with every save.
    """

    name = "mq-timer"
    save_interval = 1.0  # RocketMQ: timerFlushIntervalMs

    def __init__(
        self,
        store: Store,
        copies: Copies,
        precision_ms: int,
        make_topic: Callable[[str, int], None],
        place: Callable[[str, int], tuple[str, int] | None],
        *,
        roll_ms: Callable[[], int] | None = None,
    ) -> None:
        self._store = store
        self._copies = copies
        self.precision_ms = precision_ms
        self._make_topic = make_topic
        self._place = place
        self._roll_ms = roll_ms
        self._number: int | None = None
        self._progress: TimerProgress | None = None
        self._engine: TimerEngine | None = None
        self._stop = Stop()
        self._is_running = False
        self._expired = time.monotonic()
        self._locked = thread_locks(store.root / "mq" / "timer", "opening it")
        self.last_error: BaseException | None = None

    @property
    def progress(self) -> TimerProgress:
        """What is told of messages that were put aside: progress.stored(due_ms), or progress.notify()."""
        progress = self._progress
        if progress is None:
            with self._locked():
                progress = self._progress
                if progress is None:
                    self._store.live()
                    progress = self._progress = TimerProgress(self._store.root, self._copies.epoch())
        return progress

    def close(self) -> None:
        """Let go of mq/timer."""
        with self._locked():
            self._progress = None

    def queue_number(self) -> int:
        """Number of the queue in which timer messages wait; its topic is made on first use."""
        number = self._number
        if number is None:
            self._make_topic(TIMER_TOPIC, 1)
            number = self._copies.number(TIMER_TOPIC, 0, add=True)
            assert number is not None
            self._number = number
        return number

    def enqueued(self) -> int:
        """The next of the timer topic to be put into the wheel: those before are in it, or delivered."""
        return self.progress.enqueued()

    def pending(self) -> int:
        """How many messages wait in the wheel."""
        return self.progress.pending()

    def delivered_ms(self, now_ms: int) -> int:
        """All that is due before that is delivered; now_ms where nobody knows."""
        read_ms = self.progress.read_ms()
        return now_ms if read_ms is None else min(now_ms, read_ms)

    def run(self, stopping: Callable[[], bool]) -> None:
        """Deliver until told to stop, and woken for that. For the leader."""
        progress, stop = self.progress, self._stop
        stop.set(False)
        self._is_running = True
        try:
            while True:
                heard = progress.event.value
                if stopping():
                    return
                self._store.live()
                # First: what is put aside from now on is told, and what was before is seen.
                progress.wake_at(ALWAYS)
                progress.event.wait(heard, self._go_on(progress))
        finally:
            self._is_running = False

    def _open(self, progress: TimerProgress) -> TimerEngine | None:
        """The engine, if there ever was a timer message."""
        number = self._copies.number(TIMER_TOPIC, 0, add=False)
        if number is None or not self._copies.next_offset(number):
            return None
        self._engine = engine = TimerEngine(
            self._store, progress, number, self.precision_ms, roll_ms=self._roll_ms and self._roll_ms()
        )
        return engine

    def _go_on(self, progress: TimerProgress) -> float:
        """One run until something unusual; how many seconds there is nothing to do then."""
        try:
            engine = self._engine or self._open(progress)
            if engine is None:
                return IDLE
            event = engine.run(self._stop, int(IDLE * 1000))
            if event is not None:
                self._handle(engine, event)
        except (BrokerClosed, ForkedBroker):
            raise
        except (MQError, OSError, MemoryError) as error:
            # A full disk, a failed flush: senders meet it themselves. What is stated is looked for, then
            # repeated.
            if type(error) is not type(self.last_error):
                log.warning("timer messages have to wait: %s", error)
            self.last_error = error
            return AGAIN
        self.last_error = None
        return 0.0

    def _handle(self, engine: TimerEngine, event: Event) -> None:
        if event.kind == engine.LOST and engine.enqueue_again(event):
            return
        message = engine.record(event.log_offset)
        if event.kind == engine.LOST:
            log.warning(
                "a timer message is lost: the record at log offset %d says not when it is due, or is damaged",
                event.log_offset,
            )
        elif message is None:
            log.warning("a timer message is lost: the record at log offset %d is damaged", event.log_offset)
            engine.answer(done=True)
        elif event.kind == engine.ASK:
            engine.answer(done=self._was_delivered(engine, message, event))
        elif event.kind == engine.TOO_LARGE:
            log.warning(
                "timer message %s is dropped: its copy is over a limit of RocketMQ's format", message.msg_id
            )
            engine.answer(done=True)
        else:
            self._resolve(engine, message)

    def _resolve(self, engine: TimerEngine, message: MessageExt) -> None:
        """Say where a message is delivered to."""
        wanted = destination(message)
        if wanted is not None and wanted[0] == TIMER_TOPIC:
            wanted = None  # It would come back for ever.
        place = None if wanted is None else self._place(*wanted)
        if place is None:
            why = "it does not say where it belongs" if wanted is None else f"there is no topic {wanted[0]}"
            log.warning("timer message %s is dropped: %s", message.msg_id, why)
            engine.answer(done=True)
            return
        number = self._copies.number(*place, add=True)
        assert number is not None
        engine.place(number)

    def _was_delivered(self, engine: TimerEngine, message: MessageExt, event: Event) -> bool:
        """Whether a message of which nobody knows has a copy where it was to go."""
        if event.is_rolled:
            return engine.was_stored(TIMER_TOPIC, message, rolls_of(message))
        wanted = destination(message)
        return wanted is not None and engine.was_stored(wanted[0], message, -1)

    def wake(self) -> None:
        """Have run() look whether it is to stop."""
        self._stop.set(True)
        progress = self._progress
        if progress is not None:
            progress.notify()

    def save(self) -> None:
        """Have on disk how far delivery is. For the leader."""
        engine = self._engine
        if engine is None:
            return
        if self._is_running:
            if self._roll_ms is not None:
                engine.set_roll(self._roll_ms())
            # What is due later than the next look has told nobody.
            if self._copies.next_offset(self.queue_number()) > self.enqueued():
                self.progress.notify()
            if time.monotonic() - self._expired > EXPIRE_INTERVAL:
                self._expired = time.monotonic()
                engine.expire()
        engine.save(last=not self._is_running)

    def give_up(self) -> None:
        """The duties are another's from now on."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
