"""One thread waits for a consumer, or several of a broker at once, members of groups or not.

It sleeps in the words of all of them, and in one of its own for wakeup(): nothing is looked for meanwhile.
Only where they have more words than one system call takes, it looks again ten times a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mq.api.results import MessageQueue
from mq.api.waiter import SWEEP_MAX, Versioned
from mq.store.shared.queue_table import Numbers
from mq.store.shared.waiting import WORD_COUNT_MAX, Futex, Wait
from mq.store.store import Store

__all__ = ["LocalWaiter"]

TOO_MANY_SECONDS = 0.1


class Worded(Protocol):
    """A membership of this broker, or queues assigned by it: see LocalMembership, LocalAssigned."""

    def words(self) -> Sequence[tuple[Futex, int]]: ...
    def mark_seen(self) -> None: ...


class LocalWaiter:
    """See mq.api.waiter.Waiter. Waits by one thread at a time."""

    def __init__(self, store: Store, numbers: Numbers) -> None:
        self._store = store
        self._numbers = numbers
        self._event = Futex(bytearray(4))
        self._heard = 0
        self._topics = -1  # the version of all topics for which the numbers are known
        self._known: dict[MessageQueue, int] = {}
        self._wait: Wait | None = None  # for what was asked last
        self._asked: object = None

    def wait(
        self,
        positions: Sequence[tuple[MessageQueue, int, frozenset[int] | bytes | None]],
        members: Sequence[tuple[Versioned, int]],
        timeout: float,
    ) -> MessageQueue | None:
        """See Waiter.wait. Of more than SWEEP_MAX queues none is named: the first would hide the others."""
        self._store.live()
        # All that was seen is read before it is looked whether there is something to do already.
        topics = int(self._store.topics_version()[0])
        if topics != self._topics:
            self._topics = topics
            self._known.clear()
        found: MessageQueue | None = None
        words = {self._event.address: (self._event, self._heard)}
        worded: list[Worded] = [member for member, _ in members]  # type: ignore[misc]  # Waiter.wait takes any member; those that this broker made have words
        for member in worded:
            # Members of one group share the word of its version.
            words.update((word.address, (word, seen)) for word, seen in member.words())
        if all(member.version() == version for member, version in members):
            if len(words) > WORD_COUNT_MAX:
                timeout = min(timeout, TOO_MANY_SECONDS)
            wait = self._wait_for(topics, positions, list(words.values())[:WORD_COUNT_MAX])
            try:
                place = wait.sleep(timeout)
            finally:
                wait.drop_words()
            if place is not None and wait is self._wait and len(positions) <= SWEEP_MAX:
                found = positions[place][0]
        self._heard = self._event.value
        for member in worded:
            member.mark_seen()
        return found

    def _wait_for(
        self,
        topics: int,
        positions: Sequence[tuple[MessageQueue, int, frozenset[int] | bytes | None]],
        words: Sequence[tuple[Futex, int]],
    ) -> Wait:
        """The wait that was made last, where nothing but offsets and values differ; or another one."""
        queues = [(queue, hashes) for queue, _, hashes in positions]
        asked = topics, len(words), queues
        if self._wait is not None and asked == self._asked:
            self._wait.renew((offset for _, offset, _ in positions), words)
            return self._wait
        numbers = [self._number(queue) for queue, _ in queues]
        wait = Wait(
            self._store,
            [
                (number, offset, hashes)
                for number, (_, offset, hashes) in zip(numbers, positions, strict=True)
                if number >= 0
            ],
            version=topics,
            words=words,
        )
        self._wait, self._asked = (wait if min(numbers, default=0) >= 0 else None), asked
        return wait

    def _number(self, queue: MessageQueue) -> int:
        number = self._known.get(queue, -1)
        if number < 0:
            # With a place in the table, also before its first message: that could come while nobody looks.
            number = self._numbers.find(queue.topic, queue.queue_id, add=not self._store.read_only)
            self._known[queue] = number
        return number

    def wakeup(self) -> None:
        """See Waiter.wakeup."""
        self._event.add()
        self._event.wake()
