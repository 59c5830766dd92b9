"""What becomes of messages that a listener did not consume.

A group's are sent back: the broker stores them in the group's retry topic, to come again later, or in its
dead letters after too many times. Where even that fails, they stay here and come again in a few seconds. A
broadcasting consumer has no retry topic: it loses them, with a line in the log. In order, messages are never
sent back to come later: the queue waits, and only what has failed too often goes to the dead letters.

A consumer with assigned queues is no member of the group, and has no share of its retry topic: what fails
waits in the consumer, and the group's offset with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from mq.api.group import Claim
from mq.client.engine.delivery import Failure
from mq.client.engine.owned_queue import ALL_CONSUMED, ConsumeRequest, Unconsumed
from mq.client.retry import DELAY_SECONDS, RetriedMessage, Retry, suspend_seconds
from mq.errors import MQError
from mq.message import MessageExt
from mq.names import DEAD_PREFIX

logger = logging.getLogger("mq.consumer")

RETRY_SECONDS = 5.0  # until a message that could not be sent back comes again
TIMEOUT_LEVEL = 3  # at which a message comes again whose listener took too long
WAIT_LEVEL_MAX = 5  # at which it waits here, unless a Retry says more: its queue's offset stands meanwhile
DEAD = -1


class SendBack:
    """Sends back for one group. Any thread may call, without the lock of the consumer."""

    def __init__(
        self,
        group: str,
        *,
        max_reconsume_times: int,
        suspend_ms: int = 0,
        is_broadcasting: bool = False,
        is_assigned: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._group = group
        self._keeps = not is_broadcasting
        self._is_assigned = is_assigned
        self._times_max = max_reconsume_times
        self._suspend_ms = suspend_ms
        self._clock = clock

    def settle(self, request: ConsumeRequest, failures: Sequence[Failure]) -> Unconsumed:
        """Send back what failed of a request; what stays here. What is another member's by now is not sent
        back by this one."""
        if not failures or not request.is_wanted or request.owned.claim.is_lost():
            return ALL_CONSUMED
        if request.delivery.ordered:
            return self._in_order(request, failures[0])
        if self._is_assigned:
            (failure,) = failures  # asyncio makes one call for each request
            return self._here(request, failure)
        kept: list[MessageExt] = []
        for failure in failures:
            kept += self._concurrently(request, failure)
        return self.later(kept)

    def later(self, messages: list[MessageExt]) -> Unconsumed:
        """These could not be sent back: they come again in a few seconds."""
        return Unconsumed(messages, due=self._clock() + RETRY_SECONDS)

    def _concurrently(self, request: ConsumeRequest, failure: Failure) -> list[MessageExt]:
        """Send back the messages that failed. Returns those that the broker did not take: they come again."""
        (first, *_), error = failure
        level = error.delay_level or 0 if isinstance(error, Retry) else 0
        if not self._keeps:
            self._report(request, failure, "is lost: a broadcasting group has no retry topic", is_final=True)
            return []
        if first.reconsume_times >= self._times_max or level == DEAD:
            self._report(request, failure, self._dead_letters, is_final=True)
        else:
            self._report(request, failure, "comes again", is_final=False)
        return [
            RetriedMessage(message, message.reconsume_times + 1)
            for message in failure.messages
            if not self.send_back(message, level, request.owned.claim)
        ]

    def _here(self, request: ConsumeRequest, failure: Failure) -> Unconsumed:
        """What stays in the consumer until it comes again. The counts of attempts are kept here alone: the
        broker is told which message is dead."""
        messages, error = failure
        level = error.delay_level or 0 if isinstance(error, Retry) else 0
        times = min(message.reconsume_times for message in messages)
        if times >= self._times_max or level == DEAD:
            self._report(request, failure, self._dead_letters, is_final=True)
            claim = request.owned.claim
            return self.later([message for message in messages if not self.send_back(message, DEAD, claim)])
        seconds = DELAY_SECONDS[(level or min(TIMEOUT_LEVEL + times, WAIT_LEVEL_MAX)) - 1]
        self._report(request, failure, f"comes again here in {seconds} s", is_final=False)
        again = [RetriedMessage(message, message.reconsume_times + 1) for message in messages]
        return Unconsumed(again, due=self._clock() + seconds)

    def _in_order(self, request: ConsumeRequest, failure: Failure) -> Unconsumed:
        """What comes next in the queue, beginning with the message that failed, and when. Counts the attempts
        at that message in the queue."""
        owned, (messages, error) = request.owned, failure
        first = messages[0]
        offset = first.queue_offset
        if owned.attempts_at != offset:
            owned.attempts_at, owned.attempts = offset, first.reconsume_times
        is_dead = isinstance(error, Retry) and error.delay_level == DEAD
        if is_dead or owned.attempts >= self._times_max:
            outcome = self._dead_letters if self._keeps else "is lost"
            self._report(request, Failure(messages[:1], error), outcome, is_final=True)
            if not self._keeps or self.send_back(first, DEAD, owned.claim):
                return Unconsumed(messages[1:])
        owned.attempts += 1
        suspend_ms = self._suspend_ms
        if isinstance(error, Retry) and error.suspend_ms is not None:
            suspend_ms = error.suspend_ms
        seconds = suspend_seconds(suspend_ms)
        outcome = f"comes again: the queue waits {seconds:g} s"
        self._report(request, Failure(messages[:1], error), outcome, is_final=False)
        again = [RetriedMessage(first, owned.attempts), *messages[1:]]
        return Unconsumed(again, suspended_until=self._clock() + seconds)

    def send_back(self, message: MessageExt, level: int, claim: Claim) -> bool:
        """Whether the broker has it now, or another member of the group."""
        try:
            claim.send_back(message, delay_level=level, max_reconsume_times=self._times_max)
        except Exception as error:
            logger.error(
                "group %s: message %s could not be sent back, it comes again in %g s: %s",
                *(self._group, message.msg_id, RETRY_SECONDS, error),
                exc_info=None if isinstance(error, MQError) else error,
            )
            return False
        return True

    @property
    def _dead_letters(self) -> str:
        return f"goes to the dead letters, {DEAD_PREFIX}{self._group}"

    def _report(self, request: ConsumeRequest, failure: Failure, outcome: str, *, is_final: bool) -> None:
        """Log that a listener did not consume messages, and what becomes of them."""
        owned, (messages, error) = request.owned, failure
        first = messages[0]
        is_asked_for: Final = isinstance(error, Retry)
        level = logging.INFO if is_asked_for else logging.ERROR
        if is_asked_for and is_final:
            level = logging.WARNING
        logger.log(
            level,
            "group %s: %s %s in %s/%d at queue offset %d failed at %s (reconsumed %d times so far),"
            " and %s: %r",
            self._group,
            f"{len(messages)} messages from" if len(messages) > 1 else "message",
            first.msg_id,
            owned.queue.topic,
            owned.queue.queue_id,
            first.queue_offset,
            request.delivery.name(first),
            # In order the queue knows how often it failed at the first one, and the message does not.
            max(first.reconsume_times, owned.attempts if owned.attempts_at == first.queue_offset else 0),
            outcome,
            error,
            exc_info=None if is_asked_for else error,
        )
        # A traceback keeps the frames of the delivery, and by them the messages.
        error.__traceback__ = None
