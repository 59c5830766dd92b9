"""What becomes of messages that a listener did not consume.

A group's are sent back: the broker stores them in the group's retry topic, to come again later, or in its
dead letters after too many times. Where even that fails, they stay here and come again in a few seconds. A
broadcasting consumer has no retry topic: it loses them, with a line in the log. In order, messages are never
sent back to come later: the queue waits, and only what has failed too often goes to the dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from mq.api.broker import Broker, MessageQueue
from mq.client.engine.delivery import Failure
from mq.client.engine.puller import OwnedQueue
from mq.client.retry import RetriedMessage, Retry, suspend_seconds
from mq.message import MessageExt
from mq.names import DEAD_PREFIX

logger = logging.getLogger("mq.consumer")

RETRY_SECONDS: Final = 5.0  # until a message that could not be sent back comes again
TIMEOUT_LEVEL = 3  # at which a message comes again whose listener took too long
DEAD = -1


class HandBack:
    """Sends back for one group. Any thread may call, without the lock of the consumer."""

    def __init__(
        self, broker: Broker, group: str, *, keeps: bool, max_reconsume_times: int, suspend_ms: int
    ) -> None:
        self._broker = broker
        self._group = group
        self._keeps = keeps  # False: broadcasting
        self._times_max = max_reconsume_times
        self._suspend_ms = suspend_ms

    def concurrent(self, owned: OwnedQueue, failures: Sequence[Failure]) -> list[MessageExt]:
        """Send back what failed. Returns what could not be, as it is to be delivered again."""
        kept: list[MessageExt] = []
        for failure in failures:
            outcome, is_final = outcome_of(failure, self._group, self._times_max)
            self._report(owned, failure, outcome, is_final=is_final)
            if self._keeps:
                level = level_of(failure.error)
                kept += [
                    RetriedMessage(message, message.reconsume_times + 1)
                    for message in failure.messages
                    if not self.send_back(message, level)
                ]
        return kept

    def ordered(self, owned: OwnedQueue, failure: Failure) -> tuple[list[MessageExt], float]:
        """What comes next in the queue, beginning with the message that failed, and in how many seconds.

        Counts the attempts at that message in `owned`.
        """
        messages, error = failure
        first = messages[0]
        offset = first.queue_offset
        if owned.attempts_at != offset:
            owned.attempts_at, owned.attempts = offset, first.reconsume_times
        is_dead = isinstance(error, Retry) and error.delay_level == DEAD
        if is_dead or owned.attempts >= self._times_max:
            outcome = f"goes to the dead letters, {DEAD_PREFIX}{self._group}" if self._keeps else "is lost"
            self._report(owned, Failure(messages[:1], error), outcome, is_final=True)
            if not self._keeps or self.send_back(first, DEAD):
                return messages[1:], 0.0
        owned.attempts += 1
        suspend_ms = self._suspend_ms
        if isinstance(error, Retry) and error.suspend_ms is not None:
            suspend_ms = error.suspend_ms
        seconds = suspend_seconds(suspend_ms)
        outcome = f"comes again: the queue waits {seconds:g} s"
        self._report(owned, Failure(messages[:1], error), outcome, is_final=False)
        return [RetriedMessage(first, owned.attempts), *messages[1:]], seconds

    def send_back(self, message: MessageExt, level: int) -> bool:
        """Whether the broker has it now."""
        try:
            self._broker.send_back(
                message, self._group, delay_level=level, max_reconsume_times=self._times_max
            )
        except Exception:
            logger.exception(
                "group %s: message %s could not be sent back, it comes again in %g s",
                *(self._group, message.msg_id, RETRY_SECONDS),
            )
            return False
        return True

    def _report(self, owned: OwnedQueue, failure: Failure, outcome: str, *, is_final: bool) -> None:
        first = failure.messages[0]
        if not self._keeps and not owned.delivery.ordered:
            outcome, is_final = "is lost: a broadcasting group has no retry topic", True
        log_failure(
            failure,
            group=self._group,
            queue=owned.queue,
            listener=owned.delivery.name(first),
            times=owned.attempts if owned.attempts_at == first.queue_offset else 0,
            outcome=outcome,
            is_final=is_final,
        )


def log_failure(
    failure: Failure,
    *,
    group: str,
    queue: MessageQueue,
    listener: str,
    outcome: str,
    times: int = 0,
    is_final: bool = False,
) -> None:
    """Log that a listener did not consume messages, and what becomes of them. `times` is how often it failed
    at the first one, where the message does not know; with `is_final` it does not come again."""
    messages, error = failure
    first = messages[0]
    is_asked_for = isinstance(error, Retry)
    level = logging.INFO if is_asked_for else logging.ERROR
    if is_asked_for and is_final:
        level = logging.WARNING
    logger.log(
        level,
        "group %s: %s %s in %s/%d at queue offset %d failed at %s (reconsumed %d times so far), and %s: %r",
        group,
        f"{len(messages)} messages from" if len(messages) > 1 else "message",
        first.msg_id,
        queue.topic,
        queue.queue_id,
        first.queue_offset,
        listener,
        max(first.reconsume_times, times),
        outcome,
        error,
        exc_info=None if is_asked_for else error,
    )
    # A traceback keeps the frames of the delivery, and by them the messages.
    error.__traceback__ = None


def outcome_of(failure: Failure, group: str, times_max: int) -> tuple[str, bool]:
    """What becomes of messages that are sent back, in words, and whether that is the end of it."""
    (first, *_), error = failure
    if first.reconsume_times >= times_max or level_of(error) == DEAD:
        return f"goes to the dead letters, {DEAD_PREFIX}{group}", True
    return "comes again", False


def level_of(error: BaseException) -> int:
    """The delay level at which a message comes again; 0 leaves it to the number of its attempts."""
    return error.delay_level or 0 if isinstance(error, Retry) else 0
