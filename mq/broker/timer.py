"""Messages due at any time: where they are put aside, and who delivers them.

Every broker puts them aside, into the one queue of rmq_sys_wheel_timer; the one that has the duties puts them
into the wheel (see mq/store/timerwheel.py) and delivers them for all, asleep until the next is due. Who
stores one that is due before that wakes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from mq.store.copies import Copies
from mq.store.store import Store
from mq.store.timerstate import Alarm

__all__ = ["TIMER_TOPIC", "Timer"]

TIMER_TOPIC = "rmq_sys_wheel_timer"
IDLE = 5.0  # seconds; who has something to be done rings, should damaged memory not keep him from it


class Timer:
    """Timer messages of one broker.

    make_topic(name, queue_count) has the settings of a topic in place; place(topic, queue_id) is the queue
    where such a message can be read, or None where there is no such topic any more and it may not be made.
    """

    name = "mq-timer"
    save_interval = 1.0  # RocketMQ: timerFlushIntervalMs

    def __init__(
        self,
        store: Store,
        broker_name: str,
        copies: Copies,
        precision_ms: int,
        make_topic: Callable[[str, int], None],
        place: Callable[[str, int], tuple[str, int] | None],
    ) -> None:
        self._store = store
        self._broker_name = broker_name
        self._copies = copies
        self.precision_ms = precision_ms
        self._make_topic = make_topic
        self._place = place
        self._number: int | None = None
        self._alarm: Alarm | None = None
        self._lock = threading.Lock()

    @property
    def alarm(self) -> Alarm:
        """Whom to tell of what was put aside: alarm.stored(due_ms), or alarm.ring()."""
        if self._alarm is None:
            with self._lock:
                if self._alarm is None:
                    self._alarm = Alarm(self._store.root, self._copies.epoch())
        return self._alarm

    def aside(self) -> int:
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
        return self.alarm.enqueued()

    def pending(self) -> int:
        """How many messages wait in the wheel."""
        return self.alarm.pending()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Deliver until told to stop, and woken for that. By who has the duties."""
        while not stopping():
            heard = self.alarm.bell.value
            if not stopping():
                self.alarm.bell.wait(heard, IDLE)

    def wake(self) -> None:
        """Have run() look whether it is to stop."""
        if self._alarm is not None:
            self._alarm.ring()

    def save(self) -> None:
        """Have on disk how far delivery is. By who has the duties."""

    def give_up(self) -> None:
        """The duties are another's from now on."""
