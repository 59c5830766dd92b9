"""Hands the messages of a run to a listener: one by one, or in lists.

A listener that returns has consumed. What it raises, whatever that is, makes a Failure of the messages it
was given; in order, that ends the run, otherwise the next messages follow. How long calls take decides how
long runs are: about a millisecond, so that neither a lock is taken for each message, nor a slow message
keeps others waiting behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from mq.client.process_queue import Run
from mq.client.retry import Retry
from mq.filter.selection import Selection
from mq.message import MessageExt

RUN_SECONDS = 0.001
RUN_COUNT_MAX = 64
# A call that is over sooner is not worth another thread's being woken for it.
BRIEF_SECONDS = 0.0002

Listener = Callable[[Any], object]


class Failure(NamedTuple):
    """Messages that were not consumed, in order, and what the listener raised."""

    messages: list[MessageExt]
    error: BaseException


class Delivery:
    """The listener of a topic. Any number of threads may run it, unless it is ordered."""

    def __init__(
        self, topic: str, selection: Selection, listener: Listener, batch_size: int | None, ordered: bool
    ) -> None:
        self.topic = topic
        self.selection = selection
        self.listener = listener
        self.batch_size = batch_size  # None: per message
        self.ordered = ordered
        self.name = getattr(listener, "__qualname__", None) or repr(listener)
        self._seconds = 0.0  # of a recent call; 0: none yet

    @property
    def is_brief(self) -> bool:
        return self._seconds < BRIEF_SECONDS

    @property
    def run_count(self) -> int:
        """How many messages are a run."""
        seconds, batch = self._seconds, self.batch_size or 1
        if not seconds:
            return batch
        calls = max(1, min(int(RUN_SECONDS / seconds), RUN_COUNT_MAX // batch))
        return calls * batch

    def run(self, run: Run) -> list[Failure]:
        """Hand all that is left of a run to the listener. Returns what failed: if ordered, at most one, with
        all messages from the first that failed."""
        started = perf_counter()
        failures = self._one_by_one(run) if self.batch_size is None else self._in_lists(run, self.batch_size)
        calls = len(run.messages)
        if self.batch_size is not None:
            calls = -(-calls // self.batch_size)
        if calls:
            self._learn((perf_counter() - started) / calls)
        return failures

    def slow_down(self, seconds: float) -> None:
        """A call has been going on for so long already."""
        self._seconds = max(self._seconds, seconds)

    def _learn(self, seconds: float) -> None:
        known = self._seconds
        # Quick to find out that calls take longer, slow to believe the contrary.
        self._seconds = (known + seconds) / 2 if seconds > known else known + (seconds - known) / 8

    def _one_by_one(self, run: Run) -> list[Failure]:
        failures: list[Failure] = []
        listener, left = self.listener, run.left
        while True:
            try:
                for message in left:
                    listener(message)
            except BaseException as error:  # noqa: BLE001 - SystemExit too: the thread is not the listener's
                if isinstance(error, Retry) and error.from_index:
                    continue  # from the one after: this one is consumed
                again = [message]
                run.failed.append(message)
                if self.ordered:
                    again += left
                failures.append(Failure(again, error))
                if self.ordered:
                    return failures
            else:
                return failures

    def _in_lists(self, run: Run, size: int) -> list[Failure]:
        failures: list[Failure] = []
        listener, left = self.listener, run.left
        while messages := list(islice(left, size)):
            again = messages
            try:
                listener(list(messages))
            except BaseException as error:  # noqa: BLE001 - SystemExit too: the thread is not the listener's
                if isinstance(error, Retry) and error.from_index:
                    again = messages[error.from_index :]
                if not again:
                    continue
                run.failed += again
                if self.ordered:
                    again += left
                failures.append(Failure(again, error))
                if self.ordered:
                    return failures
        return failures
