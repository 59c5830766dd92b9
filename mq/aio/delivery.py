"""Calls a function, async or not, with messages, and says what it did not consume."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from mq.client.engine.delivery import Failure
from mq.client.listener import check_listener, name_of, raise_returned
from mq.client.retry import Retry
from mq.message import MessageExt

# Called with a message, or a list of them; what it returns is awaited if it can be.
Listener = Callable[[Any], object]


class AsyncDelivery:
    """One listener, for the messages of any topic."""

    def __init__(self, listener: Listener, batch_size: int | None) -> None:
        check_listener(listener, awaits=True)
        self.count_max: Final = batch_size or 1
        self.is_ending = False  # calls that are cancelled from now on have not failed
        self._listener = listener
        self._takes_lists = batch_size is not None

    async def failures(self, messages: list[MessageExt]) -> list[Failure]:
        """Call the listener: what it did not consume. Cancelled from outside, it raises CancelledError."""
        try:
            # The listener may do with its list what it likes.
            result = self._listener(list(messages) if self._takes_lists else messages[0])
            if inspect.isawaitable(result):
                result = await result
            if result is not None:
                raise_returned(result, name_of(self._listener))
        except Retry as error:
            failed = error.failed(messages) if self._takes_lists else messages
            return [Failure(failed, error)] if failed else []
        except Exception as error:  # noqa: BLE001 - a listener may raise anything
            return [Failure(messages, error)]
        except asyncio.CancelledError as error:
            if self.is_ending or _is_cancelled():
                raise
            return [Failure(messages, error)]  # something that the listener waited for was cancelled
        return []


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task. Python 3.10 cannot tell."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0
