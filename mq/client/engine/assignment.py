"""Which queues a consumer has: worked out, claimed, drained, given up.

Every rebalance asks for the members and the queues, works out which are this member's, and claims those that
it does not have. A queue that another live member still has is claimed when that one lets go of it. A queue
that must go is drained: nothing new is begun, what runs ends and is committed, and then it is released; so
nothing is delivered twice, and no two members ever have the same message.

A broadcasting consumer has all queues, and claims none: its offsets are its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from mq.api.broker import Broker
from mq.api.group import BroadcastOffsets, Claim, Membership
from mq.api.results import MessageQueue
from mq.client.engine.delivery import Delivery
from mq.client.engine.puller import OwnedQueue
from mq.client.engine.rebalance import AnyStrategy, allocate, sharing, takes_retries
from mq.client.listener import name_of, raise_returned
from mq.errors import BrokerClosed, ForkedBroker, MQError, NotPermitted, TopicNotFound
from mq.names import RETRY_PREFIX

logger = logging.getLogger("mq.consumer")

SAVE_SECONDS = 5.0

# Told of a topic whose queues of this consumer have changed: all queues, and those that it has.
AssignmentListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], object]


class Assignment:
    """The queues of one consumer. The leader alone changes them, under the lock of the consumer."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        membership: Membership,
        deliveries: dict[str, Delivery],
        *,
        strategy: AnyStrategy,
        local: BroadcastOffsets | None,
        consume_from: str | int,
        listener: AssignmentListener | None,
    ) -> None:
        self.membership: Final = membership
        self.client_id: Final = membership.client_id
        self.group: Final = group
        self.owned: Final[dict[MessageQueue, OwnedQueue]] = {}
        self._broker = broker
        self._deliveries = deliveries  # by topic; the consumer adds to it
        self._strategy = strategy
        self._local = local
        self._consume_from = consume_from
        self._listener = listener
        self._worked_out: object = None  # from what `_wanted` was
        self._all: dict[str, Sequence[MessageQueue]] = {}
        self._wanted: dict[str, list[MessageQueue]] = {}
        self._trouble = ""
        self._reported: dict[str, list[MessageQueue]] = {}
        self._save_at: float | None = None
        self._troubles: dict[MessageQueue, str] = {}  # why a queue could not be claimed

    def rebalance(self, lock: threading.Lock, is_closing: bool) -> bool:
        """Have what is this member's and give up what is not. False: not everything could be asked for, try
        again soon."""
        is_complete = True
        if is_closing:
            self._wanted = {}
        else:
            is_complete = self._work_out()
        wanted = {queue for queues in self._wanted.values() for queue in queues}
        with lock:
            for queue, owned in list(self.owned.items()):
                if owned.claim.is_lost():
                    if owned.lose():
                        self.give_up(owned)
                    continue
                delivery = self._deliveries.get(queue.topic)
                if delivery is not None:
                    owned.delivery = delivery
                if queue not in wanted:
                    owned.is_draining = True
                    continue
                owned.is_draining = False
                owned.trouble_of_group = self._trouble
                owned.commit()  # notices a reset
        for queue in sorted(wanted - self.owned.keys()):
            is_complete &= self._take_over(queue, lock)
        self._report(lock)
        return is_complete

    def give_up(self, owned: OwnedQueue) -> None:
        """Release a queue. Under the lock."""
        self.owned.pop(owned.queue, None)
        owned.claim.release()

    def save(self, now: float) -> float:
        """Put a broadcasting consumer's offsets on disk when it is time. When to do so next."""
        local = self._local
        if local is None or not local.is_dirty:
            return float("inf")
        if self._save_at is None:
            self._save_at = now + SAVE_SECONDS
        elif now >= self._save_at:
            try:
                local.save()
                self._save_at = None
                return float("inf")
            except (MQError, OSError) as error:
                logger.error("group %s: offsets could not be saved: %s", self.group, error)
                self._save_at = now + SAVE_SECONDS
        return self._save_at

    def _is_unsaved(self) -> bool:
        """Whether there is something to save, and no time set for it."""
        return self._save_at is None and self._local is not None and self._local.is_dirty

    def leave(self) -> None:
        """Be gone from the group."""
        local = self._local
        try:
            if local is not None:
                local.save()
        finally:
            if local is not None:
                local.close()
            self.membership.leave()

    def begin(self, topic: str) -> None:
        """Set where a broadcasting consumer begins with a topic that it has no offset of."""
        if self._local is not None:
            self._local.begin(topic, self._consume_from)

    def _work_out(self) -> bool:
        route_version = self._broker.route_version()
        members: tuple[tuple[str, bool], ...] = ()
        if self._local is None:
            members = tuple((each.client_id, takes_retries(each)) for each in self.membership.members())
        facts = route_version, members, tuple(self._deliveries)
        if facts == self._worked_out:
            return True
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
            except Exception as error:  # noqa: BLE001 - a callable may raise anything
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

    def _take_over(self, queue: MessageQueue, lock: threading.Lock) -> bool:
        """Claim a queue, if nobody else has it. False: something went wrong."""
        broker = self._broker
        try:
            claim: Claim | None
            if self._local is not None:
                claim = self._local.claim(queue, self.membership)
            else:
                claim = self.membership.claim(queue)
            if claim is None:
                return True
            owned = OwnedQueue(
                queue,
                claim,
                broker.puller(queue, claim),
                self._deliveries[queue.topic],
                partial(broker.min_offset, queue),
                queue.topic.startswith(RETRY_PREFIX),
                self._is_unsaved,
            )
            owned.trouble_of_group = self._trouble
        except (BrokerClosed, ForkedBroker):
            raise
        except Exception as error:  # noqa: BLE001 - the other queues are consumed all the same
            text = f"{queue.topic}/{queue.queue_id} could not be claimed: {error}"
            if text != self._troubles.get(queue):
                logger.error("consumer %s of group %s: %s", self.client_id, self.group, text)
            self._troubles[queue] = text
            return False
        self._troubles.pop(queue, None)
        with lock:
            self.owned[queue] = owned
        return True

    def _report(self, lock: threading.Lock) -> None:
        """Tell the listener of assignments what has changed."""
        if self._listener is None:
            return
        now: dict[str, list[MessageQueue]] = {}
        with lock:
            for queue, owned in sorted(self.owned.items()):
                if not owned.is_draining:
                    now.setdefault(queue.topic, []).append(queue)
        for topic in sorted(now.keys() | self._reported.keys()):
            mine = now.get(topic, [])
            if mine != self._reported.get(topic, []):
                try:
                    told = self._listener(topic, tuple(self._all.get(topic, ())), tuple(mine))
                    raise_returned(told, name_of(self._listener))
                except Exception:
                    logger.exception("group %s: the listener of assignments failed", self.group)
        self._reported = now
