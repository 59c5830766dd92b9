"""All remote members of consumer groups of one server, and its remote producers.

A connection identifies the client: its heartbeats create its members, which leave when it is lost. A client
that reconnects before the old connection is known to be lost takes its members over.

RocketMQ: broker/client/ConsumerManager.java, ProducerManager.java, processor/ClientManageProcessor.java.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final

from mq.api.broker import Broker
from mq.api.group import Member, Model, Subscription
from mq.api.results import MessageQueue
from mq.api.waiter import Versioned
from mq.errors import InsufficientResources, MQError, NotPermitted, TopicNotFound
from mq.filter.selection import Selection
from mq.names import DEAD_PREFIX, RETRY_PREFIX, check_group, is_group_name
from mq.remoting.codec.bodies.heartbeat import (
    INNER_PRODUCER_GROUP,
    ConsumerGroup,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from mq.remoting.codec.requests.pushed import NotifyConsumerIdsChanged
from mq.remoting.server.groups.known_resets import KnownResets
from mq.remoting.server.groups.member import RemoteMember, Wanted
from mq.remoting.server.transport.connection import Connection

__all__ = ["RemoteMembers", "selection_of"]

log = logging.getLogger("mq.groups")

GROUPS_MAX: Final = 256  # of one connection: each costs descriptors and threads' time
LOST_MAX: Final = 1024  # lost members of which it is remembered what they know
CLIENT_ID_SIZE_MAX: Final = 255  # characters; RocketMQ's are an address, a process and a unit
# Of one group, retry topics included: each is kept as long as its member.
SUBSCRIPTIONS_MAX: Final = 1000
SUBSCRIPTIONS_SIZE_MAX: Final = 64 << 10  # characters


class RemoteMembers:
    """Used by the loop and by threads of the pool. `wake` makes the server check for changes soon."""

    def __init__(self, broker: Broker, wake: Callable[[], object]) -> None:
        self._broker = broker
        self._wake = wake
        self._lock = threading.RLock()
        self._of: Final[dict[tuple[Connection, str], RemoteMember]] = {}
        self._by_client: Final[dict[tuple[str, str], RemoteMember]] = {}
        # What the clients of lost connections know of resets, by when they were lost.
        self._lost: Final[dict[tuple[str, str], KnownResets]] = {}
        self._known: Final[dict[Connection, dict[str, KnownResets]]] = {}  # and those of no member, by group
        self._named: Final[dict[Connection, set[str]]] = {}  # the groups that each has named
        self._producers: Final[dict[str, dict[Connection, str]]] = {}
        self._producers_by_client: Final[dict[str, Connection]] = {}

    def of(self, connection: Connection, group: str) -> RemoteMember | None:
        """The member of a group at the other end of a connection."""
        return self._of.get((connection, group))

    def all(self) -> list[RemoteMember]:
        return list(self._by_client.values())

    def of_group(self, group: str) -> list[RemoteMember]:
        return [member for member in self.all() if member.group == group]

    def producers(self, group: str) -> list[tuple[Connection, str]]:
        """Connections and client ids of the producers of a group."""
        return list(self._producers.get(group, {}).items())

    def producer(self, client_id: str) -> Connection | None:
        """The connection of the producer with this client id."""
        return self._producers_by_client.get(client_id)

    def producer_table(self) -> dict[str, list[Connection]]:
        """The connections of all producers, by group."""
        with self._lock:
            return {group: list(found) for group, found in self._producers.items()}

    def producer_groups(self) -> list[str]:
        return list(self._producers)

    def versions(self) -> list[Versioned]:
        return [member.membership for member in self.all()]

    def known(self, connection: Connection, group: str) -> KnownResets:
        """What a client that is no member of a group knows of its resets. It may join the group later."""
        with self._lock:
            found = self._known.get(connection, {}).get(group)
            if found is not None:
                return found
            found = KnownResets(self._broker.consumer_groups.assigned(group))
            if connection.is_closed:  # Nobody would forget it: lost() may have been here.
                return found
            known = self._known.setdefault(connection, {})
            if len(known) >= GROUPS_MAX:
                del known[next(iter(known))]
            known[group] = found
            return found

    # Coming and going.

    def heard(self, connection: Connection, heartbeat: Heartbeat) -> None:
        """Handle a heartbeat. If a group cannot be joined, its error is raised after the others have
        joined. Raises InsufficientResources for too many groups, and ValueError for a client id that no
        client of RocketMQ has: then none is joined."""
        _check_client_id(heartbeat.client_id)
        named = {each.group_name for each in heartbeat.producer_data_set}
        named |= {each.group_name for each in heartbeat.consumer_data_set}
        # Names that no group may have are refused below, and nothing is kept of them.
        named = set(filter(is_group_name, named))
        known_groups = self._named.setdefault(connection, set())
        if len(known_groups | named) > GROUPS_MAX:
            raise InsufficientResources(
                f"this connection names {len(known_groups | named)} groups, and may name {GROUPS_MAX}",
                resource="groups",
            )
        known_groups |= named
        failures: list[Exception] = []
        for heard in (
            *(partial(self._heard_producer, each.group_name) for each in heartbeat.producer_data_set),
            *(partial(self._heard, data=data) for data in heartbeat.consumer_data_set),
        ):
            try:
                heard(connection=connection, client_id=heartbeat.client_id)
            except (MQError, ValueError, TypeError) as error:
                failures.append(error)
        if failures:
            try:
                raise failures[-1]
            finally:
                failures.clear()  # An error refers to this call, which has the heartbeat: else until a gc.

    def _heard_producer(self, group: str, connection: Connection, client_id: str) -> None:
        if group == INNER_PRODUCER_GROUP:
            return
        check_group(group)
        with self._lock:
            if connection.is_closed:  # Another one of the client's may have come meanwhile.
                return
            if self._producers.get(group, {}).get(connection, client_id) != client_id:
                self._remove_producer(connection, group)  # Nobody else would forget the id that it had.
            self._producers.setdefault(group, {})[connection] = client_id
            known = self._producers_by_client.get(client_id)
            # Its replies are for nobody else: another key may not take them over.
            if known is None or known.is_closed or known.access_key == connection.access_key:
                self._producers_by_client[client_id] = connection

    def _heard(self, connection: Connection, client_id: str, data: ConsumerGroup) -> None:
        group = data.group_name
        check_group(group)
        wanted = _wanted(data)
        with self._lock:
            if connection.is_closed:  # See above.
                return
            other = self._of.get((connection, group))
            if other is not None and other.client_id != client_id:
                self._leave(other)  # A connection is of one member of a group, as in RocketMQ.
            member = self._by_client.get((client_id, group))
            if member is not None and member.connection is not connection:
                self._of.pop((member.connection, group), None)
                member.connection = connection
                self._of[connection, group] = member
            if member is not None:
                if _subscriptions(member.wanted) != _subscriptions(wanted):
                    member.membership.subscribe(_subscriptions(wanted))
                    self._wake()
                member.wanted = wanted
                return
            self._join(connection, client_id, data, wanted)
        self._wake()

    def _join(
        self,
        connection: Connection,
        client_id: str,
        data: ConsumerGroup,
        wanted: dict[str, Wanted],
        *,
        ordered: bool | None = None,
    ) -> RemoteMember:
        group, groups = data.group_name, self._broker.consumer_groups
        model: Model = "clustering" if data.message_model is MessageModel.CLUSTERING else "broadcasting"
        consume_type = "push" if data.consume_type is ConsumeType.PUSH else "pull"
        if model == "clustering" and consume_type == "push":
            self.have_retry_topic(group)
        if ordered is None:  # A heartbeat does not tell: assume the mode of the other members.
            ordered = any(member.ordered for member in groups.members(group))
        membership = groups.join(
            group,
            client_id=client_id,
            model=model,
            consume_type=consume_type,
            ordered=ordered,
            subscriptions=_subscriptions(wanted),
            # The client fetches its offset, or an end of the queue, before it pulls.
            consume_from=None,
            host=connection.described,
        )
        lost = self._lost.pop((client_id, group), None)
        member = RemoteMember(
            connection,
            group,
            membership,
            wanted,
            lost if lost is not None else self.known(connection, group),
            model=model,
            consume_type=consume_type,
            ordered=ordered,
            data=replace(data, subscription_data_set=()),  # which are in `wanted`, as far as they are used
        )
        with self._lock:
            self._of[connection, group] = self._by_client[client_id, group] = member
        return member

    def ordered(self, connection: Connection, group: str) -> RemoteMember | None:
        """The member, rejoined as an ordered consumer: it locks queues, so it consumes in order, which its
        heartbeat does not tell. Unchanged if other members do not consume in order."""
        with self._lock:
            member = self._of.get((connection, group))
            if member is None or member.is_ordered or member.owned():
                return member
            if any(
                not other.ordered
                for other in self._broker.consumer_groups.members(group)
                if other.client_id != member.client_id
            ):
                return member
            self._lost[member.client_id, group] = member.known
            self._leave(member)
            return self._join(connection, member.client_id, member.data, member.wanted, ordered=True)

    def have_retry_topic(self, group: str) -> None:
        """Create the retry topic: clients ask for its route before any message was sent back, and tools find
        the group by it."""
        topic = RETRY_PREFIX + group
        try:
            self._broker.readable(topic)
        except TopicNotFound:
            self._broker.create_topic(topic, 1)
        except NotPermitted:
            return

    def unregister(self, connection: Connection, client_id: str, producer: str, consumer: str) -> None:
        """Handle a client that has closed a producer or a consumer."""
        if producer:
            self._remove_producer(connection, producer)
        if consumer:
            member = self._by_client.get((client_id, consumer))
            if member is not None and member.connection is connection:  # Not of another client's.
                self._leave(member, is_done=True)
        named = self._named.get(connection, set())
        for group in (producer, consumer):
            if connection not in self._producers.get(group, {}) and (connection, group) not in self._of:
                named.discard(group)

    def _remove_producer(self, connection: Connection, group: str) -> None:
        with self._lock:
            found = self._producers.get(group, {})
            client_id = found.pop(connection, None)
            if client_id is None:
                return
            if not found:
                del self._producers[group]
            is_left = any(each.get(connection) == client_id for each in self._producers.values())
            if not is_left and self._producers_by_client.get(client_id) is connection:
                del self._producers_by_client[client_id]

    def lost(self, connection: Connection) -> None:
        """Handle a lost connection. Must not be called by the loop."""
        self._named.pop(connection, None)
        with self._lock:
            self._known.pop(connection, None)
            for group in list(self._producers):
                self._remove_producer(connection, group)
            members = [member for (each, _), member in self._of.items() if each is connection]
            for member in members:
                self._lost[member.client_id, member.group] = member.known
                self._leave(member)
            while len(self._lost) > LOST_MAX:
                del self._lost[next(iter(self._lost))]

    def _leave(self, member: RemoteMember, *, is_done: bool = False) -> None:
        with self._lock:  # Until it has left: its client may be back already.
            self._of.pop((member.connection, member.group), None)
            self._by_client.pop((member.client_id, member.group), None)
            member.leave(is_done=is_done)
        self._wake()

    def close(self) -> None:
        for member in self.all():
            self._leave(member)

    # Changes.

    def look(self) -> set[str]:
        """Notify the members of changed groups. Returns the groups with any change."""
        changed = set()
        # All versions first, and then each group once, however many members it has: what changes after that
        # changes the versions.
        versions = []
        for member in self.all():
            with suppress(MQError, ValueError):  # It leaves at this moment.
                versions.append((member, member.membership.version()))
        tables: dict[str, tuple[Member, ...]] = {}
        for member, version in versions:
            if version == member.version_seen:
                continue
            changed.add(member.group)
            try:
                if member.group not in tables:
                    tables[member.group] = tuple(member.membership.members())
            except (MQError, ValueError) as error:  # It leaves, too, or is looked at again.
                log.debug("group %s: %s", member.group, error)
                continue
            members, member.version_seen = tables[member.group], version
            if _roles(members) != _roles(member.members_seen):
                member.members_changed_at = monotonic()  # First: who sees the members sees the time.
                member.members_seen = members
                member.connection.tell(NotifyConsumerIdsChanged(member.group))
        return changed

    def expire(self) -> None:
        """Release the queues that members no longer use."""
        for member in self.all():
            try:
                member.expire(self._readable)
            except MQError as error:
                log.debug("group %s: %s", member.group, error)

    def _readable(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return tuple(self._broker.readable(topic))
        except (TopicNotFound, NotPermitted):
            return ()


def selection_of(expression: str, kind: str) -> Selection:
    """The selection of a subscription's expression. Raises FilterSyntaxError."""
    return Selection.of(sql=expression) if kind == "SQL92" else Selection.of(expression or "*")


