"""The consumer groups of a cluster: see mq.api.consumer_groups.

A consumer of this process joins through a client instance (client_instance.py). This module runs the timers
of all consumers: it writes offsets every 5 s and renews locks every 20 s. administration.py has the
operators' calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mq.api.consumer_groups import ConsumerGroups
from mq.api.group import BroadcastOffsets, Member, Membership, QueueState, Subscription
from mq.api.queues import Puller, Queues
from mq.api.results import MessageQueue
from mq.errors import BrokerClosed, MQError
from mq.names import check_group
from mq.remoting.client.arrivals import Arrivals
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.client.groups.administration import Administration
from mq.remoting.client.groups.broadcast import RemoteBroadcastOffsets, default_directory
from mq.remoting.client.groups.client_instance import ClientInstance
from mq.remoting.client.groups.client_processor import ClientProcessor
from mq.remoting.client.groups.initial_offset import InitialOffset
from mq.remoting.client.groups.manual_claims import RemoteAssigned
from mq.remoting.client.groups.membership import RemoteMembership, subscription_data
from mq.remoting.client.heartbeats import Heartbeats
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.bodies.heartbeat import ClientCheck
from mq.remoting.codec.bodies.route import TopicRoute
from mq.remoting.codec.requests.groups import CheckClientConfig
from mq.remoting.weak_list import WeakList

__all__ = ["RemoteConsumerGroups"]

OFFSETS_SECONDS = 5.0
LOCKS_SECONDS = 20.0


class RemoteConsumerGroups(ConsumerGroups):
    """The groups of one broker object. new_connections: makes another Remoting with the same options."""

    def __init__(
        self,
        brokers: Brokers,
        namespace: Namespace,
        arrivals: Arrivals,
        queues: Queues,
        delete_topic: Callable[[str], None],
        new_connections: Callable[[], Remoting],
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._arrivals = arrivals
        self._queues = queues
        self._new_connections = new_connections
        self._administration = Administration(brokers, namespace, queues, delete_topic)
        self._lock = threading.Lock()  # guards the instances
        self._instances: list[ClientInstance] = []
        self._members: dict[ClientInstance, list[RemoteMembership]] = {}
        self._assigned: WeakList[RemoteAssigned] = WeakList()
        self._first = self._add_instance(brokers)
        brokers.cluster.changed.append(self._route_changed)
        self._every(OFFSETS_SECONDS, self._write_offsets)
        self._every(LOCKS_SECONDS, self._renew_locks)

    # Consumers.

    def admit(self, group: str, member: Member, consume_from: str | int | None) -> Membership:
        """See ConsumerGroups.admit."""
        self._check_expressions(group, member.client_id, member.subscriptions)
        instance = self._instance_for(group)
        try:
            is_broadcasting = member.model == "broadcasting"
            queues = [] if is_broadcasting else self._known_queues(member.subscriptions)
            begin = "first" if consume_from is None else consume_from
            initial = InitialOffset(self._brokers, self._namespace, begin, queues)
            membership = RemoteMembership(instance, group, member, initial)
            self._members[instance].append(membership)
            try:
                membership.join()
            except BaseException:
                membership.leave()
                raise
        except BaseException:
            instance.groups.discard(group)
            raise
        return membership

    def begin_at_the_end(self, group: str, topic: str, queues: Queues) -> bool:
        """See ConsumerGroups.begin_at_the_end."""
        self._write_offsets()
        return self._administration.begin_at_the_end(group, topic, queues)

    def assigned(self, group: str) -> RemoteAssigned:
        """See ConsumerGroups.assigned."""
        assigned = RemoteAssigned(self._first, group, self._queues.route_version)
        self._assigned.add(assigned)
        return assigned

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        """See ConsumerGroups.broadcast_offsets."""
        check_group(group)
        base = directory or default_directory(self._brokers.remoting.name, self._namespace.name)
        return RemoteBroadcastOffsets(base, group, client_id, self._queues, _broadcast_puller)

    # Operators.

    def members(self, group: str) -> list[Member]:
        """See ConsumerGroups.members."""
        return self._administration.members(group)

    def topics(self, group: str) -> list[str]:
        """See ConsumerGroups.topics."""
        return self._administration.topics(group)

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """See ConsumerGroups.offsets."""
        self._write_offsets()
        return self._administration.offsets(group, topic)

    def states(self, group: str, topic: str) -> list[QueueState]:
        """See ConsumerGroups.states."""
        self._write_offsets()
        return self._administration.states(group, topic)

    def retrying(self, group: str) -> dict[str, int]:
        """See ConsumerGroups.retrying. Without messages that still wait for their delay: brokers do not
        count those."""
        self._write_offsets()
        return self._administration.retrying(group)

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """See ConsumerGroups.reset."""
        self._administration.reset(group, offsets)

    def delete(self, group: str, *, dead_letters: bool = False) -> None:
        """See ConsumerGroups.delete. Offsets of broadcasting consumers stay: each has them on its machine."""
        self._administration.delete(group, dead_letters)

    def names(self) -> list[str]:
        """See ConsumerGroups.names."""
        return self._administration.names()

    def close(self) -> None:
        """Leave every group."""
        with self._lock:
            members = [member for of_lane in list(self._members.values()) for member in list(of_lane)]
            others = [instance for instance in self._instances if instance is not self._first]
        for member in members:
            member.leave()
        for assigned in self._assigned.items():
            assigned.write_offsets()
        for instance in others:
            instance.brokers.remoting.close()

    # Client instances.

    def _instance_for(self, group: str) -> ClientInstance:
        """A client instance in which the group has no member yet."""
        with self._lock:
            for instance in self._instances:
                if group not in instance.groups:
                    break
            else:
                instance = self._add_instance(Brokers(self._new_connections(), self._brokers.cluster))
            instance.groups.add(group)
            return instance

    def _add_instance(self, brokers: Brokers) -> ClientInstance:
        instance = ClientInstance(
            brokers,
            Heartbeats(brokers.remoting, brokers.cluster),
            self._arrivals,
            self._namespace,
            brokers.remoting.check_open,
            self._left,
        )
        self._instances.append(instance)
        self._members[instance] = []
        ClientProcessor(brokers.remoting, lambda: tuple(self._members[instance]))
        return instance

    def _left(self, member: RemoteMembership) -> None:
        for instance, members in list(self._members.items()):
            with suppress(ValueError):  # It is in another one.
                members.remove(member)
                instance.groups.discard(member.group)

    # Timers and events of brokers.

    def _every(self, seconds: float, work: Callable[[], object]) -> None:
        events = self._brokers.remoting.events

        def again() -> None:
            events.loop.call_later(seconds, again)
            work()

        events.post(lambda: events.loop.call_later(seconds, again))

    def _all_members(self) -> list[RemoteMembership]:
        return [member for members in list(self._members.values()) for member in list(members)]

    def _write_offsets(self) -> None:
        try:
            for member in self._all_members():
                member.write_offsets()
            for assigned in self._assigned.items():
                assigned.write_offsets()
        except BrokerClosed:
            pass

    def _renew_locks(self) -> None:
        for member in self._all_members():
            try:
                member.renew_locks()
            except MQError:
                continue

    def _route_changed(self, wire_topic: str, _route: TopicRoute | None) -> None:
        topic = self._namespace.plain(wire_topic)
        for member in self._all_members():
            member.route_changed(topic)
        self._arrivals.changed()

    def _known_queues(self, subscriptions: Sequence[Subscription]) -> list[MessageQueue]:
        found: list[MessageQueue] = []
        for each in subscriptions:
            try:
                found += self._queues.readable(each.topic)
            except MQError:
                continue  # When the topic is created, consumption begins at its first message.
        return found

    def _check_expressions(self, group: str, client_id: str, subscriptions: Sequence[Subscription]) -> None:
        """Raises RemotingError if a broker cannot filter by a subscription."""
        for each in subscriptions:
            if each.kind == "TAG":
                continue
            wire_topic = self._namespace.wire(each.topic)
            route = self._brokers.cluster.route(wire_topic)
            if route is None:
                continue
            data = subscription_data(wire_topic, each, 1)
            body = ClientCheck(client_id, self._namespace.wire(group), data)
            names = [broker.broker_name for broker in route.broker_datas if broker.master is not None]
            for name in names[:1]:
                self._brokers.ask(name, CheckClientConfig(), body)


def _broadcast_puller(queue: MessageQueue, membership: Membership) -> Puller:
    claim = membership.claim(queue)
    assert claim is not None
    return claim.puller()
