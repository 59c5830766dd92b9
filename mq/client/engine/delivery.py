"""Hands the messages of a run to a listener: one by one, or in lists.

A listener that returns has consumed, unless it returns a Retry, or what says that it has not run. What it
raises, whatever that is, makes a Failure of the messages it was given; in order, that ends the run, otherwise
the next messages follow. How long calls take decides how long runs are: about a millisecond, so that neither
a lock is taken for each message, nor a slow message keeps others waiting behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from mq.client.engine.process_queue import MessageRun
from mq.client.listener import name_of, raise_returned
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


def unheard(_: Any) -> None:
    """Stands for the listener of a consumer that asks for its messages."""


class Delivery:
    """What is selected of a topic, and its listener, for any number of threads unless it is ordered."""

    def __init__(
        self,
        topic: str,
        selection: Selection,
        listener: Listener = unheard,
        batch_size: int | None = None,
        ordered: bool = False,
    ) -> None:
        self.topic = topic
        self.selection = selection
        self.listener = listener
        self.batch_size = batch_size  # None: per message
        self.ordered = ordered
        self._seconds = 0.0  # of a recent call; 0: none yet

    def name(self, _message: MessageExt | None = None) -> str:
        """What the log calls the listener that gets this message."""
        return name_of(self.listener)

    @property
    def is_heard(self) -> bool:
        """Whether there is a listener. What comes again is given to it with the topic that it was sent to."""
        return self.listener is not unheard

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

    def run(self, run: MessageRun) -> list[Failure]:
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

    def _one_by_one(self, run: MessageRun) -> list[Failure]:
        failures: list[Failure] = []
        listener, left = self.listener, run.left
        while True:
            try:
                for message in left:
                    result = listener(message)
                    if result is not None:
                        raise_returned(result, self.name(message))
            except BaseException as error:  # noqa: BLE001 - SystemExit too: the thread is not the listener's
                again = [message]
                run.failed.append(message)
                if self.ordered:
                    again += left
                failures.append(Failure(again, error))
                if self.ordered:
                    return failures
            else:
                return failures

    def _in_lists(self, run: MessageRun, size: int) -> list[Failure]:
        failures: list[Failure] = []
        listener, left = self.listener, run.left
        while messages := list(islice(left, size)):
            if run.is_lost():
                break
            again = messages
            try:
                result = listener(list(messages))
                if result is not None:
                    raise_returned(result, self.name(messages[0]))
            except BaseException as error:  # noqa: BLE001 - SystemExit too: the thread is not the listener's
                if isinstance(error, Retry):
                    again = error.failed(messages)
                if not again:
                    continue
                run.failed += again
                if self.ordered:
                    again += left
                failures.append(Failure(again, error))
                if self.ordered:
                    return failures
        return failures


class RetryDelivery(Delivery):
    """The retry topic of a group: what comes again goes to the listener of the topic that it was sent to."""

    def __init__(self, topic: str, deliveries: Mapping[str, Delivery], ordered: bool) -> None:
        super().__init__(topic, Selection.of(), self._deliver, None, ordered)
        self._deliveries = deliveries  # by topic

    def name(self, message: MessageExt | None = None) -> str:
        delivery = self._of(message.topic) if message is not None else None
        return delivery.name(message) if delivery is not None else f"a listener of {self.topic}"

    def _deliver(self, message: MessageExt) -> object:
        delivery = self._of(message.topic)
        if delivery is None:
            raise LookupError(
                f"topic {message.topic} is not subscribed to any more: its message is sent back"
            )
        if delivery.batch_size is None:
            return delivery.listener(message)
        try:
            result = delivery.listener([message])
            if result is not None:
                raise_returned(result, self.name(message))
        except Retry as error:
            if error.failed([message]):
                raise
        return None

    def _of(self, topic: str) -> Delivery | None:
        # What does not say where it was sent to has the retry topic itself.
        return self._deliveries.get(topic) if topic != self.topic else None
