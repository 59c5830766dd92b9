"""Heartbeats, and the members of a group.

RocketMQ: broker/processor/ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from __future__ import annotations

from time import monotonic

from mq.api.group import Member, Subscription
from mq.filter.tags import parse, tag_hash
from mq.names import check_group
from mq.remoting.codec.bodies.consuming import Connection, ConsumerConnections, ConsumerIds
from mq.remoting.codec.bodies.heartbeat import ClientCheck, ConsumeFrom, ConsumeType, Heartbeat, MessageModel
from mq.remoting.codec.bodies.heartbeat import Subscription as SubscriptionData
from mq.remoting.codec.language import VERSION, Language
from mq.remoting.codec.requests.groups import (
    CheckClientConfig,
    GetConsumerList,
    HeartBeat,
    HeartBeatAnswer,
    UnregisterClient,
)
from mq.remoting.codec.requests.statistics import GetConsumerConnections
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.groups.members import selection_of
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["handlers", "subscription_data"]

handlers = Handlers()


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
    members = call.served.broker.consumer_groups.members(group)
    if not members:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    own = call.served.members.of(call.connection, group)
    if own is not None:
        own.listed_at = monotonic()
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
            local = Connection(member.client_id, f"{member.host}:{member.pid}", Language.PYTHON.name, VERSION)
            found.append(local)
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
