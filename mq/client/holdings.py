"""The queues that a consumer holds, and what may be done with them without waiting.

A consumer either subscribes, and shares the queues of its topics with the other members of its group, or is
assigned certain queues, and shares them with nobody. `look` does everything that is due: it shares the queues
anew when the group has changed, commits, and hands out messages. Who has nothing to do until something
happens waits, in whatever way suits it, for `positions`, for `version`, and until `due`.

A queue is claimed before it is pulled from first, and given up after its last commit: one that is to go
elsewhere is handed out no more, and released once nothing of it is in hand. The caller holds a lock, and
brings the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import strftime
from typing import Final

from mq.broker.membership import Membership, Subscription
from mq.broker.protocol import Broker, MessageQueue
from mq.client.held_queue import AssignedQueue, HeldQueue
from mq.client.identity import new_client_id
from mq.client.rebalance import RETRY_PREFIX, AnyStrategy, allocate, strategy_of
from mq.errors import BrokerClosed, NotPermitted, TopicNotFound
from mq.filter.selection import Selection
from mq.message import MessageExt
from mq.names import check_group, check_topic

ROUND_SECONDS: Final = 20.0  # at least so often it looks whose the queues are, told or not
NOTE_SECONDS: Final = 1.0  # at most so often it says when it was asked
PULL_COUNT_MAX: Final = 65_536
PAUSED: Final = "paused by its consumer"

OnAssignment = Callable[[set[MessageQueue], set[MessageQueue]], object]
Position = tuple[MessageQueue, int, "frozenset[int] | None"]


class Holdings:
    """See PullConsumer for the options."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        *,
        auto_commit: bool,
        consume_from: str | int,
        pull_count: int,
        auto_commit_interval: float,
        strategy: AnyStrategy,
        on_assignment: OnAssignment | None,
    ) -> None:
        check_group(group)
        _check_consume_from(consume_from)
        check_count("pull_count", pull_count)
        if auto_commit_interval < 0:
            raise ValueError(f"auto_commit_interval is {auto_commit_interval} s, must be 0 or more")
        strategy_of(strategy)
        self.group: Final = group
        self.client_id: Final = new_client_id()
        self.broker: Final = broker
        self.consume_type = "pull"
        self.membership: Membership | None = None
        self.version = -1  # of the membership, as it was when the queues were shared last
        self.held: Final[dict[MessageQueue, HeldQueue]] = {}
        self.paused: Final[set[MessageQueue]] = set()
        self._auto_commit = auto_commit
        self._commit_interval = auto_commit_interval
        self._consume_from = consume_from
        self._pull_count = pull_count
        self._strategy = strategy
        self._on_assignment = on_assignment
        self._subscriptions: dict[str, tuple[Subscription, Selection]] = {}
        self._is_assigned = False
        self._leaving: list[HeldQueue] = []
        self._turns: deque[HeldQueue] = deque()  # who is asked first
        self._commit_due = self._round_due = 0.0
        self._noted_at: float | None = None
        self.at_end = False

    @property
    def is_idle(self) -> bool:
        """Whether it was never told what to consume."""
        return not self._subscriptions and not self._is_assigned

    def subscribe(self, topic: str, expression: str | None, sql: str | None) -> None:
        check_topic(topic)
        if self._is_assigned:
            raise ValueError("this consumer was assigned its queues: it cannot subscribe as well")
        selection = Selection.of(expression, sql)
        if sql is not None:
            wanted = Subscription(topic, sql.strip(), "SQL92")
        else:
            wanted = Subscription(topic, (expression or "*").strip() or "*")
        self._resubscribe({**self._subscriptions, topic: (wanted, selection)})

    def unsubscribe(self, topic: str) -> None:
        if topic not in self._subscriptions:
            raise ValueError(f"{topic!r} is none of the topics subscribed to: {sorted(self._subscriptions)}")
        self._resubscribe({known: what for known, what in self._subscriptions.items() if known != topic})

    def take_retries(self) -> None:
        """Consume what the group handed back, as who pushes to a listener does."""
        self.consume_type = "push"
        topic = RETRY_PREFIX + self.group
        if topic not in self._subscriptions:
            self._subscriptions[topic] = Subscription(topic), Selection.of()

    def assign(self, queues: set[MessageQueue], expression: str | None, sql: str | None) -> None:
        if self._subscriptions:
            raise ValueError("this consumer has subscribed: it cannot be assigned queues as well")
        selection = Selection.of(expression, sql)
        for queue in queues:
            if queue not in self.broker.readable(queue.topic):
                raise ValueError(f"{queue} is not there to be read")
        self._is_assigned = True
        self._exchange([], [held for held in self.held.values() if held.queue not in queues])
        for held in self._turns:
            if held.selection is not selection:
                held.select(selection)
        gained = []
        for queue in sorted(queues - self.held.keys()):
            claim = AssignedQueue(self.broker, self.group, queue)
            start = self._first_offset(queue)
            gained.append(HeldQueue(self.broker, claim, selection, self._pull_count, start))
        self._exchange(gained, [])

    def look(self, count_max: int, now: float) -> tuple[HeldQueue, list[MessageExt]] | None:
        """A queue and a batch of its messages. None where one look at each queue found nothing; if at_end
        is False then, another look may."""
        self._do_what_is_due(now)
        turns = self._turns
        self.at_end = True
        for _ in range(len(turns)):
            held = turns[0]
            if held.queue not in self.paused:
                if not held.cached and self._pull(held, count_max):
                    self.at_end = False
                if held.cached:
                    taken = held.take(count_max)
                    if not held.cached:
                        turns.rotate(-1)
                    if self._noted_at is None or now - self._noted_at >= NOTE_SECONDS:
                        self._noted_at = now
                        self._note(f"its consumer asked for messages last at {strftime('%H:%M:%S')}")
                    return held, taken
            turns.rotate(-1)
        return None

    def positions(self, now: float) -> list[Position]:
        """Where messages would be news, for who waits."""
        if self._noted_at is not None and now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = None
            self._note("")
        return [
            (held.queue, held.pulled_to, held.selection.hashes)
            for held in self._turns
            if held.queue not in self.paused
        ]

    def due(self) -> float:
        """When to look again at the latest, whatever happens."""
        due = self._round_due
        if self._auto_commit and any(held.is_behind for held in self._turns):
            due = min(due, self._commit_due)
        return due if self._noted_at is None else min(due, self._noted_at + NOTE_SECONDS)

    def at(self, queue: MessageQueue) -> HeldQueue:
        """A queue that is held. Raises ValueError for any other."""
        try:
            return self.held[queue]
        except KeyError:
            have = ", ".join(f"{held.topic}/{held.queue_id}" for held in sorted(self.held)) or "none"
            raise ValueError(f"{queue} is not assigned to this consumer now, which has {have}") from None

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self.paused.add(queue)
            if queue in self.held:
                self.held[queue].claim.note(PAUSED)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self.paused.discard(queue)
            if queue in self.held:
                self.held[queue].claim.note("")

    def commit_given(self) -> None:
        """Commit all that was handed out."""
        for held in self._turns:
            held.commit(held.given)

    def close(self, *, is_finished: bool) -> None:
        """Commit what counts as consumed, give everything up and leave; is_finished: what is in hand too."""
        with suppress(BrokerClosed):
            for held in (*self._turns, *self._leaving):
                if is_finished:
                    held.in_hand.clear()
                if self._auto_commit:
                    held.commit(held.finished)
                held.claim.release()
            if self.membership is not None:
                self.membership.leave()
        self.held.clear()
        self._turns.clear()
        self._leaving.clear()

    def _resubscribe(self, wanted: dict[str, tuple[Subscription, Selection]]) -> None:
        subscriptions = sorted(subscription for subscription, _ in wanted.values())
        if self.membership is None:
            self.membership = self.broker.join(
                self.group,
                client_id=self.client_id,
                model="clustering",
                consume_type=self.consume_type,
                ordered=False,
                subscriptions=subscriptions,
                consume_from=self._consume_from,
            )
        else:
            self.membership.subscribe(subscriptions)
        self._subscriptions = wanted
        self._share(self.membership)

    def _do_what_is_due(self, now: float) -> None:
        membership = self.membership
        if self._leaving:
            self._release_what_is_finished()
        if membership is not None and (membership.version() != self.version or now >= self._round_due):
            self._round_due = now + ROUND_SECONDS
            self._share(membership)
        if now >= self._commit_due:
            self._commit_due = now + self._commit_interval
            if self._auto_commit:
                for held in self._turns:
                    held.commit(held.finished)

    def _share(self, membership: Membership) -> None:
        """Work out whose the queues are; claim what is ours, give up what is not."""
        version = membership.version()
        wanted = self._wanted(membership)
        leaving = {held.queue for held in self._leaving}
        gained = []
        for queue, selection in wanted.items():
            held = self.held.get(queue)
            if held is not None:
                held.heed_reset()
                if held.selection is not selection:
                    held.select(selection)
            elif queue not in leaving:
                claim = membership.claim(queue)
                if claim is not None:
                    gained.append(HeldQueue(self.broker, claim, selection, self._pull_count))
        self._exchange(gained, [held for held in self.held.values() if held.queue not in wanted])
        self.version = version

    def _wanted(self, membership: Membership) -> dict[MessageQueue, Selection]:
        """The queues that this member should have, as all members work them out."""
        members = membership.members()
        wanted: dict[MessageQueue, Selection] = {}
        for topic, (_, selection) in self._subscriptions.items():
            ids = [
                member.client_id
                for member in members
                if any(subscription.topic == topic for subscription in member.subscriptions)
            ]
            with suppress(TopicNotFound, NotPermitted):
                queues = self.broker.readable(topic)
                for queue in allocate(self._strategy, self.group, self.client_id, queues, ids):
                    wanted[queue] = selection
        return wanted

    def _exchange(self, gained: list[HeldQueue], lost: list[HeldQueue]) -> None:
        """Take some queues and give up others; the listener is told while both are held."""
        for held in gained:
            self.held[held.queue] = held
            self._turns.append(held)
            if held.queue in self.paused:
                held.claim.note(PAUSED)
        for held in lost:
            held.stop()
        try:
            if self._on_assignment is not None and self._subscriptions and (gained or lost):
                self._on_assignment({held.queue for held in gained}, {held.queue for held in lost})
        finally:
            for held in lost:
                if self.held.pop(held.queue, None) is held:
                    self._turns.remove(held)
                    self._leaving.append(held)
            self._release_what_is_finished()

    def _release_what_is_finished(self) -> None:
        for held in [held for held in self._leaving if not held.in_hand]:
            self._leaving.remove(held)
            if self._auto_commit:
                held.commit(held.finished)
            held.claim.release()

    def _first_offset(self, queue: MessageQueue) -> int:
        if self._consume_from == "first":
            return self.broker.min_offset(queue)
        if self._consume_from == "last":
            return self.broker.max_offset(queue)
        assert isinstance(self._consume_from, int)
        return self.broker.offset_at(queue, self._consume_from)

    def _pull(self, held: HeldQueue, count_max: int) -> bool:
        try:
            return held.pull(count_max)
        except (TopicNotFound, NotPermitted, ValueError):
            if self.membership is None or self.membership.version() == self.version:
                raise
            return True  # the topic has changed: whose its queues are is worked out first

    def _note(self, reason: str) -> None:
        for held in self._turns:
            if held.queue not in self.paused:
                held.claim.note(reason)


def check_count(option: str, value: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{option} is an int, not {type(value).__name__}")
    if not 1 <= value <= PULL_COUNT_MAX:
        raise ValueError(f"{option} is {value}, must be 1 to {PULL_COUNT_MAX:,}")


def _check_consume_from(consume_from: str | int) -> None:
    if consume_from not in ("first", "last") and not (isinstance(consume_from, int) and consume_from >= 0):
        raise ValueError(f"consume_from is {consume_from!r}: give 'first', 'last', or a time in ms")
