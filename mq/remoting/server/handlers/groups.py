"""Heartbeats, the members of a group, and its settings.

mq has one setting for all groups, which is that of a new group of RocketMQ. RocketMQ's tools make a group by
its settings, and delete these. Here a group exists once it has a member or an offset: the one request gives
it an offset of its retry topic, the other deletes the group if it is to delete the offsets as well.

RocketMQ: broker/processor/ClientManageProcessor.java, ConsumerManageProcessor.java,
AdminBrokerProcessor.java (updateAndCreateSubscriptionGroup, deleteSubscriptionGroup).
"""

from __future__ import annotations

import re
from time import monotonic
from typing import Final

from mq.api.group import Member, Subscription
from mq.errors import NotSupported
from mq.filter.tags import parse, tag_hash
from mq.names import RETRY_PREFIX, check_group
from mq.remoting.codec.bodies.consuming import Connection, ConsumerConnections, ConsumerIds
from mq.remoting.codec.bodies.heartbeat import ClientCheck, ConsumeFrom, ConsumeType, Heartbeat, MessageModel
from mq.remoting.codec.bodies.heartbeat import Subscription as SubscriptionData
from mq.remoting.codec.bodies.settings import GroupSettings, GroupSettingsList
from mq.remoting.codec.language import VERSION, Language, version_of
from mq.remoting.codec.requests.groups import (
    CheckClientConfig,
    DeleteGroup,
    GetConsumerList,
    GetGroup,
    HeartBeat,
    HeartBeatAnswer,
    UnregisterClient,
    UpdateGroup,
    UpdateGroups,
)
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.groups.members import selection_of
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["connection_of", "handlers", "is_remote", "subscription_data"]

handlers = Handlers()

DESCRIBED: Final = re.compile(r"(\S+) \(([A-Z_]+), (.+)\)")  # as Connection.described has it
# The others have no effect in RocketMQ, or only where there are slaves or pop consumers.
FIXED: Final = (
    "consume_enable",
    "consume_broadcast_enable",
    "notify_consumer_ids_changed_enable",
    "retry_queue_nums",
    "retry_max_times",
)


@handlers.on(HeartBeat)
def heartbeat(_: HeartBeat, call: Call) -> Reply:
    call.served.members.heard(call.connection, call.body(Heartbeat))
    return Reply(HeartBeatAnswer(supports_v2=False, subscription_changed=False))


@handlers.on(UnregisterClient)
def unregister(request: UnregisterClient, call: Call) -> Reply:
    call.served.members.unregister(
        call.connection, request.client_id, request.producer_group or "", request.consumer_group or ""
    )
    return DONE


@handlers.on(CheckClientConfig)
def check(_: CheckClientConfig, call: Call) -> Reply:
    data = call.body(ClientCheck).subscription_data
    selection_of(data.sub_string, data.expression_type)
    return DONE


@handlers.on(GetConsumerList)
def members(request: GetConsumerList, call: Call) -> Reply:
    group = request.consumer_group
    check_group(group)
    asked_at = monotonic()
    members = call.served.broker.consumer_groups.members(group)
    if not members:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    own = call.served.members.of(call.connection, group)
    if own is not None:
        own.listed_at = asked_at
    return Reply(body=ConsumerIds(tuple(sorted(member.client_id for member in members))))


@handlers.on(GetConsumerConnections)
def connections(request: GetConsumerConnections, call: Call) -> Reply:
    """All members of a group, those of local consumers and of other servers of the directory included."""
    group = request.consumer_group
    check_group(group)
    members = call.served.broker.consumer_groups.members(group)
    if not members:
        raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group {group} is online")
    remote = {member.client_id: member for member in call.served.members.of_group(group)}
    found = []
    for member in members:
        here = remote.get(member.client_id)
        if here is None:
            found.append(connection_of(member))
            continue
        at = here.connection
        found.append(Connection(member.client_id, at.address, at.language.name, at.version))
    first, here = members[0], remote.get(members[0].client_id)
    return Reply(
        body=ConsumerConnections(
            tuple(found),
            {
                each.topic: subscription_data(each, member)
                for member in members
                for each in member.subscriptions
            },
            ConsumeType.PUSH if first.consume_type == "push" else ConsumeType.PULL,
            MessageModel.CLUSTERING if first.model == "clustering" else MessageModel.BROADCASTING,
            here.consume_from if here is not None else ConsumeFrom.FIRST_OFFSET,
        )
    )


def is_remote(member: Member) -> bool:
    """Whether the member is a client of a server, this one or another."""
    return DESCRIBED.fullmatch(member.host) is not None


def connection_of(member: Member) -> Connection:
    """A member that is not connected to this server: it is a local one, or another server's."""
    if found := DESCRIBED.fullmatch(member.host):
        return Connection(member.client_id, found[1], found[2], version_of(found[3]))
    return Connection(member.client_id, f"{member.host}:{member.pid}", Language.PYTHON.name, VERSION)


def subscription_data(subscription: Subscription, member: Member) -> SubscriptionData:
    """A subscription as RocketMQ's tools read it."""
    wanted = parse(subscription.expression) if subscription.kind == "TAG" else None
    tags = tuple(sorted(wanted.tags)) if wanted is not None else ()
    return SubscriptionData(
        subscription.topic,
        subscription.expression,
        subscription.kind,
        tags,
        tuple(map(tag_hash, tags)),
        member.since_ms,
    )


@handlers.on(UpdateGroup)
def make(_: UpdateGroup, call: Call) -> Reply:
    _make(call, call.body(GroupSettings))
    return DONE


@handlers.on(UpdateGroups)
def make_all(_: UpdateGroups, call: Call) -> Reply:
    for settings in call.body(GroupSettingsList).group_config_list:
        _make(call, settings)
    return DONE


@handlers.on(GetGroup)
def settings(request: GetGroup, call: Call) -> Reply:
    check_group(request.group)
    if request.group not in call.served.broker.groups():
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group config not exist: {request.group}"
        )
    return Reply(body=GroupSettings(request.group))


@handlers.on(DeleteGroup)
def delete(request: DeleteGroup, call: Call) -> Reply:
    """RocketMQ's tools send requests of their own for the retry and dead letter topics."""
    check_group(request.group_name)
    if request.clean_offset or request.remove_offset:
        call.served.broker.consumer_groups.delete(request.group_name)
    return DONE


def _make(call: Call, settings: GroupSettings) -> None:
    """Raises NotSupported for settings that mq does not have."""
    group, broker = settings.group_name, call.served.broker
    check_group(group)
    own = GroupSettings(group)
    for name in FIXED:
        wanted, has = getattr(settings, name), getattr(own, name)
        if wanted != has:
            raise NotSupported(
                f"{name} of group {group} cannot be {wanted}: it is {has} for every group of a served store;"
                " set it in the consumers, as far as they can"
            )
    if group not in broker.groups():
        call.served.members.have_retry_topic(group)
        queues = broker.readable(RETRY_PREFIX + group)
        broker.consumer_groups.reset(group, {queue: broker.min_offset(queue) for queue in queues})
