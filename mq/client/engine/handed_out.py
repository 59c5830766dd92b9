"""What a consumer that asks for messages was given last, by a poll or by a loop over messages.

What a poll returned counts as consumed as soon as anything else is asked for. So does the message that a loop
is at. When a loop is left, nobody knows why it was: the message that it was at comes again. What a poll
returned counts as well when its consumer is closed, unless something has failed.
"""

from __future__ import annotations

from itertools import islice

from mq.client.engine.owned_queue import ConsumeRequest
from mq.message import MessageExt

__all__ = ["HandedOut"]


class HandedOut:
    """Under the consumer's lock."""

    def __init__(self) -> None:
        self.is_left = False  # the loop; set without the lock, when it is dropped
        self._request: ConsumeRequest | None = None
        self._count = 0  # messages of it that are not consumed: the last that were begun
        self._is_of_loop = False

    @property
    def has_more(self) -> bool:
        """Whether next() may be called: there is a request, whose loop goes on."""
        return self._request is not None and not (self._is_of_loop and self.is_left)

    @property
    def is_of_loop(self) -> bool:
        """Whether a loop got it, which may have been left since."""
        return self._request is not None and self._is_of_loop

    def begin(self, request: ConsumeRequest, count_max: int, *, in_loop: bool) -> list[MessageExt]:
        """The first messages of a request. It is remembered, for the next ones."""
        self._request, self._is_of_loop = request, in_loop
        messages = list(islice(request.run.left, count_max))
        self._count = len(messages)
        return messages

    def next(self, count_max: int, *, in_loop: bool) -> list[MessageExt]:
        """The next messages of the request, those before being consumed; none where it has no more."""
        assert self._request is not None
        messages = list(islice(self._request.run.left, count_max))
        if messages:
            self._count, self._is_of_loop = len(messages), in_loop
        return messages

    def finish(self) -> None:
        """It counts as consumed."""
        request = self._request
        if request is not None and request.is_open:
            request.cache.cut(request.run)
            request.owned.finish(request)
        self._request = None  # Last, so that the next call goes on with it where an interrupt came before.

    def keep(self) -> None:
        """Keep in hand only what is not consumed."""
        request = self._request
        if request is not None and request.is_open:
            request.cache.cut(request.run)
            request.cache.settle(request.run, self._count)

    def forget(self) -> None:
        """It was committed, or comes again."""
        self._request = None
