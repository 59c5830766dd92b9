"""What an operator asks of one consumer: the server hands it on, and hands the answer back.

Of a consumer that is not connected here, which is a local one or another server's, the server tells what the
directory knows of it.

RocketMQ: broker/processor/AdminBrokerProcessor.java (callConsumer).
"""

from __future__ import annotations

import re
import time
from typing import Final

from mq.api.group import Member
from mq.errors import InsufficientResources, MessageNotFound, MQError, RequestTimeout
from mq.message import MessageExt
from mq.names import check_group
from mq.remoting.codec.bodies.consuming import ProcessQueueStatus, RunningInfo
from mq.remoting.codec.bodies.heartbeat import ConsumeType
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.language import version_name
from mq.remoting.codec.requests.pushed import ConsumeMessageDirectly, GetConsumerRunningInfo
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.handlers.groups import connection_of, is_remote, subscription_data
from mq.remoting.server.replies import Refusal, Reply
from mq.remoting.server.transport.connection import Connection

__all__ = ["OFFSET_ID", "handlers"]

handlers = Handlers()

OFFSET_ID: Final = re.compile("[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")  # an address and a log offset
ANSWER_SECONDS = 10.0  # RocketMQ's figure


@handlers.on(GetConsumerRunningInfo)
def running_info(request: GetConsumerRunningInfo, call: Call) -> Reply | None:
    """What a consumer is at: its queues, rates and settings."""
    group = request.consumer_group
    check_group(group)
    for remote in call.served.members.of_group(group):
        if remote.client_id == request.client_id:
            _hand_on(call, remote.connection, request)
            return None
    for member in call.served.broker.consumer_groups.members(group):
        if member.client_id == request.client_id:
            return Reply(body=_known(call, group, member))
    raise _not_online(group, request.client_id)


@handlers.on(ConsumeMessageDirectly)
def consume_directly(request: ConsumeMessageDirectly, call: Call) -> None:
    """Have a consumer's listener take one message, whatever the group's offsets are."""
    served, group, client_id = call.served, request.consumer_group, request.client_id or ""
    check_group(group)
    for remote in served.members.of_group(group):
        if remote.client_id == client_id:
            found = _message(call, request.msg_id or "")
            body = served.store_hosts.records([found], served.store_host(remote.connection))
            handed = ConsumeMessageDirectly(
                group, client_id, request.msg_id, served.broker.name, found.topic, 0, 0
            )
            _hand_on(call, remote.connection, handed, body)
            return
    raise _not_online(group, client_id)


def _message(call: Call, msg_id: str) -> MessageExt:
    """The message of a unique id, or of an offset id, which names this server. Raises MessageNotFound."""
    try:
        return call.served.broker.message(msg_id)
    except MessageNotFound:
        if not OFFSET_ID.fullmatch(msg_id):
            raise
        return call.served.store_hosts.message(int(msg_id[-16:], 16))


def _hand_on(call: Call, to: Connection, request: Request, body: bytes = b"") -> None:
    """Ask a client, and give its answer to the operator, whatever it is."""

    def answered(answer: Frame | MQError) -> None:
        if isinstance(answer, Frame):
            call.answer(Reply(None, answer.body, answer.code, answer.remark))
            return
        code = ResponseCode.SYSTEM_ERROR
        if isinstance(answer, RequestTimeout):
            code = ResponseCode.CONSUME_MSG_TIMEOUT
        elif isinstance(answer, InsufficientResources):
            code = ResponseCode.SYSTEM_BUSY
        call.answer(Reply(code=code, remark=str(answer)))

    to.ask(request, answered, ANSWER_SECONDS, body)


def _known(call: Call, group: str, member: Member) -> RunningInfo:
    """What the directory knows of a consumer."""
    groups, queues, now_ms = call.served.broker.consumer_groups, {}, time.time_ns() // 1_000_000
    for each in member.subscriptions:
        for state in groups.states(group, each.topic):
            if state.owner is not None and state.owner.client_id == member.client_id:
                queues[state.queue] = ProcessQueueStatus(
                    state.committed or 0,
                    locked=member.ordered,
                    # Of a queue that stands still, tools look at these.
                    last_pull_timestamp=0 if state.reason else now_ms,
                    last_consume_timestamp=0 if state.reason else now_ms,
                )
    version = "mq"
    if is_remote(member):
        version = "V" + re.sub("[.-]", "_", version_name(connection_of(member).version))
    kind = ConsumeType.PUSH if member.consume_type == "push" else ConsumeType.PULL
    properties = {
        "PROP_CONSUME_TYPE": kind.value,
        "PROP_CONSUMEORDERLY": str(member.ordered).lower(),
        "PROP_CONSUMER_START_TIMESTAMP": str(member.since_ms),
        "PROP_CLIENT_VERSION": version,
        "PROP_NAMESERVER_ADDR": "",
        "PROP_THREADPOOL_CORE_SIZE": "0",
    }
    data = tuple(subscription_data(each, member) for each in member.subscriptions)
    return RunningInfo(properties, data, queues)


def _not_online(group: str, client_id: str) -> Refusal:
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The Consumer <{group}> <{client_id}> not online: it is no member of the group that is connected to"
        " this server",
    )
