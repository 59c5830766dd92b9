"""A remote member of a consumer group: its membership, and its queues.

It joins the group like a local consumer (mq.api.consumer_groups), so local and remote members see each other.
RocketMQ's clients do not claim a queue before they pull from it, and do not report its release. So a member's
first pull claims the queue for it; while another member owns the queue, its pulls wait and find nothing. The
queue is released

    - when the member unlocks it, leaves, or its connection is lost: what it had locked goes to nobody else
      then for LOCK_SECONDS after it locked it last, since it may go on with what it has by that lock. The
      same holds where this process dies;
    - when the members have changed, the member has fetched the list since, the queue is no longer in its
      allocation, and it has not pulled from it for YIELD_SECONDS;
    - when the member has not used the queue for LEASE_SECONDS.

A client that pulls from elsewhere than where the group was reset to is told where to go on. Until it does, or
asks for the offset, nothing that it commits is stored: what it sends may be older than the answer.

RocketMQ: broker/client/rebalance/RebalanceLockManager.java, client/impl/consumer/RebalanceImpl.java.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from math import inf
from time import monotonic
from typing import Final, NamedTuple

from mq.api.group import Claim, Member, Membership, Resets, Subscription
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.client.engine.queue_assignment import allocate, sharing, takes_retries
from mq.errors import MQError
from mq.filter.selection import Selection
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup
from mq.remoting.server.groups.known_resets import KnownResets
from mq.remoting.server.transport.connection import Connection

__all__ = ["RemoteMember", "Wanted"]

log = logging.getLogger("mq.groups")

LEASE_SECONDS = 60.0  # the expiry time of a lock in RocketMQ
YIELD_SECONDS = 2.0
# RocketMQ's clients trust a lock for 30 s, and wait for the answer for one.
LOCK_SECONDS = 35.0


class Wanted(NamedTuple):
    """A subscription, its selection, and the time at which the client made it."""

    subscription: Subscription
    selection: Selection
    version: int


class Kept:
    """A queue that is claimed for the member. lock: a claim says once that its queue is another one, so what
    is done about that is done by one thread; and a queue is used by the client, or released."""

    __slots__ = ("claim", "is_locked", "is_released", "knows_offset", "lock", "moved_to", "pull", "used_at")

    def __init__(self, claim: Claim, used_at: float, *, knows_offset: bool) -> None:
        self.claim = claim
        self.knows_offset = knows_offset  # The client has heard of every reset that the claim took note of.
        self.moved_to: tuple[int, Resets] | None = None  # It was told to go on there.
        self.pull: Puller = claim.puller()
        self.used_at = used_at
        self.is_released = False  # or about to be
        self.is_locked = False
        self.lock = threading.Lock()

    def use(self, asked_at: float) -> bool:
        """Whether the client has the queue still, which it asked for then."""
        with self.lock:
            self.used_at = max(self.used_at, asked_at)
            return not self.is_released


class RemoteMember:
    """Used by the loop and by threads of the pool."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        membership: Membership,
        wanted: Mapping[str, Wanted],
        known: KnownResets,
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
        self.known: Final = known
        self.listed_at = 0.0  # when it last fetched the list of members
        self.members_seen: tuple[Member, ...] = ()
        self.members_changed_at = monotonic()
        self.version_seen = -1
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
        if kept is not None and kept.use(asked_at):
            return kept
        with self._lock:
            if self._has_left:
                return None
            kept = self._kept.get(queue)
            if kept is not None and kept.use(asked_at):
                return kept
            return self._claim(queue, asked_at)

    def _claim(self, queue: MessageQueue, asked_at: float) -> Kept | None:
        before = self.known.now(queue)
        claim = self.membership.claim(queue)
        if claim is None:
            return None
        # The claim has taken note of each reset before it, also of one that came meanwhile.
        resets = self.known.now(queue)
        knows_offset = self.known.covers(queue, before) and not resets.since(before)
        if knows_offset:
            self.known.note(queue, resets)
        kept = self._kept[queue] = Kept(claim, asked_at, knows_offset=knows_offset)
        return kept

    def goes_on(self, queue: MessageQueue, kept: Kept, offset: int) -> bool:
        """Under the queue's lock: whether the client goes on where the group does. offset: from which it
        pulls, or which it commits; by that of move() it shows that it has heard of the reset."""
        if not kept.claim.is_current():
            kept.knows_offset, kept.moved_to = False, None
        elif not kept.knows_offset and kept.moved_to is not None:
            moved_to, resets = kept.moved_to
            if offset == moved_to and not self.known.now(queue).since(resets):
                self.known.note(queue, resets)
                kept.knows_offset = True
        return kept.knows_offset

    def move(self, queue: MessageQueue, kept: Kept, read: Callable[[], int | None], begin: int) -> int:
        """Under the queue's lock: the offset that the client is told to go on from. begin: of the queue."""
        resets = self.known.now(queue)
        # Nothing, too, of one that was released just now.
        found = (kept.claim.committed(), read())
        offset = next((each for each in found if each is not None), begin)
        kept.moved_to = (offset, resets) if resets.number >= 0 else None
        return offset

    def tell_offset(self, queue: MessageQueue, read: Callable[[], int | None]) -> int | None:
        """The group's offset, for which the client has asked: it has then heard of every reset. read: gives
        it for a queue that is not claimed."""
        kept = self.kept(queue)
        if kept is None:
            return self.known.told(queue, read)
        with kept.lock:
            if not kept.is_released:
                resets = self.known.now(queue)
                offset = kept.claim.committed()
                self.known.note(queue, resets)
                kept.knows_offset = resets.number >= 0 and not self.known.now(queue).since(resets)
                return offset
        return self.known.told(queue, read)

    def commit(self, queue: MessageQueue, kept: Kept, offset: int, *, may_fall: bool) -> bool:
        """Store an offset, unless the client has not heard of a reset; may_fall: also a smaller one. False:
        the queue is released."""
        with kept.lock:
            if kept.is_released:
                return False
            # What is committed is not read: that would take note of a reset for the client.
            if self.goes_on(queue, kept, offset) and kept.claim.commit(offset) and may_fall:
                kept.claim.correct(offset)
            return True

    def lock(self, queue: MessageQueue) -> bool:
        """Claim the queue, or renew that, for a client that consumes it by a lock; whether it is claimed."""
        kept = self.have(queue)
        if kept is None:
            return False
        kept.is_locked = True
        kept.claim.reserve(LOCK_SECONDS)
        return True

    def unlock(self, queue: MessageQueue) -> None:
        """Release the queue: the client does nothing more by its lock, of whichever server it has it."""
        self.membership.unreserve(queue)
        kept = self.kept(queue)
        if kept is not None:
            self._drop(queue, kept)

    def _drop(self, queue: MessageQueue, kept: Kept, *, used_at: float = inf) -> bool:
        """Release a queue, unless the client has used it after that time."""
        with kept.lock:
            if kept.used_at > used_at:
                return False
            kept.is_released = True
        with self._lock:
            if self._kept.get(queue) is kept:
                del self._kept[queue]
                kept.claim.release()  # Outside of the lock, the next claim would be this one once more.
        return True

    def expire(self, readable: Callable[[str], tuple[MessageQueue, ...]]) -> None:
        """Release the queues that the member no longer uses. readable: the queues of a topic."""
        now, members = monotonic(), self.members_seen  # before members_changed_at: see look() of Members
        has_listed = self.listed_at > self.members_changed_at and now - self.listed_at > YIELD_SECONDS
        for queue, kept in list(self._kept.items()):
            used_at = kept.used_at
            if now - used_at > LEASE_SECONDS:
                reason = f"it was not used for {LEASE_SECONDS:g} s"
            elif (
                not kept.is_locked
                and has_listed
                and used_at < self.listed_at
                and queue not in self._share(queue.topic, readable(queue.topic), members)
            ):
                reason = "the members have changed"
            else:
                continue
            if self._drop(queue, kept, used_at=used_at):
                log.info(
                    "group %s: %s/%d is released for %s: %s",
                    *(self.group, queue.topic, queue.queue_id, self.client_id, reason),
                )

    def _share(
        self, topic: str, queues: tuple[MessageQueue, ...], seen: tuple[Member, ...]
    ) -> frozenset[MessageQueue]:
        """The member's share of a topic's queues by RocketMQ's default allocation strategy, cached."""
        basis = seen, queues
        known = self._shares.get(topic)
        if known is None or known[0] != basis:
            members = [(member.client_id, takes_retries(member)) for member in seen]
            ids = sharing(topic, members)
            share = frozenset(allocate("averagely", self.group, self.client_id, queues, ids))
            known = self._shares[topic] = basis, share
        return known[1]

    def leave(self, *, is_done: bool) -> None:
        """Release all queues and leave the group. is_done: the client does nothing more by its locks."""
        with self._lock:
            if self._has_left:
                return
            self._has_left = True
            kept, self._kept = self._kept, {}
        try:
            with ExitStack() as leaving:  # All of it, whichever fails.
                leaving.callback(self.membership.leave)
                for queue, each in kept.items():
                    each.is_released = True
                    leaving.callback(each.claim.release)
                    if is_done:
                        leaving.callback(self.membership.unreserve, queue)  # Before all that.
        except MQError as error:
            log.debug("group %s: %s left: %s", self.group, self.client_id, error)
