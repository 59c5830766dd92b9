"""A consumer's place in a group of a cluster.

Which queues are whose, each member works out from the list of members that a broker keeps; a broker says when
it changed. RocketMQ: client/impl/consumer/RebalanceImpl.java.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Final

from mq.api.group import Member, Subscription
from mq.api.results import MessageQueue
from mq.errors import MQError
from mq.filter.tags import parse, tag_hash
from mq.names import RETRY_PREFIX
from mq.remoting.client.connections.answers import framed
from mq.remoting.client.groups.claims import RemoteClaim
from mq.remoting.client.groups.lane import Lane
from mq.remoting.client.groups.starting import Starting
from mq.remoting.client.heartbeats import Beating
from mq.remoting.codec.bodies.consuming import ConsumerIds, LockedQueues, QueueLock
from mq.remoting.codec.bodies.heartbeat import ConsumeFrom, ConsumerGroup, ConsumeType, MessageModel
from mq.remoting.codec.bodies.heartbeat import Subscription as SubscriptionData
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import from_json
from mq.remoting.codec.requests.groups import GetConsumerList, LockQueues, UnlockQueues
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["RemoteMembership", "subscription_data"]

LOOK_AGAIN_SECONDS = 1.0  # after another member had the lock of a queue, or no broker knew this one
LOCK_TIMEOUT = 1.0
SILENT_SECONDS = 5.0  # for which a broker that did not answer is not waited for again


class RemoteMembership:
    """See mq.api.group.Membership. In `lane` it is the only one of its group."""

    def __init__(self, lane: Lane, group: str, member: Member, starting: Starting) -> None:
        self.client_id: Final = member.client_id
        self.group: Final = group
        self.brokers: Final = lane.brokers
        self.namespace: Final = lane.namespace
        self.wire_group: Final = lane.namespace.wire(group)
        self.claims: dict[MessageQueue, RemoteClaim] = {}
        self._lane = lane
        self._model = member.model
        self._consume_type = member.consume_type
        self.is_ordered: Final = member.ordered
        self._starting = starting
        self.since_ms: Final = member.since_ms
        self._version = 0
        self._sub_version = self.since_ms
        self._subscriptions: dict[str, Subscription] = {each.topic: each for each in member.subscriptions}
        self._beating = Beating(member.client_id, self.consumer_group)
        self._silent_at: dict[str, float] = {}  # when a broker did not answer, by its name
        self._is_gone = False

    def join(self) -> None:
        """Be known to the brokers. Raises RemotingError, RequestTimeout."""
        self._find_routes()
        self._lane.heartbeats.add(self._beating)
        self._lane.heartbeats.beat_and_wait(self._beating)

    # What the consumer calls.

    def members(self) -> list[Member]:
        """See Membership.members. Of the others a broker of RocketMQ's tells the client ids alone."""
        client_ids = self._client_ids()
        if self.client_id not in client_ids:
            # No broker has the topics yet, or this one did not hear of the member: look again soon.
            self._lane.heartbeats.beat()
            self._look_again()
        return [self._member(client_id) for client_id in sorted({*client_ids, self.client_id})]

    def _client_ids(self) -> Sequence[str]:
        names = self._broker_names()
        if not names:
            return ()
        request = GetConsumerList(self.wire_group)
        answer = self.brokers.ask_first(names, request, also=(ResponseCode.SYSTEM_ERROR,))
        if answer.code != ResponseCode.SUCCESS:
            return ()
        return from_json(ConsumerIds, answer.body).consumer_id_list

    def _look_again(self) -> None:
        events = self._lane.brokers.remoting.events
        events.post(lambda: events.loop.call_later(LOOK_AGAIN_SECONDS, self.changed))

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """See Membership.subscribe."""
        self._subscriptions = {each.topic: each for each in subscriptions}
        self._sub_version = max(self._sub_version + 1, int(time.time() * 1000))
        self._find_routes()
        self._lane.heartbeats.beat_and_wait(self._beating)
        self.changed()

    def version(self) -> int:
        """See Membership.version."""
        self._lane.check_open()
        return self._version

    def claim(self, queue: MessageQueue) -> RemoteClaim | None:
        """See Membership.claim. Only for consumption in order one member at a time has the queue for sure."""
        is_locked = self.is_ordered and self._model == "clustering"
        if is_locked and not self._lock(queue):
            self._look_again()
            return None
        claim = self.claims[queue] = RemoteClaim(self, queue, is_locked=is_locked)
        self._lane.arrivals.expect(queue)
        return claim

    def leave(self) -> None:
        """See Membership.leave."""
        if self._is_gone:
            return
        self._is_gone = True
        try:
            for claim in list(self.claims.values()):
                claim.release()
        finally:
            self._lane.heartbeats.unregister(self._beating, consumer_group=self.wire_group)
            self._lane.left(self)

    # What brokers, the clock and operators bring; from any thread.

    def changed(self) -> None:
        """Members, topics or offsets may have changed: its consumer looks again."""
        self._version += 1
        self._lane.arrivals.changed()

    def route_changed(self, topic: str) -> None:
        if topic in self._subscriptions or topic == RETRY_PREFIX + self.group:
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

    def renew_locks(self) -> None:
        """Ask each broker to keep the locks, without waiting. What it does not confirm is lost."""
        locked = [claim for claim in list(self.claims.values()) if claim.is_locked]
        for name in {claim.queue.broker_name for claim in locked}:
            address = self.brokers.cluster.address(name)
            if address is not None:
                claims = [claim for claim in locked if claim.queue.broker_name == name]
                body = self._queue_lock([claim.queue for claim in claims])
                self.brokers.remoting.call_async(
                    address,
                    framed(LockQueues(), body),
                    lambda answer, claims=claims: self._renewed(claims, answer),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                    LOCK_TIMEOUT,
                )

    def _renewed(self, claims: Sequence[RemoteClaim], answer: Frame | MQError) -> None:
        if isinstance(answer, MQError) or answer.code != ResponseCode.SUCCESS:
            return  # What is not renewed for too long counts as lost.
        kept = set(from_json(LockedQueues, answer.body).locked)
        for claim in claims:
            if self.wire_queue(claim.queue) in kept:
                claim.renewed()
            else:
                claim.lose()
                self.changed()

    # What its claims ask: see ClaimOwner.

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        return self.namespace.wire_queue(queue)

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        return self.namespace.plain_queue(queue)

    def beginning(self, queue: MessageQueue) -> int | None:
        return self._starting.offset(queue)

    def is_made_up(self, queue: MessageQueue) -> bool:
        return self._starting.is_made_up(self.wire_group, self.wire_queue(queue))

    def own_subscription(self, queue: MessageQueue) -> Subscription | None:
        return None

    def sub_version(self, queue: MessageQueue) -> int:
        return self._sub_version

    def not_known(self) -> None:
        self._lane.heartbeats.beat()

    def arrived(self, queue: MessageQueue) -> None:
        self._lane.arrivals.arrived(queue)

    def released(self, claim: RemoteClaim) -> None:
        if self.claims.get(claim.queue) is claim:
            del self.claims[claim.queue]
        if claim.is_locked and not claim.is_lost():
            self.brokers.tell(claim.queue.broker_name, UnlockQueues(), self._queue_lock([claim.queue]))

    def is_silent(self, broker_name: str) -> bool:
        return monotonic() - self._silent_at.get(broker_name, -inf) < SILENT_SECONDS

    def was_silent(self, broker_name: str) -> None:
        self._silent_at[broker_name] = monotonic()

    def _lock(self, queue: MessageQueue) -> bool:
        answer = self.brokers.ask(
            queue.broker_name, LockQueues(), self._queue_lock([queue]), timeout=LOCK_TIMEOUT
        )
        return self.wire_queue(queue) in from_json(LockedQueues, answer.body).locked

    def _queue_lock(self, queues: Sequence[MessageQueue]) -> QueueLock:
        return QueueLock(self.wire_group, self.client_id, tuple(map(self.wire_queue, queues)))

    def _member(self, client_id: str) -> Member:
        return Member(
            client_id=client_id,
            pid=0,
            host="",
            since_ms=0,
            model=self._model,
            # RocketMQ shares out the queues of retry topics, too, among all members.
            consume_type=self._consume_type,
            ordered=self.is_ordered,
            subscriptions=tuple(sorted(self._subscriptions.values())),
        )

    def _find_routes(self) -> None:
        for topic in self._topics():
            self._lane.brokers.cluster.route(self.namespace.wire(topic))

    def _topics(self) -> list[str]:
        takes_retries = self._model == "clustering" and self._consume_type == "push"
        return [*self._subscriptions, *([RETRY_PREFIX + self.group] if takes_retries else [])]

    def _broker_names(self) -> list[str]:
        """The brokers that have a topic of this member."""
        names = set[str]()
        for topic in self._topics():
            route = self.brokers.cluster.route(self.namespace.wire(topic))
            if route is not None:
                names.update(each.broker_name for each in route.broker_datas if each.master is not None)
        return sorted(names)

    def consumer_group(self) -> ConsumerGroup:
        """What heartbeats tell of this member."""
        wanted = {topic: self._subscriptions.get(topic, Subscription(topic)) for topic in self._topics()}
        return ConsumerGroup(
            group_name=self.wire_group,
            consume_type=ConsumeType.PUSH if self._consume_type == "push" else ConsumeType.PULL,
            message_model=(
                MessageModel.CLUSTERING if self._model == "clustering" else MessageModel.BROADCASTING
            ),
            consume_from_where=ConsumeFrom.FIRST_OFFSET,
            subscription_data_set=tuple(
                subscription_data(self.namespace.wire(topic), each, self._sub_version)
                for topic, each in wanted.items()
            ),
        )


def subscription_data(wire_topic: str, subscription: Subscription, version: int) -> SubscriptionData:
    """A subscription as heartbeats tell it."""
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
