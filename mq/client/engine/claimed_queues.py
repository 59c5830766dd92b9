"""Which queues a consumer has, of every kind: worked out, claimed, drained, given up.

Every rebalance asks for the members and the queues, works out which are this member's, and claims those that
it does not have. A queue that another live member still has is claimed when that one releases it. A queue
that must go is drained: nothing new is begun, what is in hand is finished and committed, and then it is
released; so nothing is delivered twice, and no two members ever have the same message.

A broadcasting consumer has all queues, and claims none: its offsets are its own. A consumer that is told its
queues claims them without a question to anybody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from mq.api.broker import Broker
from mq.api.group import Assigned, BroadcastOffsets, Claim, Membership
from mq.api.results import MessageQueue
from mq.client.engine.delivery import Delivery
from mq.client.engine.owned_queue import OwnedQueue
from mq.client.engine.queue_assignment import AnyStrategy, allocate, sharing, takes_retries
from mq.client.listener import name_of, raise_returned
from mq.errors import (
    BrokerClosed,
    ForkedBroker,
    MQError,
    NotPermitted,
    RemotingError,
    RequestTimeout,
    TopicNotFound,
)

logger = logging.getLogger("mq.consumer")

SAVE_SECONDS = 5.0

# Told of a topic whose queues of this consumer have changed: all queues, and those that it has.
AssignmentListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], object]


class ClaimedQueues:
    """The queues of one consumer. One thread at a time changes them, under `lock`, which other threads of the
    consumer take too.

    What fails is logged and tried again soon; for a consumer whose caller is there to be told (`raises`) it
    is raised, unless other brokers of a cluster have queues for it.
    """

    def __init__(
        self,
        broker: Broker,
        group: str,
        client_id: str,
        deliveries: Mapping[str, Delivery],
        *,
        strategy: AnyStrategy,
        listener: AssignmentListener | None,
        raises: bool = False,
        local: BroadcastOffsets | None = None,
    ) -> None:
        self.client_id: Final = client_id
        self.group: Final = group
        self.owned: Final[dict[MessageQueue, OwnedQueue]] = {}
        self._broker = broker
        self._deliveries = deliveries  # by topic; the consumer adds to it
        self.lock: Final = threading.Lock()
        self._strategy = strategy
        self._listener = listener
        self._raises = raises
        self._local = local
        self._worked_out: object = None  # from what `_wanted` was
        self._all: dict[str, Sequence[MessageQueue]] = {}
        self._wanted: dict[str, list[MessageQueue]] = {}
        self._trouble = ""
        self._reported: dict[str, list[MessageQueue]] = {}
        self._save_at: float | None = None
        self._troubles: dict[MessageQueue, str] = {}  # why a queue could not be claimed
        # Being claimed or given up; for longer where an interrupt came.
        self._unsettled: set[MessageQueue] = set()

    def rebalance(self, membership: Membership, is_closing: bool = False) -> bool:
        """Have what is this member's, and drain what is not. False: not everything could be had, try again
        soon."""
        if self._unsettled:
            self._settle(membership)
        is_complete = True
        if is_closing:
            self._wanted = {}
        else:
            is_complete = self._work_out(membership)
        wanted = {queue for queues in self._wanted.values() for queue in queues}
        with self.lock:
            for owned in list(self.owned.values()):
                if not owned.claim.is_lost():
                    self._keep_or_drain(owned, wanted)
                    owned.trouble_of_group = self._trouble
                    owned.apply_reset()  # Which may find out that it is lost.
                if owned.claim.is_lost() and owned.lose():
                    self.give_up(owned)
        failures: list[tuple[MessageQueue, MQError]] = []
        for queue in sorted(wanted - self.owned.keys()):
            try:
                is_complete &= self._take_over(queue, membership)
            except (RemotingError, RequestTimeout) as error:  # Where it raises: of one broker of several.
                failures.append((queue, error))
        self._report()
        if failures and not self.owned:
            raise failures[0][1]
        for queue, failure in failures:
            self._note_trouble(queue, failure)
        return is_complete and not failures

    def have(
        self, queues: AbstractSet[MessageQueue], assigned: Assigned, start: Callable[[MessageQueue], int]
    ) -> None:
        """Have these queues and no others, whether or not others have them. `start` says where to begin
        with one that the group has no offset of."""
        for owned in self.owned.values():
            self._keep_or_drain(owned, queues)
        for queue in sorted(queues - self.owned.keys()):
            claim, offset = assigned.claim(queue), start(queue)
            self.owned[queue] = OwnedQueue(self._broker, claim, self._deliveries[queue.topic], offset)

    def is_mine(self, queue: MessageQueue) -> bool:
        """Whether this consumer has a queue, and is not giving it up."""
        owned = self.owned.get(queue)
        return owned is not None and not owned.is_draining

    def mine(self) -> set[MessageQueue]:
        # A copy, and no lock: a signal handler may ask for what its thread does.
        return {queue for queue, owned in list(self.owned.items()) if not owned.is_draining}

    def give_up(self, owned: OwnedQueue) -> None:
        """Release a queue. Under the lock."""
        self._unsettled.add(owned.queue)
        self.owned.pop(owned.queue, None)
        owned.claim.release()
        self._unsettled.discard(owned.queue)

    @property
    def is_unsettled(self) -> bool:
        """Whether an interrupt came where a queue was claimed or given up: the next rebalance sees to it."""
        return bool(self._unsettled)

    def _settle(self, membership: Membership) -> None:
        with self.lock:
            for queue in list(self._unsettled):
                if queue not in self.owned and self._local is None:
                    claim = membership.claim(queue)  # the one that there is, if there is one
                    if claim is not None:
                        claim.release()
                self._unsettled.discard(queue)

    def save(self, now: float) -> float:
        """Put a broadcasting consumer's offsets on disk when it is time. When to do so next."""
        local = self._local
        if local is None or not local.is_dirty:
            return float("inf")
        if self._save_at is None:
            self._save_at = now + SAVE_SECONDS
        elif now >= self._save_at:
            try:
                self._save_at = None  # Before: what is committed meanwhile has a time of its own.
                local.save()
                return float("inf")
            except (MQError, OSError) as error:
                logger.error("group %s: offsets could not be saved: %s", self.group, error)
                self._save_at = now + SAVE_SECONDS
        return self._save_at

    def is_unsaved(self) -> bool:
        """Whether there is something to save, and no time set for it."""
        return self._save_at is None and self._local is not None and self._local.is_dirty

    def leave(self, membership: Membership) -> None:
        """Be gone from the group."""
        local = self._local
        try:
            if local is not None:
                local.save()
        finally:
            if local is not None:
                local.close()
            membership.leave()

    def _keep_or_drain(self, owned: OwnedQueue, wanted: AbstractSet[MessageQueue]) -> None:
        owned.is_draining = owned.queue not in wanted
        delivery = self._deliveries.get(owned.queue.topic)
        if delivery is not None:
            owned.deliver_by(delivery)
        if owned.is_draining:
            owned.is_drained()

    def _work_out(self, membership: Membership) -> bool:
        route_version = self._broker.route_version()
        members: tuple[tuple[str, bool], ...] = ()
        if self._local is None:
            members = tuple((each.client_id, takes_retries(each)) for each in membership.members())
        facts = route_version, members, tuple(self._deliveries)
        if facts == self._worked_out:
            return True
        self._worked_out = None
        troubles = []
        wanted: dict[str, list[MessageQueue]] = {}
        self._all = {}
        for topic in list(self._deliveries):
            try:
                queues = self._broker.readable(topic)
            except (TopicNotFound, NotPermitted):
                continue
            self._all[topic] = queues
            if self._local is not None:
                wanted[topic] = list(queues)
                continue
            try:
                client_ids = sharing(topic, members)
                wanted[topic] = allocate(self._strategy, self.group, self.client_id, queues, client_ids)
            except (BrokerClosed, ForkedBroker):
                raise
            except Exception as error:
                if self._raises:
                    raise
                troubles.append(f"allocate failed for {topic}: {error!r}")
                kept = set(self._wanted.get(topic, ()))
                wanted[topic] = [queue for queue in queues if queue in kept]
        self._wanted = wanted
        trouble = "; ".join(troubles)
        if trouble and trouble != self._trouble:
            logger.error(
                "consumer %s of group %s keeps the queues it has: %s", self.client_id, self.group, trouble
            )
        self._trouble = trouble
        self._worked_out = None if trouble else facts
        return not trouble

    def _take_over(self, queue: MessageQueue, membership: Membership) -> bool:
        """Claim a queue, if nobody else has it. False: something went wrong."""
        claim: Claim | None = None
        self._unsettled.add(queue)
        try:
            if self._local is not None:
                claim = self._local.claim(queue, membership)
            else:
                claim = membership.claim(queue)
            if claim is None:
                self._unsettled.discard(queue)
                return True
            delivery = self._deliveries.get(queue.topic)
            if delivery is None:  # Another thread has unsubscribed since this was worked out.
                claim.release()
                self._unsettled.discard(queue)
                return False
            owned = OwnedQueue(self._broker, claim, delivery)
            owned.trouble_of_group = self._trouble
        except (BrokerClosed, ForkedBroker):
            raise
        except Exception as error:
            if claim is not None:
                claim.release()
            self._unsettled.discard(queue)
            if self._raises:
                if isinstance(error, (TopicNotFound, NotPermitted, ValueError)):
                    return False  # It has gone since it was listed, and will not be listed again.
                raise
            self._note_trouble(queue, error)
            return False
        self._troubles.pop(queue, None)
        with self.lock:
            self.owned[queue] = owned
        self._unsettled.discard(queue)
        return True

    def _note_trouble(self, queue: MessageQueue, error: Exception) -> None:
        text = f"{queue.topic}/{queue.queue_id} could not be claimed: {error}"
        if text != self._troubles.get(queue):
            logger.error("consumer %s of group %s: %s", self.client_id, self.group, text)
        self._troubles[queue] = text

    def _report(self) -> None:
        """Tell the listener of assignments what has changed."""
        if self._listener is None:
            return
        now: dict[str, list[MessageQueue]] = {}
        with self.lock:
            for queue in sorted(self.mine()):
                now.setdefault(queue.topic, []).append(queue)
        before, self._reported = self._reported, now
        for topic in sorted(now.keys() | before.keys()):
            mine = now.get(topic, [])
            if mine != before.get(topic, []):
                try:
                    told = self._listener(topic, tuple(self._all.get(topic, ())), tuple(mine))
                    raise_returned(told, name_of(self._listener))
                except Exception:
                    if self._raises:
                        raise
                    logger.exception("group %s: the listener of assignments failed", self.group)
