"""A remote member of a consumer group: its membership, and its queues.

It joins the group like a local consumer (mq.api.consumer_groups), so local and remote members see each other.
RocketMQ's clients do not claim a queue before they pull from it, and do not report its release. So a member's
first pull claims the queue for it; while another member owns the queue, its pulls wait and find nothing. The
queue is released

    - when the member unlocks it, leaves, or its connection is lost;
    - when the members have changed, the member has fetched the list since, the queue is no longer in its
      allocation, and it has not pulled from it for YIELD_SECONDS;
    - when the member has not used the queue for LEASE_SECONDS.

A client goes on by its own offset after such a release, and after it has reconnected. So it is remembered
which reset of the group's offset the client has heard of last: until it hears of a later one, nothing that it
commits is stored.

RocketMQ: broker/client/rebalance/RebalanceLockManager.java, client/impl/consumer/RebalanceImpl.java.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, NamedTuple

from mq.api.group import Assigned, Claim, Member, Membership, Resets, Subscription
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.client.engine.queue_assignment import allocate, sharing, takes_retries
from mq.errors import MQError
from mq.filter.selection import Selection
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup
from mq.remoting.server.transport.connection import Connection

__all__ = ["RemoteMember", "Wanted"]

log = logging.getLogger("mq.groups")

LEASE_SECONDS = 60.0  # the expiry time of a lock in RocketMQ
YIELD_SECONDS = 2.0


class Wanted(NamedTuple):
    """A subscription, its selection, and the time at which the client made it."""

    subscription: Subscription
    selection: Selection
    version: int


class Kept:
    """A queue that is claimed for the member."""

    __slots__ = ("claim", "is_locked", "knows_offset", "pull", "used_at")

    def __init__(self, claim: Claim, used_at: float, *, knows_offset: bool) -> None:
        self.claim = claim
        self.knows_offset = knows_offset  # The client has heard of every reset that the claim took note of.
        self.pull: Puller = claim.puller()
        self.used_at = used_at
        self.is_locked = False

    def is_current(self) -> bool:
        """Whether the client has heard of every reset of the offset."""
        if not self.claim.is_current():
            self.knows_offset = False  # A claim says only once that its queue is another one.
        return self.knows_offset


class RemoteMember:
    """Used by the loop and by threads of the pool."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        membership: Membership,
        wanted: Mapping[str, Wanted],
        assigned: Assigned,
        heard: dict[MessageQueue, Resets],
        *,
        model: str,
        consume_type: str,
        ordered: bool,
        data: ConsumerGroup,
    ) -> None:
        self.connection = connection
        self.group: Final = group
        self.client_id: Final = membership.client_id
        self.membership: Final = membership
        self.model: Final = model
        self.consume_type: Final = consume_type
        self.is_ordered: Final = ordered
        self.data: Final = data  # of the heartbeat with which it joined
        self.consume_from: Final = data.consume_from_where
        self.wanted = dict(wanted)
        self.heard: Final = heard  # the resets that the client knows of
        self.listed_at = 0.0  # when it last fetched the list of members
        self.members_seen: tuple[Member, ...] = ()
        self.members_changed_at = monotonic()
        self.version_seen = -1
        self._assigned = assigned
        self._kept: dict[MessageQueue, Kept] = {}
        self._shares: dict[str, tuple[object, frozenset[MessageQueue]]] = {}  # with what they follow from
        self._lock = threading.Lock()
        self._has_left = False

    def owned(self) -> list[MessageQueue]:
        return list(self._kept)

    def kept(self, queue: MessageQueue) -> Kept | None:
        """The queue if it is already claimed for the member."""
        kept = self._kept.get(queue)
        if kept is not None and kept.claim.is_lost():
            self._drop(queue, kept)
            return None
        return kept

    def have(self, queue: MessageQueue, asked_at: float | None = None) -> Kept | None:
        """Claim the queue for the member if necessary; None while another member owns it. asked_at: when the
        client asked for it, by default now. An answer that comes later is no use of the queue by the
        client."""
        if asked_at is None:
            asked_at = monotonic()
        kept = self.kept(queue)
        if kept is None:
            with self._lock:
                if self._has_left:
                    return None
                kept = self._kept.get(queue)
                if kept is None:
                    kept = self._claim(queue, asked_at)
                    if kept is None:
                        return None
        kept.used_at = max(kept.used_at, asked_at)
        return kept

    def _claim(self, queue: MessageQueue, asked_at: float) -> Kept | None:
        before = self._assigned.resets(queue)
        claim = self.membership.claim(queue)
        if claim is None:
            return None
        # The claim has taken note of each reset before it, also of one that came meanwhile.
        resets = self._assigned.resets(queue)
        knows_offset = not (before.since(self.heard.get(queue)) or resets.since(before))
        if knows_offset:
            self.heard[queue] = resets
        kept = self._kept[queue] = Kept(claim, asked_at, knows_offset=knows_offset)
        return kept

    def is_current(self, queue: MessageQueue) -> bool:
        """Whether the client has heard of every reset of a queue's offset, claimed or not."""
        return not self._assigned.resets(queue).since(self.heard.get(queue))

    def tell_offset(self, queue: MessageQueue, read: Callable[[], int | None]) -> int | None:
        """The group's offset, to be sent to the client, which has then heard of every reset. read: gives it
        for a queue that is not claimed."""
        kept = self.kept(queue)
        resets = self._assigned.resets(queue)
        offset = kept.claim.committed() if kept is not None else read()
        is_there = resets.number >= 0
        if is_there:
            self.heard[queue] = resets
        if kept is not None:
            kept.knows_offset = is_there and not self._assigned.resets(queue).since(resets)
        return offset

    def give_up(self, queue: MessageQueue) -> None:
        """Release the queue if it is claimed."""
        kept = self._kept.get(queue)
        if kept is not None:
            self._drop(queue, kept)

    def _drop(self, queue: MessageQueue, kept: Kept) -> None:
        with self._lock:
            if self._kept.get(queue) is kept:
                del self._kept[queue]
        kept.claim.release()

    def expire(self, readable: Callable[[str], tuple[MessageQueue, ...]]) -> None:
        """Release the queues that the member no longer uses. readable: the queues of a topic."""
        now = monotonic()
        has_listed = self.listed_at > self.members_changed_at and now - self.listed_at > YIELD_SECONDS
        for queue, kept in list(self._kept.items()):
            if now - kept.used_at > LEASE_SECONDS:
                reason = f"it was not used for {LEASE_SECONDS:g} s"
            elif (
                not kept.is_locked
                and has_listed
                and kept.used_at < self.listed_at
                and queue not in self._share(queue.topic, readable(queue.topic))
            ):
                reason = "the members have changed"
            else:
                continue
            log.info(
                "group %s: %s/%d is released for %s: %s",
                *(self.group, queue.topic, queue.queue_id, self.client_id, reason),
            )
            self._drop(queue, kept)

    def _share(self, topic: str, queues: tuple[MessageQueue, ...]) -> frozenset[MessageQueue]:
        """The member's share of a topic's queues by RocketMQ's default allocation strategy, cached."""
        basis = self.members_seen, queues
        known = self._shares.get(topic)
        if known is None or known[0] != basis:
            members = [(member.client_id, takes_retries(member)) for member in self.members_seen]
            ids = sharing(topic, members)
            share = frozenset(allocate("averagely", self.group, self.client_id, queues, ids))
            known = self._shares[topic] = basis, share
        return known[1]

    def leave(self) -> None:
        """Release all queues and leave the group."""
        with self._lock:
            if self._has_left:
                return
            self._has_left = True
            kept, self._kept = list(self._kept.values()), {}
        try:
            for each in kept:
                each.claim.release()
            self.membership.leave()
        except MQError as error:
            log.debug("group %s: %s left: %s", self.group, self.client_id, error)
