"""Administration of a cluster's groups: members, offsets, lag and its reason, setting offsets, deletion.

A broker knows the members of a group and its offsets. Only the members know the owner of a queue; they are
asked through a broker. RocketMQ: tools/admin/DefaultMQAdminExtImpl.java.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from mq.api.group import Member, QueueState, Subscription
from mq.api.joining import check_deletable, check_unused
from mq.api.queues import READ_SIZE_MAX, Queues
from mq.api.results import MessageQueue, PullStatus
from mq.errors import MQError, NotPermitted, TopicNotFound
from mq.names import DEAD_PREFIX, RETRY_PREFIX, check_group, is_system_group
from mq.properties import value_of
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import body_of
from mq.remoting.client.groups.offsets import query_offset, set_offset
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.bodies.consuming import Connection, ConsumerConnections, RunningInfo
from mq.remoting.codec.bodies.heartbeat import ConsumeType, MessageModel
from mq.remoting.codec.bodies.settings import GroupTable
from mq.remoting.codec.bodies.stats import ConsumeStats
from mq.remoting.codec.requests.groups import DeleteGroup, GetAllGroups
from mq.remoting.codec.requests.offsets import ResetConsumerOffset
from mq.remoting.codec.requests.pushed import GetConsumerRunningInfo
from mq.remoting.codec.requests.statistics import GetConsumerConnections, GetConsumeStats
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["Administration"]

log = logging.getLogger("mq.groups")

RETRIES_LOOKED_AT = 1000
END_MS = 1 << 62  # later than any message


class Administration:
    """queues: those of the broker object."""

    def __init__(
        self,
        brokers: Brokers,
        namespace: Namespace,
        queues: Queues,
        delete_topic: Callable[[str], None],
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._queues = queues
        self._delete_topic = delete_topic

    def names(self) -> list[str]:
        """The groups with settings on a broker, without RocketMQ's own."""
        names = set[str]()
        for broker in self._brokers.names():
            answer = self._brokers.ask(broker, GetAllGroups())
            table = body_of(GroupTable, answer).subscription_group_table
            names.update(name for name in table if self._namespace.holds(name))
        plain = {self._namespace.plain(name) for name in names}
        return sorted(name for name in plain if not _is_own(name))

    def members(self, group: str) -> list[Member]:
        """The live members, by client_id. `pid` is 0: a broker does not know it."""
        members: dict[str, Member] = {}
        for connections in self._connections(group):
            for each in connections.connection_set:
                members.setdefault(each.client_id, self._member(each, connections))
        return [members[client_id] for client_id in sorted(members)]

    def topics(self, group: str) -> list[str]:
        wire_group = self._wire_group(group)
        topics = set[str]()
        for broker in self._brokers.names():
            answer = self._brokers.ask(
                broker,
                GetConsumeStats(wire_group),
                also=(ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST),
            )
            if answer.code == ResponseCode.SUCCESS:
                topics.update(queue.topic for queue in body_of(ConsumeStats, answer).offset_table)
        for connections in self._connections(group):
            topics.update(connections.subscription_table)
        plain = map(self._namespace.plain, topics)
        return sorted(topic for topic in plain if topic != RETRY_PREFIX + group)

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        wire_group = self._wire_group(group)
        offsets = {}
        for queue in self._queues.readable(topic):
            offset = query_offset(self._brokers, wire_group, self._namespace.wire_queue(queue))
            if offset is not None:
                offsets[queue] = offset
        return offsets

    def states(self, group: str, topic: str) -> list[QueueState]:
        committed = self.offsets(group, topic)
        owners = self._owners(group)
        has_members = bool(owners.members)
        return [
            self._state(
                queue,
                committed.get(queue),
                owners.of_queue.get(self._namespace.wire_queue(queue)),
                "" if has_members else "the group has no live member",
            )
            for queue in self._queues.readable(topic)
        ]

    def retrying(self, group: str) -> dict[str, int]:
        """How many messages wait in the retry topic, by their original topic."""
        retry = RETRY_PREFIX + group
        try:
            committed = self.offsets(group, retry)
            queues = self._queues.readable(retry)
        except (TopicNotFound, NotPermitted):
            return {}
        counts = Counter[str]()
        for queue in queues:
            offset = max(committed.get(queue, 0), self._queues.min_offset(queue))
            pull = self._queues.puller(queue)
            while sum(counts.values()) < RETRIES_LOOKED_AT:
                found = pull(offset, 32, READ_SIZE_MAX, None, 0.0)
                if found.status is not PullStatus.FOUND:
                    break
                for message in found.messages:
                    counts[value_of(message.encoded, b"RETRY_TOPIC\x01") or retry] += 1
                offset = found.next_offset
        return {self._namespace.plain(topic): number for topic, number in counts.items()}

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set offsets. 5.x stores each offset and applies it at the next pull. 4.9 sends the live members a
        time for all queues of the broker: this method gives the time of the earliest message, so that none is
        skipped. If no member is live, it writes the offsets."""
        wire_group = self._wire_group(group)
        # A slave takes offsets, too, until it has those of its master again.
        self._brokers.masters({queue.broker_name for queue in offsets})
        for queue, offset in offsets.items():
            end = self._queues.max_offset(queue)
            if not 0 <= offset <= end:
                raise ValueError(f"{queue} ends at {end}: it has no queue offset {offset}")
        for queue, offset in offsets.items():
            set_offset(self._brokers, wire_group, self._namespace.wire_queue(queue), offset)
        if not self.members(group):
            return
        times = {queue: self._time_of(queue, offset) for queue, offset in offsets.items()}
        # The earliest comes last: for 4.9 the last one counts.
        for queue in sorted(offsets, key=lambda queue: times[queue], reverse=True):
            offset, wire = offsets[queue], self._namespace.wire_queue(queue)
            request = ResetConsumerOffset(
                topic=wire.topic,
                group=wire_group,
                timestamp=times[queue] if times[queue] < END_MS else -1,
                is_force=True,
                queue_id=wire.queue_id,
                offset=offset,
            )
            self._brokers.ask(queue.broker_name, request, also=(ResponseCode.CONSUMER_NOT_ONLINE,))

    def begin_at_the_end(self, group: str, topic: str, queues: Queues) -> bool:
        """See ConsumerGroups.begin_at_the_end. Offsets of some queues look like those of a group that has
        begun, so none is written before every broker has told the ends of its queues."""
        wire_group = self._wire_group(group)
        with suppress(TopicNotFound, NotPermitted):
            if not self.offsets(group, topic):
                ends = {queue: queues.max_offset(queue) for queue in queues.readable(topic)}
                for name in {queue.broker_name for queue in ends}:
                    self._brokers.master(name)  # Its master would not have what a slave is told.
                for queue, end in ends.items():
                    set_offset(self._brokers, wire_group, self._namespace.wire_queue(queue), end)
            return True
        return False

    def delete(self, group: str, dead_letters: bool) -> None:
        """What mqadmin deleteSubGroup does, unless there are live members. Brokers do not look for these: one
        that joins at the same moment may find its first commits forgotten."""
        check_deletable(group)
        if _is_own(group):
            raise NotPermitted(f"{group} is one of RocketMQ's own groups, which its tools need")
        brokers = self._brokers.masters()
        check_unused(group, self.members(group))
        request = DeleteGroup(self._wire_group(group), clean_offset=True, remove_offset=True)
        for broker in brokers:
            self._brokers.ask(broker, request, only_master=True)
        for prefix in (RETRY_PREFIX, DEAD_PREFIX) if dead_letters else (RETRY_PREFIX,):
            with suppress(TopicNotFound):
                self._delete_topic(prefix + group)

    def _time_of(self, queue: MessageQueue, offset: int) -> int:
        """When the message at an offset was stored, in ms; END_MS for the end of the queue."""
        stored_ms = self._stored_ms(queue, offset)
        return END_MS if stored_ms is None else stored_ms

    def _stored_ms(self, queue: MessageQueue, offset: int) -> int | None:
        found = self._queues.puller(queue)(offset, 1, READ_SIZE_MAX, None, 0.0)
        return found.messages[0].store_time_ms if found.status is PullStatus.FOUND else None

    def _state(
        self, queue: MessageQueue, committed: int | None, owner: Member | None, reason: str
    ) -> QueueState:
        begin, end = self._queues.min_offset(queue), self._queues.max_offset(queue)
        at = begin if committed is None else max(begin, min(committed, end))
        lag = end - at
        if lag and not reason and owner is None:
            reason = "no live member reports that it owns this queue"
        return QueueState(
            queue=queue,
            owner=owner,
            committed=committed,
            end=end,
            lag=lag,
            oldest_unconsumed_ms=self._stored_ms(queue, at) if lag else None,
            reason=reason if lag else "",
        )

    def _owners(self, group: str) -> _Owners:
        wire_group = self._wire_group(group)
        owners = _Owners()
        names = self._brokers.names()
        for member in self.members(group):
            owners.members.append(member)
            try:
                request = GetConsumerRunningInfo(wire_group, member.client_id, jstack_enable=False)
                answer = self._brokers.ask_first(names, request)
                for queue in body_of(RunningInfo, answer).mq_table:
                    owners.of_queue[queue] = member
            except MQError as error:
                log.debug(
                    "group %s: member %s does not report its queues: %s", group, member.client_id, error
                )
        return owners

    def _connections(self, group: str) -> Iterable[ConsumerConnections]:
        """The members that each broker knows."""
        request = GetConsumerConnections(self._wire_group(group))
        for broker in self._brokers.names():
            answer = self._brokers.ask(
                broker, request, also=(ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
            )
            if answer.code == ResponseCode.SUCCESS:
                yield body_of(ConsumerConnections, answer)

    def _member(self, connection: Connection, connections: ConsumerConnections) -> Member:
        subscriptions = tuple(
            Subscription(self._namespace.plain(topic), each.sub_string, each.expression_type)
            for topic, each in sorted(connections.subscription_table.items())
            if not topic.startswith(RETRY_PREFIX)
        )
        return Member(
            client_id=connection.client_id,
            pid=0,
            host=connection.client_addr.rpartition(":")[0],
            since_ms=0,
            model="broadcasting" if connections.message_model is MessageModel.BROADCASTING else "clustering",
            consume_type="pull" if connections.consume_type is ConsumeType.PULL else "push",
            ordered=False,
            subscriptions=subscriptions,
        )

    def _wire_group(self, group: str) -> str:
        check_group(group)
        return self._namespace.wire(group)


class _Owners:
    def __init__(self) -> None:
        self.members: list[Member] = []
        self.of_queue: dict[MessageQueue, Member] = {}


def _is_own(group: str) -> bool:
    """Whether it is one of RocketMQ's own groups, which every broker has settings of."""
    return is_system_group(group) or group in OWN_GROUPS or group.startswith("CID_ONS")


OWN_GROUPS = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP", "__MONITOR_CONSUMER"}
)
