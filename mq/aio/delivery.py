"""Calls a function, async or not, with messages, and sees to it that each is consumed, or comes again.

What a listener fails at is sent back: the broker stores it in the group's retry topic, to come again later,
or in its dead letters after too many times. Where even that fails, the listener is called again in a few
seconds, and nothing after the message is committed before.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from mq.client.engine.delivery import Failure
from mq.client.engine.held_queue import HeldQueue
from mq.client.engine.holdings import Holdings
from mq.client.engine.send_back import level_of, log_failure, outcome_of
from mq.client.listener import check_listener, name_of, raise_returned
from mq.client.retry import RetriedMessage, Retry
from mq.message import MessageExt
from mq.names import RETRY_PREFIX

logger = logging.getLogger("mq.consumer")

RETRY_SECONDS: Final = 5.0  # until a message that could not be sent back comes again

Listener = Callable[
    [Any], object
]  # with a message, or a list of them; what it returns is awaited if it can be


class Delivery:
    """One listener, and what becomes of its messages."""

    def __init__(
        self, holdings: Holdings, listener: Listener, batch_size: int | None, max_reconsume_times: int
    ) -> None:
        check_listener(listener, awaits=True)
        if not isinstance(max_reconsume_times, int) or max_reconsume_times < 0:
            raise ValueError(f"max_reconsume_times is {max_reconsume_times!r}, must be 0 or more")
        self.count_max: Final = batch_size or 1
        self.is_ending = False  # calls that are cancelled from now on have not failed
        self._holdings = holdings
        self._listener = listener
        self._takes_lists = batch_size is not None
        self._times_max = max_reconsume_times

    async def deliver(self, held: HeldQueue, messages: list[MessageExt]) -> None:
        """Returns when each of these is consumed or sent back, and commits them. Cancelled, it leaves them
        to come again."""
        again: list[MessageExt] = messages
        if held.queue.topic.startswith(RETRY_PREFIX):
            again = [RetriedMessage(message) for message in messages]
        while True:
            failure = await self._failure(again)
            if failure is None or held.claim.is_lost():
                break  # What is another member's by now is not sent back by this one.
            again = self._send_back(held, *failure)
            if not again:
                break
            await asyncio.sleep(RETRY_SECONDS)
            if self.is_ending:
                return
        held.finish(messages[0])
        held.commit(held.finished)

    async def _failure(self, messages: list[MessageExt]) -> tuple[list[MessageExt], BaseException] | None:
        """Call the listener. What it did not consume, and why."""
        try:
            result = self._listener(messages if self._takes_lists else messages[0])
            if inspect.isawaitable(result):
                result = await result
            if result is not None:
                raise_returned(result, name_of(self._listener))
        except Retry as error:
            return messages[error.from_index or 0 :], error
        except Exception as error:  # noqa: BLE001 - a listener may raise anything
            return messages, error
        except asyncio.CancelledError as error:
            if self.is_ending or _is_cancelled():
                raise
            return messages, error  # something that the listener waited for was cancelled
        return None

    def _send_back(
        self, held: HeldQueue, messages: list[MessageExt], error: BaseException
    ) -> list[MessageExt]:
        """Send back what failed. Returns what could not be, as it is to be delivered again."""
        kept: list[MessageExt] = []
        if not messages:
            return kept
        failure = Failure(messages, error)
        outcome, is_final = outcome_of(failure, self._holdings.group, self._times_max)
        log_failure(
            failure,
            group=self._holdings.group,
            queue=held.queue,
            listener=name_of(self._listener),
            outcome=outcome,
            is_final=is_final,
        )
        for message in messages:
            try:
                self._holdings.broker.send_back(
                    message,
                    self._holdings.group,
                    delay_level=level_of(error),
                    max_reconsume_times=self._times_max,
                )
            except Exception:
                logger.exception(
                    "group %s: message %s could not be sent back, it comes again in %g s",
                    *(self._holdings.group, message.msg_id, RETRY_SECONDS),
                )
                kept.append(RetriedMessage(message, message.reconsume_times + 1))
        return kept


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task. Python 3.10 cannot tell."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0
