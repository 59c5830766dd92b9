"""What a consumer that asks for messages does each time: what is due, and then one look at its queues.

A consumer either subscribes, and shares the queues of its topics with the other members of its group, or is
assigned certain queues, and shares them with nobody. `look` rebalances when the group has changed, commits,
and hands out messages, without waiting. When there are none, the consumer waits in whatever way suits it, for
`positions`, for `version`, and until `due`. The caller holds a lock, and brings the time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from typing import Final

from mq.api.beginning import first_offset
from mq.api.broker import Broker, MessageQueue
from mq.api.group import Assigned, Membership, Subscription
from mq.api.waiter import Versioned
from mq.client.engine.claimed_queues import ClaimedQueues
from mq.client.engine.delivery import Delivery, Listener, unheard
from mq.client.engine.handed_out import HandedOut
from mq.client.engine.last_asked import PAUSED, LastAsked
from mq.client.engine.options import PullOptions
from mq.client.engine.owned_queue import ConsumeRequest, OwnedQueue, Unconsumed
from mq.client.engine.subscriptions import check_agreement, subscription_of
from mq.client.identity import new_client_id
from mq.errors import BrokerClosed, NotPermitted, StoreCorrupted, TopicNotFound
from mq.filter.selection import Selection
from mq.message import MessageExt
from mq.names import RETRY_PREFIX
from mq.uninterrupted import uninterrupted

LOCK_SECONDS: Final = 0.2  # a poll waits at least so long for a lock that others hold for a moment
ROUND_SECONDS: Final = 20.0  # at least so often it looks whose the queues are, told or not
BATCH_COUNT_MAX: Final = 65_536  # more than is ever pulled at once
RETRY_SECONDS: Final = 1.0  # until it looks again where not every queue could be claimed

Position = tuple[MessageQueue, int, "frozenset[int] | bytes | None"]


class PollLoop:
    """The queues of one consumer, and its place in the group, from the first question on."""

    def __init__(self, broker: Broker, options: PullOptions) -> None:
        self.client_id: Final = options.client_id or new_client_id()
        self.membership: Membership | None = None
        self.assigned: Assigned | None = None
        self.is_closed = False
        self.version = -1  # of either, as it was when it was last looked at what is owned
        self.at_end = False
        self.is_cut_short = False  # An exception ended a call that hands out messages.
        self.paused: Final[set[MessageQueue]] = set()
        self._broker = broker
        self._options = options
        self._joining = threading.Lock()  # one joins, or closes: an interrupt ends neither
        self._subscriptions: dict[str, Subscription] = {}
        self._deliveries: dict[str, Delivery] = {}  # by topic, the retry topic too where retries are taken
        self._listener: Listener = unheard
        self._is_assigned = self._takes_retries = False
        self._claimed: Final = ClaimedQueues(
            broker,
            options.group,
            self.client_id,
            self._deliveries,
            strategy=options.allocate,
            listener=options.assignment_listener,
            raises=True,
        )
        self._owned: Final = self._claimed.owned
        self._round: deque[OwnedQueue] = deque()  # the one that is asked first in front
        self.handed_out: Final = HandedOut()
        self._is_draining = False  # one of the queues at least
        self._is_ending = False  # all are, for good
        self._commit_due = self._round_due = 0.0
        self._last_asked: Final = LastAsked(self._owned, self.paused)

    # What to consume.

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
        wanted, selection = subscription_of(topic, expression, sql)
        if self._is_assigned:
            raise ValueError("this consumer was assigned its queues: it cannot subscribe as well")
        if self.membership is None:
            check_agreement(self._broker, self._options.group, wanted)
        if self._options.consume_from == "last" and topic not in self._subscriptions:
            self._broker.consumer_groups.begin_at_the_end(self._options.group, topic, self._broker)
        self._resubscribe({**self._subscriptions, topic: wanted})
        self._deliveries[topic] = Delivery(topic, selection, self._listener)
        self.version = -1

    def unsubscribe(self, topic: str) -> None:
        if topic not in self._subscriptions:
            raise ValueError(f"{topic!r} is none of the topics subscribed to: {sorted(self._subscriptions)}")
        self._resubscribe({known: of for known, of in self._subscriptions.items() if known != topic})
        del self._deliveries[topic]
        if self.membership is not None:
            self._rebalance(self.membership)

    def enter(self) -> None:
        """Be a member of the group, and have the queues that are free."""
        if self.membership is None and self._subscriptions:
            membership = uninterrupted(self._join)
            if membership is not None:
                self._rebalance(membership)

    def listen(self, listener: Listener) -> None:
        """Hand the messages to a listener, and what the group sent back too."""
        self._listener = listener
        for delivery in self._deliveries.values():
            delivery.listener = listener
        if not self._takes_retries and not self._is_assigned:
            self._takes_retries = True
            retry = RETRY_PREFIX + self._options.group
            self._deliveries[retry] = Delivery(retry, Selection.of(), listener)
            self.version = -1
            if self.membership is not None:
                self._leave_as_one_that_asks(self.membership)

    def assign(self, queues: set[MessageQueue], expression: str | None, sql: str | None) -> None:
        if self._subscriptions:
            raise ValueError("this consumer has subscribed: it cannot be assigned queues as well")
        selection = Selection.of(expression, sql)
        for queue in queues:
            if queue not in self._broker.readable(queue.topic):
                raise ValueError(f"{queue} is not there to be read")
        self._is_assigned = True
        self._round_due = inf  # There is nobody to share the queues with.
        broker, group, begin = self._broker, self._options.group, dict[str, str | int]()
        for topic in {queue.topic for queue in queues}:
            self._deliveries[topic] = Delivery(topic, selection, self._listener)
            begin[topic] = self._options.consume_from
            if begin[topic] == "last" and broker.consumer_groups.begin_at_the_end(group, topic, broker):
                # A queue without an offset was made later, or the group was only ever assigned others: where
                # nobody can tell which, all of it is delivered, so that nothing is skipped.
                begin[topic] = "first"
        if self.assigned is None:
            self.assigned = broker.consumer_groups.assigned(group)
        try:
            self._claimed.have(
                queues, self.assigned, lambda queue: first_offset(broker, queue, begin[queue.topic])
            )
        finally:
            self._take_note()

    def _join(self) -> Membership | None:
        with self._joining:
            if self.membership is None and not self.is_closed:
                consume_from = self._options.consume_from
                self.membership = self._broker.consumer_groups.join(
                    self._options.group,
                    client_id=self.client_id,
                    model="clustering",
                    consume_type="push" if self._takes_retries else "pull",
                    ordered=False,
                    subscriptions=sorted(self._subscriptions.values()),
                    # The end was sought when the topic was subscribed to: what came since is news.
                    consume_from="first" if consume_from == "last" else consume_from,
                )
            return self.membership

    def _leave_as_one_that_asks(self, membership: Membership) -> None:
        """Have the next look join as one that listens: what the group sent back comes to those alone."""
        for owned in list(self._owned.values()):
            if self._options.auto_commit or owned.is_sought:
                owned.commit()
            self._claimed.give_up(owned)
        self._round.clear()
        uninterrupted(lambda: self._leave(membership))

    def _leave(self, membership: Membership) -> None:
        with self._joining:
            membership.leave()
            self.membership = None

    def drain(self) -> None:
        """Begin nothing more; what is in hand is finished."""
        self._is_ending = self._is_draining = True
        for owned in self._round:
            owned.is_draining = True

    def _resubscribe(self, wanted: dict[str, Subscription]) -> None:
        if self.membership is not None:
            self.membership.subscribe(sorted(wanted.values()))
        self._subscriptions = wanted

    # Whose the queues are.

    def _rebalance(self, membership: Membership) -> bool:
        """False: not everything could be had, try again soon."""
        version = membership.version()
        try:
            is_complete = self._claimed.rebalance(membership, self._is_ending)
        finally:
            self._take_note()
        self.version = version
        return is_complete

    def _take_note(self) -> None:
        """Of queues that came and went, after the assignment changed."""
        known = set(self._round)
        for queue, owned in self._owned.items():
            if owned not in known:
                self._round.append(owned)
                if queue in self.paused:
                    owned.set_status(PAUSED)
        self._is_draining = True
        self.release_what_is_finished()

    def release_what_is_finished(self) -> bool:
        """Give up the queues that are to go and are finished; whether there were some."""
        if not self._is_draining:
            return False
        draining = [owned for owned in self._owned.values() if owned.is_draining]
        finished = [owned for owned in draining if owned.is_drained()]
        for owned in finished:
            if self._options.auto_commit:
                owned.commit()
            self._claimed.give_up(owned)
        self.version = -1 if self._claimed.is_unsettled else self.version
        self._round = deque(owned for owned in self._round if self._owned.get(owned.queue) is owned)
        self._is_draining = len(finished) < len(draining)  # Last: until then all this is done again.
        return bool(finished)

    # One look.

    def look(self, count_max: int, now: float, *, for_one: bool = False) -> ConsumeRequest | None:
        """Messages of one queue, at most so many; or `for_one` that takes all, as many as were pulled.
        Where one look at each queue found nothing, another one may if at_end is False then."""
        self._do_what_is_due(now)
        if self.is_closed:
            return None
        pull_count = max(count_max, self._options.pull_count)
        if for_one:
            count_max = BATCH_COUNT_MAX
        self.at_end = True
        for _ in range(len(self._round)):
            owned = self._round[0]
            if owned.queue not in self.paused:
                request = owned.take(count_max, now)
                if request is None and self._pull(owned, pull_count, now):
                    self.at_end = False
                    request = owned.take(count_max, now)
                if request is not None:
                    if not owned.claim.is_lost():
                        if not owned.cache.can_take(now):
                            self._round.rotate(-1)
                        self._last_asked.note(now)
                        return request
                    self.version, self.at_end = -1, False  # What is owned is looked at first.
            self._round.rotate(-1)
        return None

    def positions(self, now: float) -> list[Position]:
        """Where messages would be news, for a consumer that waits."""
        self._last_asked.forget(now)
        return [
            (owned.queue, owned.cache.next, owned.delivery.selection.wakes)
            for owned in self._round
            if owned.wants_more and owned.queue not in self.paused
        ]

    def due(self) -> float:
        """When to look again at the latest, whatever happens."""
        due = self._round_due
        for owned in self._round:
            if self._options.auto_commit and owned.is_behind:
                due = min(due, self._commit_due)
            if owned.cache.due is not None and owned.queue not in self.paused:
                due = min(due, owned.cache.due)
        return min(due, self._last_asked.until)

    def _do_what_is_due(self, now: float) -> None:
        self.enter()
        if self.is_closed:  # by the listener of assignments
            return
        self.release_what_is_finished()
        membership, assigned = self.membership, self.assigned
        if membership is not None and (membership.version() != self.version or now >= self._round_due):
            self._round_due = now + ROUND_SECONDS
            if not self._rebalance(membership):
                self._round_due = now + RETRY_SECONDS
        if assigned is not None and (version := assigned.version()) != self.version:
            self.version = version
            for owned in self._round:
                owned.apply_reset()
        if now >= self._commit_due:
            self._commit_due = now + self._options.auto_commit_interval
            if self._options.auto_commit:
                for owned in self._round:
                    owned.commit()

    def _pull(self, owned: OwnedQueue, count_max: int, now: float) -> bool:
        """Whether there may be more. Raises what the broker says of a queue that it cannot read."""
        if not owned.wants_more:
            return False
        try:
            if owned.is_restarting:
                owned.restart()
            pulled = owned.pull(count_max, now)
            if pulled is None:
                return owned.is_restarting
            owned.take_in(pulled)
            return True
        except (TopicNotFound, NotPermitted, ValueError):
            if self.membership is None or self.membership.version() == self.version:
                raise
            return True  # the topic has changed: whose its queues are is worked out first
        except StoreCorrupted as error:
            self._round.rotate(-1)  # the others have their turn at the next look
            if not owned.delivery.is_heard:
                raise
            owned.take_in(owned.pass_over(error))
            return True

    # What is in hand.

    def hand_out(self, request: ConsumeRequest, count_max: int, *, in_loop: bool) -> list[MessageExt]:
        """The first messages of a request. It is remembered, for the next ones."""
        return self.handed_out.begin(request, count_max, in_loop=in_loop)

    def advance(self, count_max: int, now: float, *, in_loop: bool) -> list[MessageExt]:
        """The next messages of the request that was handed out last, those before being consumed. None where
        it has no more, or anything else is to be done first, such as a look."""
        watched = self.membership or self.assigned
        if not self.handed_out.has_more or now >= self._round_due or now >= self._commit_due:
            return []
        if watched is None or watched.version() != self.version:
            return []
        return self.handed_out.next(count_max, in_loop=in_loop)

    def finish_last(self) -> None:
        """What was handed out last counts as consumed; what a loop was left at comes again."""
        if self.handed_out.is_left:
            self.begin_loop()
        self.handed_out.finish()

    def finish_last_poll(self) -> None:
        """What the last poll returned counts as consumed; the message that a loop is at does not yet."""
        if self.handed_out.is_of_loop:
            self.handed_out.keep()
        else:
            self.handed_out.finish()

    def finish(self, request: ConsumeRequest, unconsumed: Unconsumed) -> None:
        """What a listener had is consumed, but for what stays, and committed."""
        if request.owned.finish(request, unconsumed):
            request.owned.commit()

    def begin_loop(self) -> None:
        """A loop over messages begins. The message at which another one was left comes again."""
        if self.handed_out.is_of_loop:
            self.handed_out.keep()
            self.put_back()
        self.handed_out.is_left = False

    def mend(self) -> None:
        """Before any other call: what one that was cut short had taken, and told nobody of, comes again."""
        if self.is_cut_short:
            self.put_back()
            self.handed_out.is_left = self.is_cut_short = False

    def put_back(self) -> None:
        """What was handed out and is not finished comes again, with all after it."""
        for owned in self._owned.values():
            owned.put_back()
        self.handed_out.forget()

    @property
    def holds_back(self) -> bool:
        """Whether messages that could not be sent back wait here for another attempt. Those of assigned
        queues wait for long: they come again to who has the queue next."""
        return not self._is_assigned and any(
            owned.cache.due is not None and owned.queue not in self.paused for owned in self._round
        )

    # Asked for by the user.

    def at(self, queue: MessageQueue) -> OwnedQueue:
        """A queue that is owned. Raises ValueError for any other."""
        self.enter()
        if not self._claimed.is_mine(queue):
            mine = sorted(self._claimed.mine())
            have = ", ".join(f"{owned.topic}/{owned.queue_id}" for owned in mine) or "none"
            raise ValueError(f"{queue} is not assigned to this consumer now, which has {have}")
        return self._owned[queue]

    def mine(self) -> set[MessageQueue]:
        return self._claimed.mine()

    def position(self, queue: MessageQueue) -> int:
        """Where the next message that is handed out of a queue may be."""
        owned = self.at(queue)
        self.handed_out.keep()
        return owned.cache.given

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self.handed_out.keep()
        for queue in queues:
            self.paused.add(queue)
            if queue in self._owned:
                self._owned[queue].set_status(PAUSED)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self.paused.discard(queue)
            if queue in self._owned:
                self._owned[queue].set_status("")

    def commit_given(self) -> None:
        """Commit all that was handed out."""
        for owned in self._round:
            owned.finish_open()
            owned.commit()
            if owned.is_restarting:
                with suppress(TopicNotFound, NotPermitted, ValueError):
                    owned.restart()  # where the offset is now, and not at the next look
        self.handed_out.forget()

    def close(self, *, failed: bool) -> None:
        """Commit what counts as consumed, give everything up and leave: see HandedOut."""
        self.mend()
        if failed:
            self.handed_out.keep()
        else:
            self.finish_last_poll()
        with self._joining, suppress(BrokerClosed):
            self.is_closed = True
            for owned in self._round:
                if self._options.auto_commit:
                    owned.commit()
                owned.claim.release()
            if self.membership is not None:
                self.membership.leave()
        self._owned.clear()
        self._round.clear()
