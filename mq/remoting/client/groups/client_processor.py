"""Requests from brokers and operators to consumers, over the consumers' own connections.

The event loop calls the handlers, so they only read what is in memory.
RocketMQ: client/impl/ClientRemotingProcessor.java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from mq.api.results import MessageQueue
from mq.errors import RemotingError
from mq.remoting.client.connections.connection import Connection
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.client.groups.membership import RemoteMembership
from mq.remoting.codec.bodies.consuming import (
    ConsumersStatus,
    ProcessQueueStatus,
    QueueOffsetList,
    QueueOffsets,
    RunningInfo,
)
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame, answer_to
from mq.remoting.codec.json_body import from_json, to_json
from mq.remoting.codec.requests.pushed import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    ResetClientOffset,
)
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["ClientProcessor"]


class ClientProcessor:
    """members(): the live members of this process that use the connections of a Remoting."""

    def __init__(self, remoting: Remoting, members: Callable[[], Iterable[RemoteMembership]]) -> None:
        self._members = members
        remoting.handle(NotifyConsumerIdsChanged.CODE, self._ids_changed)
        remoting.handle(ResetClientOffset.CODE, self._reset)
        remoting.handle(GetConsumerStatusFromClient.CODE, self._status)
        remoting.handle(GetConsumerRunningInfo.CODE, self._running_info)
        remoting.handle(ConsumeMessageDirectly.CODE, self._consume_directly)

    def _of(self, wire_group: str) -> list[RemoteMembership]:
        return [member for member in self._members() if member.wire_group == wire_group]

    def _ids_changed(self, _connection: Connection, request: Frame) -> None:
        for member in self._of(decode_fields(NotifyConsumerIdsChanged, request.fields).consumer_group):
            member.changed()

    def _reset(self, _connection: Connection, request: Frame) -> None:
        fields = decode_fields(ResetClientOffset, request.fields)
        offsets = _reset_offsets(request.body)
        for member in self._of(fields.group):
            member.reset({member.plain_queue(queue): offset for queue, offset in offsets.items()})

    def _status(self, _connection: Connection, request: Frame) -> Frame:
        fields = decode_fields(GetConsumerStatusFromClient, request.fields)
        offsets = {
            member.wire_queue(queue): claim.offset
            for member in self._of(fields.group)
            for queue, claim in list(member.claims.items())
            if claim.offset is not None and member.wire_queue(queue).topic == fields.topic
        }
        return answer_to(request, ResponseCode.SUCCESS, body=to_json(ConsumersStatus(offsets)))

    def _running_info(self, _connection: Connection, request: Frame) -> Frame:
        fields = decode_fields(GetConsumerRunningInfo, request.fields)
        for member in self._of(fields.consumer_group):
            if member.client_id == fields.client_id:
                return answer_to(request, ResponseCode.SUCCESS, body=to_json(_running_info(member)))
        return answer_to(
            request,
            ResponseCode.SYSTEM_ERROR,
            remark=f"client {fields.client_id} is no member of group {fields.consumer_group} here",
        )

    def _consume_directly(self, _connection: Connection, request: Frame) -> Frame:
        return answer_to(
            request,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark="a consumer of mq takes messages only from its queues: send the message again instead",
        )


def _reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """The offsets of a reset: a table for Java clients, a list for C++ clients."""
    try:
        return from_json(QueueOffsets, body).offset_table
    except RemotingError:
        return {
            MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset
            for each in from_json(QueueOffsetList, body).offset_table
        }


def _running_info(member: RemoteMembership) -> RunningInfo:
    """The data of a member that `mqadmin consumerStatus` shows."""
    now = int(time.time() * 1000)
    return RunningInfo(
        properties={
            "PROP_CONSUME_TYPE": member.consumer_group().consume_type.value,
            "PROP_CONSUMEORDERLY": "true" if member.is_ordered else "false",
            "PROP_THREADPOOL_CORE_SIZE": "1",
            "PROP_CONSUMER_START_TIMESTAMP": str(member.since_ms),
            "PROP_CLIENT_VERSION": "mq",
        },
        subscription_set=member.consumer_group().subscription_data_set,
        mq_table={
            member.wire_queue(queue): ProcessQueueStatus(
                commit_offset=claim.offset or 0,
                locked=claim.is_locked,
                last_pull_timestamp=now,
                last_consume_timestamp=now,
            )
            for queue, claim in list(member.claims.items())
        },
    )
