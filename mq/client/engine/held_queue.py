"""One queue in the hands of a consumer: what was pulled, handed out, finished, and committed.

    committed <= finished <= given <= pulled_to       in offsets of the queue

Below `given` everything was handed out, or left out by the filter; from there on messages wait in the cache,
up to `pulled_to`, where the next pull begins. What is in hand was handed out and is not finished; the first
of it is how far may be committed. No thread, no clock and no waiting in here; the caller holds the lock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mq.api.broker import READ_SIZE_MAX, Broker, MessageQueue, PullStatus
from mq.api.group import Claim
from mq.errors import NotPermitted, TopicNotFound
from mq.filter.selection import Selection
from mq.message import MessageExt


class HeldQueue:
    """A queue that is claimed, from the offset on that the claim says; where it says none, from `start`,
    or from the oldest message kept."""

    def __init__(
        self, broker: Broker, claim: Claim, selection: Selection, pull_count: int, start: int | None = None
    ) -> None:
        self.queue: Final[MessageQueue] = claim.queue
        self.claim: Final = claim
        self.selection = selection
        self.cached: Final[deque[MessageExt]] = deque()
        self.in_hand: Final[dict[int, MessageExt]] = {}  # the first of each batch, by its offset, in order
        self._broker = broker
        self._pull = broker.puller(self.queue, claim)
        self._pull_count = pull_count
        self._is_sought = False
        committed = claim.committed()
        self.committed = self.pulled_to = (
            self._beginning() if committed is not None or start is None else start
        )

    @property
    def given(self) -> int:
        """All before it was handed out, or left out."""
        return self.cached[0].queue_offset if self.cached else self.pulled_to

    @property
    def finished(self) -> int:
        """All before it counts as consumed."""
        return next(iter(self.in_hand)) if self.in_hand else self.given

    @property
    def is_behind(self) -> bool:
        """Whether there is something to commit."""
        return self._is_sought or self.finished > self.committed

    def pull(self, count_max: int) -> bool:
        """Fill the empty cache with one look at the queue. False at its end."""
        result = self._pull(
            self.pulled_to, max(count_max, self._pull_count), READ_SIZE_MAX, self.selection.hashes, 0.0
        )
        if result.status is PullStatus.NO_NEW_MESSAGE:
            return False
        if result.status is PullStatus.OFFSET_ILLEGAL:
            # What is in hand lies where the queue has nothing any more: its end must not be committed.
            self.claim.correct(result.next_offset)
            self._go_to(result.next_offset)
            self.committed = result.next_offset
            return True
        is_idle = self.committed == self.pulled_to
        self.pulled_to = result.next_offset
        if result.messages:
            self.cached.extend(self.selection.keep(list(result.messages)))
        if is_idle and not self.cached and not self._is_sought:
            # What the filter left out is no lag, where nothing in front of it waits for a commit.
            self.commit(self.pulled_to)
        return True

    def take(self, count_max: int) -> list[MessageExt]:
        """Hand out what is cached, at most so many, as one batch."""
        cached = self.cached
        first = cached[0]
        self.in_hand[first.queue_offset] = first
        if len(cached) <= count_max:
            taken = list(cached)
            cached.clear()
            return taken
        return [cached.popleft() for _ in range(count_max)]

    def finish(self, first: MessageExt) -> None:
        """The batch that begins with this message counts as consumed; unless the queue begins elsewhere
        by now, and it is of no matter."""
        if self.in_hand.get(first.queue_offset) is first:
            del self.in_hand[first.queue_offset]

    def put_back(self) -> None:
        """What is in hand is to be handed out again."""
        if self.in_hand:
            self._go_to(self.finished)

    def commit(self, offset: int) -> None:
        """Commit up to this offset. After a seek that may be downwards; a reset by others wins over both."""
        if offset <= self.committed and not self._is_sought:
            return
        if not self.claim.commit(self.committed if self._is_sought else offset):
            self._begin_again()
            return
        if self._is_sought:
            self.claim.correct(offset)
            self._is_sought = False
        self.committed = offset

    def heed_reset(self) -> None:
        """Begin again where the group's offset was reset to, if it was; or with a queue made anew."""
        if not self.claim.is_current():
            self._begin_again()

    def select(self, selection: Selection) -> None:
        """Hand out what this selects from now on."""
        self.stop()
        self.selection = selection

    def stop(self) -> None:
        """Forget what is cached: whoever pulls next begins with it."""
        self.pulled_to = self.given
        self.cached.clear()

    def seek(self, offset: int) -> None:
        """Go on from here. Raises ValueError for an offset that the queue does not have."""
        low, high = self._broker.min_offset(self.queue), self._broker.max_offset(self.queue)
        if not isinstance(offset, int) or not low <= offset <= high:
            raise ValueError(f"{self.queue} has the offsets {low} to {high}, not {offset!r}")
        self._go_to(offset)
        self._is_sought = True

    def _go_to(self, offset: int) -> None:
        self.cached.clear()
        self.in_hand.clear()
        self.pulled_to = offset

    def _begin_again(self) -> None:
        self._is_sought = False
        self.committed = self._beginning()
        self._go_to(self.committed)

    def _beginning(self) -> int:
        committed = self.claim.committed()
        if committed is not None:
            return committed
        try:
            return self._broker.min_offset(self.queue)
        except (TopicNotFound, NotPermitted, ValueError):
            return 0  # the queue is gone, and about to be given up