def _check_client_id(client_id: str) -> None:
    """Raises ValueError. What is no text of one line would forge lines of the log."""
    if len(client_id) > CLIENT_ID_SIZE_MAX or not client_id.isprintable():
        raise ValueError(
            f"a client id of {len(client_id):,} characters, {client_id[:100]!r}: give at most"
            f" {CLIENT_ID_SIZE_MAX}, all of them printable"
        )


def _wanted(data: ConsumerGroup) -> dict[str, Wanted]:
    """Raises InsufficientResources for more subscriptions than are kept of one group."""
    count = len(data.subscription_data_set)
    size = sum(
        len(each.topic) + len(each.sub_string or "") + len(each.expression_type or "")
        for each in data.subscription_data_set
    )
    if count > SUBSCRIPTIONS_MAX or size > SUBSCRIPTIONS_SIZE_MAX:
        raise InsufficientResources(
            f"group {data.group_name} has {count:,} subscriptions of {size:,} characters at this client, and"
            f" may have {SUBSCRIPTIONS_MAX:,} of {SUBSCRIPTIONS_SIZE_MAX:,}: use several groups",
            resource="memory",
        )
    found = {}
    for each in data.subscription_data_set:
        kind = each.expression_type or "TAG"
        expression = (each.sub_string or "").strip() or "*"
        wanted = Subscription(each.topic, expression, kind)
        found[each.topic] = Wanted(wanted, selection_of(expression, kind), each.sub_version)
    return found


def _subscriptions(wanted: dict[str, Wanted]) -> Sequence[Subscription]:
    """The subscriptions without the retry topic, which every member has."""
    return sorted(
        each.subscription
        for topic, each in wanted.items()
        if not topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
    )


def _roles(members: tuple[object, ...]) -> list[tuple[object, object]]:
    return [(getattr(each, "client_id", None), getattr(each, "subscriptions", None)) for each in members]
