"""A consumer's membership in a group of a cluster.

Every member computes the allocation of queues from the list of members, which a broker keeps; the broker
notifies members of changes. RocketMQ: client/impl/consumer/RebalanceImpl.java.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Final, NamedTuple

from mq.api.group import Member, Subscription
from mq.api.results import MessageQueue
from mq.errors import MQError, RemotingError
from mq.filter.tags import parse, tag_hash
from mq.names import RETRY_PREFIX
from mq.remoting.client.connections.answers import body_of, framed
from mq.remoting.client.groups.claims import RemoteClaim
from mq.remoting.client.groups.client_instance import ClientInstance
from mq.remoting.client.groups.initial_offset import InitialOffset
from mq.remoting.client.heartbeats import HeartbeatClient
from mq.remoting.codec.bodies.consuming import ConsumerIds, LockedQueues, QueueLock
from mq.remoting.codec.bodies.heartbeat import ConsumeFrom, ConsumerGroup, ConsumeType, MessageModel
from mq.remoting.codec.bodies.heartbeat import Subscription as SubscriptionData
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.groups import GetConsumerList, LockQueues, UnlockQueues
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["RemoteMembership", "subscription_data"]

LOOK_AGAIN_SECONDS = 1.0  # pause after another member had a queue's lock, or no broker knew this member
LOCK_TIMEOUT = 1.0
LEAVE_SECONDS = 5.0  # how long a leave() waits for one by another thread
UNRESPONSIVE_SECONDS = 5.0  # how long a broker that did not answer counts as unresponsive


class _Subscribed(NamedTuple):
    """The subscriptions by topic, and their version: replaced in one store, and read at once."""

    by_topic: dict[str, Subscription]
    version: int

    def changed(self, by_topic: dict[str, Subscription]) -> _Subscribed:
        """Brokers keep the newest version."""
        return _Subscribed(by_topic, max(self.version + 1, int(time.time() * 1000)))


class RemoteMembership:
    """See mq.api.group.Membership. It is the only member of its group in its client instance."""

    def __init__(self, instance: ClientInstance, group: str, member: Member, initial: InitialOffset) -> None:
        self.client_id: Final = member.client_id
        self.group: Final = group
        self.brokers: Final = instance.brokers
        self.namespace: Final = instance.namespace
        self.wire_group: Final = instance.namespace.wire(group)
        self.claims: dict[MessageQueue, RemoteClaim] = {}
        self._claiming: set[MessageQueue] = set()  # those that claim() is about to own
        self._instance = instance
        self._model = member.model
        self._consume_type = member.consume_type
        self.is_ordered: Final = member.ordered
        self._initial = initial
        self.since_ms: Final = member.since_ms
        self._version = 0
        self._subscribed = _Subscribed({each.topic: each for each in member.subscriptions}, self.since_ms)
        self._beating = HeartbeatClient(member.client_id, self.consumer_group)
        self._unresponsive_at: dict[str, float] = {}  # by broker name: when it last failed to answer
        self._members_known: Sequence[str] = ()  # by the last broker that told
        self._is_gone = False
        self._leaving = threading.Lock()

    def join(self) -> None:
        """Register with the brokers. Raises RemotingError, RequestTimeout."""
        self._find_routes()
        self._instance.heartbeats.add(self._beating)
        self._instance.heartbeats.send_and_wait(self._beating)

    # Called by the consumer.

    def members(self) -> list[Member]:
        """See Membership.members. For other members a RocketMQ broker tells only the client ids."""
        client_ids = self._client_ids()
        if self.client_id not in client_ids:
            # No broker has the topics yet, or the broker does not know the member yet: try again soon.
            self._instance.heartbeats.send_all()
            self._look_again()
        # A broker that has just started knows of nobody: the members share the queues as before meanwhile.
        client_ids = self._members_known = client_ids or self._members_known
        return [self._member(client_id) for client_id in sorted({*client_ids, self.client_id})]

    def _client_ids(self) -> Sequence[str]:
        names = self._broker_names()
        if not names:
            return ()
        try:
            answer = self.brokers.ask_first(names, GetConsumerList(self.wire_group))
        except RemotingError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            return ()  # None of them knows the group.
        return body_of(ConsumerIds, answer).consumer_id_list

    def _look_again(self) -> None:
        events = self._instance.brokers.remoting.events
        events.post(lambda: events.loop.call_later(LOOK_AGAIN_SECONDS, self.changed))

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """See Membership.subscribe."""
        before = self._subscribed
        try:
            self._subscribed = before.changed({each.topic: each for each in subscriptions})
            self._find_routes()
            self._instance.heartbeats.send_and_wait(self._beating)
            self.changed()
        except BaseException:
            # The consumer goes on with what it had. A broker that filters by the new expressions would pass
            # over messages, and the consumer would commit beyond them.
            self._subscribed = self._subscribed.changed(before.by_topic)
            self._instance.heartbeats.send_all()
            raise

    def version(self) -> int:
        """See Membership.version."""
        self._instance.check_open()
        return self._version

    def claim(self, queue: MessageQueue) -> RemoteClaim | None:
        """See Membership.claim. Only ordered consumption guarantees a single owner at a time."""
        is_locked = self.is_ordered and self._model == "clustering"
        self._claiming.add(queue)
        try:
            asked_at = monotonic()
            if is_locked and not self._lock(queue):
                self._look_again()
                return None
            claim = RemoteClaim(self, queue, locked_at=asked_at if is_locked else None)
            self.claims[queue] = claim
        finally:
            self._claiming.discard(queue)
        if self._is_gone:  # leave() may have released the others before.
            claim.release()
            return None
        self._instance.arrivals.expect(queue)
        return claim

    def unreserve(self, queue: MessageQueue) -> None:
        """Nothing: the broker has the locks."""

    def leave(self) -> None:
        """See Membership.leave. Where another thread does it already, waits for that, as release() does."""
        is_alone = self._leaving.acquire(timeout=LEAVE_SECONDS)
        try:
            if not self._is_gone:
                self._is_gone = True
                self._leave()
        finally:
            if is_alone:
                self._leaving.release()

    def _leave(self) -> None:
        try:
            for claim in list(self.claims.values()):
                claim.release()
        finally:
            self._instance.heartbeats.unregister(self._beating, consumer_group=self.wire_group)
            self._instance.left(self)

    # Events from brokers, timers and operators; from any thread.

    def changed(self) -> None:
        """Members, topics or offsets may have changed: the consumer rebalances."""
        self._version += 1
        self._instance.arrivals.changed()

    def route_changed(self, topic: str) -> None:
        if topic in self._subscribed.by_topic or topic == RETRY_PREFIX + self.group:
            self.changed()

    def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """An operator set these offsets."""
        for queue, offset in offsets.items():
            claim = self.claims.get(queue)
            if claim is not None:
                claim.reset(offset)
        self.changed()

    def write_offsets(self) -> None:
        for claim in list(self.claims.values()):
            claim.write_offset()
            claim.check_offset()

    def renew_locks(self) -> None:
        """Ask each broker to renew the locks, without waiting. A queue that it does not confirm is lost."""
        claims = list(self.claims.values())
        locked = [claim for claim in claims if claim.is_locked and not claim.is_lost()]
        for name in {claim.queue.broker_name for claim in locked}:
            address = self.brokers.cluster.address(name)
            if address is not None:
                claims = [claim for claim in locked if claim.queue.broker_name == name]
                body = self._queue_lock([claim.queue for claim in claims])
                answered = partial(self._renewed, claims, monotonic())
                self.brokers.remoting.call_async(address, framed(LockQueues(), body), answered, LOCK_TIMEOUT)

    def _renewed(self, claims: Sequence[RemoteClaim], asked_at: float, answer: Frame | MQError) -> None:
        if isinstance(answer, MQError) or answer.code != ResponseCode.SUCCESS:
            return  # A lock that is not renewed in time counts as lost.
        kept = set(body_of(LockedQueues, answer).locked)
        for claim in claims:
            if self.wire_queue(claim.queue) not in kept:
                claim.lose()
                self.changed()
            elif claim.queue in self._claiming or claim.queue in self.claims:  # In this order: see claim().
                claim.renewed(asked_at)
            else:
                # It was released meanwhile: this has locked it again, and the next owner would have to wait.
                self._unlock(claim.queue)

    # Called by its claims: see ClaimOwner.

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        return self.namespace.wire_queue(queue)

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        return self.namespace.plain_queue(queue)

    def beginning(self, queue: MessageQueue) -> int | None:
        return self._initial.offset(queue)

    def is_placeholder(self, queue: MessageQueue) -> bool:
        return self._initial.is_placeholder(self.wire_group, self.wire_queue(queue))

    def own_subscription(self, queue: MessageQueue) -> Subscription | None:
        return None

    def sub_version(self, queue: MessageQueue) -> int:
        return self._subscribed.version

    def on_unknown_member(self) -> None:
        self._instance.heartbeats.send_all()

    def on_missing_topic(self, claim: RemoteClaim) -> None:
        """Nothing: the queue goes with the route."""

    def arrived(self, queue: MessageQueue) -> None:
        self._instance.arrivals.arrived(queue)

    def released(self, claim: RemoteClaim) -> None:
        if self.claims.get(claim.queue) is claim:
            del self.claims[claim.queue]
        if claim.is_locked and not claim.is_lost():
            self._unlock(claim.queue)

    def is_unresponsive(self, broker_name: str) -> bool:
        return monotonic() - self._unresponsive_at.get(broker_name, -inf) < UNRESPONSIVE_SECONDS

    def set_unresponsive(self, broker_name: str) -> None:
        self._unresponsive_at[broker_name] = monotonic()

    def _lock(self, queue: MessageQueue) -> bool:
        answer = self.brokers.ask(
            queue.broker_name,
            LockQueues(),
            self._queue_lock([queue]),
            timeout=LOCK_TIMEOUT,
            only_master=True,  # The locks of a slave are its own.
        )
        return self.wire_queue(queue) in body_of(LockedQueues, answer).locked

    def _unlock(self, queue: MessageQueue) -> None:
        self.brokers.send_oneway(queue.broker_name, UnlockQueues(), self._queue_lock([queue]))

    def _queue_lock(self, queues: Sequence[MessageQueue]) -> QueueLock:
        return QueueLock(self.wire_group, self.client_id, tuple(map(self.wire_queue, queues)))

    def _member(self, client_id: str) -> Member:
        return Member(
            client_id=client_id,
            pid=0,
            host="",
            since_ms=0,
            model=self._model,
            # RocketMQ allocates the queues of retry topics to all members, too.
            consume_type=self._consume_type,
            ordered=self.is_ordered,
            subscriptions=tuple(sorted(self._subscribed.by_topic.values())),
        )

    def _find_routes(self) -> None:
        for topic in self._topics(self._subscribed):
            self._instance.brokers.cluster.route(self.namespace.wire(topic))

    def _topics(self, subscribed: _Subscribed) -> list[str]:
        takes_retries = self._model == "clustering" and self._consume_type == "push"
        return [*subscribed.by_topic, *([RETRY_PREFIX + self.group] if takes_retries else [])]

    def _broker_names(self) -> list[str]:
        """The brokers that have a topic of this member, first those with a master. Slaves get heartbeats, so
        they know the members, too."""
        has_master = dict[str, bool]()
        for topic in self._topics(self._subscribed):
            route = self.brokers.cluster.route(self.namespace.wire(topic))
            for each in route.broker_datas if route is not None else ():
                if each.broker_addrs:
                    has_master[each.broker_name] = each.master is not None
        return sorted(has_master, key=lambda name: (not has_master[name], name))

    def consumer_group(self) -> ConsumerGroup:
        """The heartbeat's entry for this member. Each heartbeat keeps the routes of its topics."""
        subscribed = self._subscribed
        wanted = {
            topic: subscribed.by_topic.get(topic, Subscription(topic)) for topic in self._topics(subscribed)
        }
        for topic in wanted:
            self.brokers.cluster.use(self.namespace.wire(topic))
        return ConsumerGroup(
            group_name=self.wire_group,
            consume_type=ConsumeType.PUSH if self._consume_type == "push" else ConsumeType.PULL,
            message_model=(
                MessageModel.CLUSTERING if self._model == "clustering" else MessageModel.BROADCASTING
            ),
            consume_from_where=ConsumeFrom.FIRST_OFFSET,
            subscription_data_set=tuple(
                subscription_data(self.namespace.wire(topic), each, subscribed.version)
                for topic, each in wanted.items()
            ),
        )


def subscription_data(wire_topic: str, subscription: Subscription, version: int) -> SubscriptionData:
    """A subscription in the format of a heartbeat."""
    tags: tuple[str, ...] = ()
    if subscription.kind == "TAG":
        wanted = parse(subscription.expression)
        tags = tuple(sorted(wanted.tags)) if wanted is not None else ()
    return SubscriptionData(
        topic=wire_topic,
        sub_string=subscription.expression,
        expression_type=subscription.kind,
        tags_set=tags,
        code_set=tuple(map(tag_hash, tags)),
        sub_version=version,
    )
