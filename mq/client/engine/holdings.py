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

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from time import strftime
from typing import Final

from mq.api.broker import Broker, MessageQueue
from mq.api.group import Assigned, Membership, Subscription, Versioned
from mq.client.engine.agreement import check_agreement
from mq.client.engine.held_queue import HeldQueue
from mq.client.engine.limits import check_consumer
from mq.client.engine.rebalance import (
    AnyStrategy,
    allocate,
    sharing,
    takes_retries,
)
from mq.client.identity import new_client_id
from mq.client.listener import name_of, raise_returned
from mq.errors import BrokerClosed, NotPermitted, StoreCorrupted, TopicNotFound
from mq.filter.selection import Selection
from mq.message import MessageExt
from mq.names import RETRY_PREFIX, check_topic
from mq.uninterrupted import uninterrupted

ROUND_SECONDS: Final = 20.0  # at least so often it looks whose the queues are, told or not
NOTE_SECONDS: Final = 1.0  # at most so often it says when it was asked
PAUSED: Final = "paused by its consumer"

# Told of a topic whose queues of this consumer have changed: all queues, and those that it has.
AssignmentListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], object]
Position = tuple[MessageQueue, int, "frozenset[int] | bytes | None"]


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
        listener: AssignmentListener | None,
        client_id: str | None,
    ) -> None:
        check_consumer(group, consume_from, pull_count, auto_commit_interval, strategy, listener)
        self.group: Final = group
        self.client_id: Final = client_id or new_client_id()
        self.broker: Final = broker
        self.membership: Membership | None = None
        self.is_closed = False
        self._joining = threading.Lock()  # one joins, or closes: an interrupt ends neither
        self.assigned: Assigned | None = None
        self.version = -1  # of either, as it was when it was last looked at what is held
        self.held: Final[dict[MessageQueue, HeldQueue]] = {}
        self.paused: Final[set[MessageQueue]] = set()
        self._auto_commit = auto_commit
        self._commit_interval = auto_commit_interval
        self._consume_from = consume_from
        self._pull_count = pull_count
        self._strategy = strategy
        self._listener = listener
        self._subscriptions: dict[str, Subscription] = {}
        self._selections: dict[str, Selection] = {}  # by topic, the retry topic too for who takes retries
        self._topics: dict[str, Sequence[MessageQueue]] = {}  # all their queues
        self._facts: object = None  # from which it was worked out whose the queues are, last
        self._wanted_by_facts: dict[MessageQueue, Selection] = {}
        self._is_assigned = self._takes_retries = False
        self._last: tuple[HeldQueue, MessageExt] | None = None  # what was handed out last
        self._is_of_loop = False
        self._leaving: list[HeldQueue] = []
        self._turns: deque[HeldQueue] = deque()  # who is asked first
        self._commit_due = self._round_due = 0.0
        self._noted_at: float | None = None
        self.at_end = False

    @property
    def watched(self) -> Versioned | None:
        """What has another version when there is something to look at."""
        return self.assigned if self.membership is None else self.membership

    def check_told(self) -> None:
        """Raises ValueError where it was never said what to consume."""
        if not self._subscriptions and not self._is_assigned:
            raise ValueError("nothing to consume: subscribe to a topic, or assign queues, first")

    def subscribe(self, topic: str, expression: str | None, sql: str | None) -> None:
        """Want a topic. The group is joined with all that is wanted at the first look, so that members which
        subscribe to several topics one by one agree; but a new group's end is where it is now."""
        check_topic(topic)
        if self._is_assigned:
            raise ValueError("this consumer was assigned its queues: it cannot subscribe as well")
        selection = Selection.of(expression, sql)
        if sql is not None:
            wanted = Subscription(topic, sql.strip(), "SQL92")
        else:
            wanted = Subscription(topic, (expression or "*").strip() or "*")
        if self.membership is None:
            check_agreement(self.broker, self.group, wanted)
            if self._consume_from == "last":
                self._begin_at_the_end(topic)
        self._resubscribe({**self._subscriptions, topic: wanted})
        self._selections[topic] = selection
        self.version = -1

    def unsubscribe(self, topic: str) -> None:
        if topic not in self._subscriptions:
            raise ValueError(f"{topic!r} is none of the topics subscribed to: {sorted(self._subscriptions)}")
        self._resubscribe({known: of for known, of in self._subscriptions.items() if known != topic})
        del self._selections[topic]
        if self.membership is not None:
            self._share(self.membership)

    def enter(self) -> None:
        """Be a member of the group, and have the queues that are free."""
        if self.membership is None and self._subscriptions:
            membership = uninterrupted(self._join)
            if membership is not None:
                self._share(membership)

    def _join(self) -> Membership | None:
        with self._joining:
            if self.membership is None and not self.is_closed:
                self.membership = self.broker.join(
                    self.group,
                    client_id=self.client_id,
                    model="clustering",
                    consume_type="push" if self._takes_retries else "pull",
                    ordered=False,
                    subscriptions=sorted(self._subscriptions.values()),
                    # The end was sought when the topic was subscribed to: what came since is news.
                    consume_from="first" if self._consume_from == "last" else self._consume_from,
                )
            return self.membership

    def take_retries(self) -> None:
        """Consume what the group handed back as well, as who calls a listener does."""
        self._takes_retries = True
        self._selections[RETRY_PREFIX + self.group] = Selection.of()
        self.version = -1

    def assign(self, queues: set[MessageQueue], expression: str | None, sql: str | None) -> None:
        if self._subscriptions:
            raise ValueError("this consumer has subscribed: it cannot be assigned queues as well")
        selection = Selection.of(expression, sql)
        for queue in queues:
            if queue not in self.broker.readable(queue.topic):
                raise ValueError(f"{queue} is not there to be read")
        self._is_assigned = True
        self._round_due = inf  # There is nobody to share the queues with.
        self._exchange([], [held for held in self.held.values() if held.queue not in queues])
        for held in self._turns:
            if held.selection is not selection:
                held.select(selection)
        if self.assigned is None:
            self.assigned = self.broker.assigned(self.group)
        gained = []
        for queue in sorted(queues - self.held.keys()):
            claim, start = self.assigned.claim(queue), self._first_offset(queue)
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
                if held.cached and held.claim.is_lost():
                    self.version, self.at_end = -1, False  # What is held is looked at first.
                elif held.cached:
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
            (held.queue, held.pulled_to, held.selection.wakes)
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
        self._last = None
        for held in self._turns:
            held.in_hand.clear()
            held.commit(held.given)

    def close(self, *, failed: bool) -> None:
        """Commit what counts as consumed, give everything up and leave. What was handed out last counts if
        nothing failed; the message at which a loop was left does not, since nobody knows why it was."""
        if not failed and not self._is_of_loop:
            self.finish_last()
        with self._joining, suppress(BrokerClosed):
            self.is_closed = True
            for held in (*self._turns, *self._leaving):
                if self._auto_commit:
                    held.commit(held.finished)
                held.claim.release()
            if self.membership is not None:
                self.membership.leave()
        for each in (self.held, self._turns, self._leaving):
            each.clear()

    def hand_out(self, held: HeldQueue, first: MessageExt, *, in_loop: bool) -> None:
        """Remember the batch that begins with this message, until it is asked for more."""
        self._last = held, first
        self._is_of_loop = in_loop

    def advance(self, now: float) -> MessageExt | None:
        """For a loop that asks for the next message: that of the queue which it is at, the one before being
        consumed. None where anything else is to be done first, such as a look."""
        if self._last is None or not self._is_of_loop or now >= self._round_due or now >= self._commit_due:
            return None
        held, first = self._last
        if (
            not held.cached
            or held.queue in self.paused
            or held.in_hand.pop(first.queue_offset, None) is not first
            or ((watched := self.watched) is not None and watched.version() != self.version)
        ):
            return None
        message = held.cached.popleft()
        held.in_hand[message.queue_offset] = message
        self._last = held, message
        return message

    def finish_last(self) -> None:
        """What was handed out last counts as consumed."""
        if self._last is not None:
            held, first = self._last
            self._last = None
            held.finish(first)

    def begin_loop(self) -> None:
        """A loop over messages begins. The message at which another one was left comes again."""
        if self._last is not None and self._is_of_loop:
            self._last = None
            self.put_back()

    def put_back(self) -> None:
        """What was handed out and is not finished comes again, and with it what came after."""
        for held in self._turns:
            held.put_back()

    def _resubscribe(self, wanted: dict[str, Subscription]) -> None:
        if self.membership is not None:
            self.membership.subscribe(sorted(wanted.values()))
        self._subscriptions = wanted

    def _begin_at_the_end(self, topic: str) -> None:
        """Let a group that has no offset of a topic begin with what comes from now on."""
        with suppress(TopicNotFound, NotPermitted):
            queues = self.broker.readable(topic)
            if not self.broker.group_offsets(self.group, topic):
                for queue in queues:
                    self.broker.commit(self.group, queue, self.broker.max_offset(queue))

    def _do_what_is_due(self, now: float) -> None:
        self.enter()
        membership = self.membership
        if self._leaving:
            self.release_what_is_finished()
        if membership is not None and (membership.version() != self.version or now >= self._round_due):
            self._round_due = now + ROUND_SECONDS
            self._share(membership)
        if self.assigned is not None and self.assigned.version() != self.version:
            self.version = self.assigned.version()
            for held in self._turns:
                held.heed_reset()
        if now >= self._commit_due:
            self._commit_due = now + self._commit_interval
            if self._auto_commit:
                for held in self._turns:
                    held.commit(held.finished)

    def _share(self, membership: Membership) -> None:
        """Work out whose the queues are; claim what is ours, give up what is not."""
        version = membership.version()
        wanted = self._wanted(membership)
        self._forget_what_is_lost()
        leaving = {held.queue for held in self._leaving}
        gained = []
        for queue, selection in wanted.items():
            held = self.held.get(queue)
            if held is not None:
                held.heed_reset()
                if held.selection is not selection:
                    held.select(selection)
            elif queue not in leaving:
                # A queue that has gone since it was listed is none: the version has grown by then.
                with suppress(TopicNotFound, NotPermitted, ValueError):
                    claim = membership.claim(queue)
                    if claim is not None:
                        gained.append(HeldQueue(self.broker, claim, selection, self._pull_count))
        self._exchange(gained, [held for held in self.held.values() if held.queue not in wanted])
        self.version = version

    def _forget_what_is_lost(self) -> None:
        """Queues that are another member's, since this process was stopped: nothing of them is committed."""
        for held in [held for held in (*self._turns, *self._leaving) if held.claim.is_lost()]:
            if held in self._leaving:
                self._leaving.remove(held)
            else:
                self._turns.remove(held)
                del self.held[held.queue]
            if self._last is not None and self._last[0] is held:
                self._last = None
            held.claim.release()

    def _wanted(self, membership: Membership) -> dict[MessageQueue, Selection]:
        """The queues that this member should have, as all members work them out."""
        members = [(member.client_id, takes_retries(member)) for member in membership.members()]
        facts = self.broker.route_version(), members, dict(self._selections)
        if facts == self._facts:
            return self._wanted_by_facts
        self._facts = None
        wanted: dict[MessageQueue, Selection] = {}
        self._topics = {}
        for topic, selection in self._selections.items():
            with suppress(TopicNotFound, NotPermitted):
                self._topics[topic] = queues = self.broker.readable(topic)
                client_ids = sharing(topic, members)
                for queue in allocate(self._strategy, self.group, self.client_id, queues, client_ids):
                    wanted[queue] = selection
        self._facts, self._wanted_by_facts = facts, wanted
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
            if self._listener is not None and not self._is_assigned:
                kept = sorted(self.held.keys() - {held.queue for held in lost})
                for topic in sorted({held.queue.topic for held in gained + lost}):
                    mine = [queue for queue in kept if queue.topic == topic]
                    told = self._listener(topic, self._topics.get(topic, ()), mine)
                    raise_returned(told, name_of(self._listener))
        finally:
            for held in lost:
                if self.held.pop(held.queue, None) is held:
                    self._turns.remove(held)
                    self._leaving.append(held)
            self.release_what_is_finished()

    def release_what_is_finished(self) -> bool:
        """Give up the queues that are to go and of which nothing is in hand any more; whether there were
        some."""
        finished = [held for held in self._leaving if not held.in_hand]
        for held in finished:
            self._leaving.remove(held)
            if self._auto_commit:
                held.commit(held.finished)
            held.claim.release()
        return bool(finished)

    def _first_offset(self, queue: MessageQueue) -> int:
        if self._consume_from == "first":
            return self.broker.min_offset(queue)
        if self._consume_from == "last":
            return self.broker.max_offset(queue)
        assert isinstance(self._consume_from, int)
        return self.broker.offset_at(queue, self._consume_from)

    def _pull(self, held: HeldQueue, count_max: int) -> bool:
        """Whether there may be more. Raises what the broker says of a queue that it cannot read."""
        try:
            return held.pull(count_max)
        except (TopicNotFound, NotPermitted, ValueError):
            if self.membership is None or self.membership.version() == self.version:
                raise
            return True  # the topic has changed: whose its queues are is worked out first
        except StoreCorrupted:
            self._turns.rotate(-1)  # the others have their turn at the next look
            raise

    def _note(self, reason: str) -> None:
        for held in self._turns:
            if held.queue not in self.paused:
                held.claim.note(reason)
