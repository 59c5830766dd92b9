"""The duty event of a store: it wakes the threads that do the duties, in whichever process they sleep.

A word in the control file, raised with every notification. A waiting thread looks at the word first, then at
what it may have to do, then sleeps until the word is another one: a notification between the two is not lost.
"""

from __future__ import annotations

from mq.store.native import lib
from mq.store.store import Store

__all__ = ["DutyEvent"]

WAIT_AT_ONCE = 3600.0


class DutyEvent:
    """Raises BrokerClosed or ForkedBroker once its store is of no use any more."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _handle(self) -> object:
        control = self._store.control
        assert control is not None
        return control.handle

    def heard(self) -> int:
        """What has been heard by now: wait() returns at once if more was heard since."""
        return int(lib.mq_control_event(self._handle()))

    def wait(self, heard: int, seconds: float) -> None:
        """Sleep until it is notified. May return early for nothing."""
        # Rounded up: a thread that wakes a little early only goes to sleep again.
        milliseconds = -int(-min(max(seconds, 0.0), WAIT_AT_ONCE) * 1000 // 1)
        lib.mq_control_event_wait(self._handle(), heard, milliseconds)

    def notify(self) -> None:
        lib.mq_control_event_notify(self._handle())
