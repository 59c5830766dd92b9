"""Messages by offset id, by key, by unique id; and taking delayed ones back.

RocketMQ: broker/processor/QueryMessageProcessor.java, RecallMessageProcessor.java.
"""

from __future__ import annotations

from mq.errors import MessageNotFound, NotPermitted, TopicNotFound
from mq.message import MessageExt
from mq.remoting.codec.requests.consuming import QueryAnswer, QueryMessage, ViewMessageById
from mq.remoting.codec.requests.sending import RecallAnswer, RecallMessage
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.replies import Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()

COUNT_MAX = 64  # messages of one answer: four MiB each fit into few frames
UNIQUE_COUNT_MAX = 32
ANSWER_SIZE_MAX = 12 << 20
TIME_MAX = 1 << 62


@handlers.on(QueryMessage)
def query(request: QueryMessage, call: Call) -> Reply:
    served, broker = call.served, call.served.broker
    count = UNIQUE_COUNT_MAX if request.is_unique_key else min(max(request.max_num, 1), COUNT_MAX)
    try:
        found = broker.query(
            request.topic,
            request.key,
            count_max=count,
            begin_ms=max(request.begin_timestamp, 0),
            end_ms=min(request.end_timestamp, TIME_MAX),
        )
    except TopicNotFound:
        found = []
    if not found:
        raise Refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"can not find message: {request.topic} has none of the key {request.key[:80]!r} in this time",
        )
    size = 0
    fitting: list[MessageExt] = []
    for message in found:
        size += len(message.record)
        if fitting and size > ANSWER_SIZE_MAX:
            break
        fitting.append(message)
    newest = max(fitting, key=lambda message: message.log_offset)
    body = served.store_hosts.records(fitting, served.store_host(call.connection))
    return Reply(QueryAnswer(newest.store_time_ms, newest.log_offset), body)


@handlers.on(ViewMessageById)
def view(request: ViewMessageById, call: Call) -> Reply:
    served = call.served
    found = served.store_hosts.message(request.offset)
    return Reply(body=served.store_hosts.records([found], served.store_host(call.connection)))


@handlers.on(RecallMessage)
def recall(request: RecallMessage, call: Call) -> Reply:
    try:
        return Reply(RecallAnswer(call.served.broker.recall(request.recall_handle)))
    except (NotPermitted, MessageNotFound, ValueError) as error:
        raise Refusal(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
