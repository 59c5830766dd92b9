"""Storing messages: one, several, halves of transactions.

RocketMQ: broker/processor/SendMessageProcessor.java.
"""

from __future__ import annotations

import random
from typing import Final

from mq.api.queues import Appender
from mq.api.results import MessageQueue, SendResult
from mq.errors import MessageInvalid, MessageTooLarge, TopicNotFound
from mq.names import RETRY_PREFIX
from mq.remoting.codec.requests.sending import (
    SendAnswer,
    SendBatchMessage,
    SendFields,
    SendMessage,
    SendMessageV2,
)
from mq.remoting.server.dispatch import Call, Handlers, Lane
from mq.remoting.server.messages import dead_letters_topic, sent_batch, sent_message
from mq.remoting.server.replies import Reply

__all__ = ["ALWAYS", "COMPRESSION", "handlers", "queue_of", "stored"]

handlers = Handlers()

# Java's client reads the first from every answer, also of a send that failed.
ALWAYS: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
COMPRESSION: Final = 0x701  # bits of sys_flag that say whether and how the body is compressed
RETRIES_MAX = 16  # of a group, where its consumer does not say


@handlers.on(SendMessageV2, SendMessage, SendBatchMessage, lane=Lane.SEND, always=ALWAYS)
def send(request: SendFields, call: Call) -> Reply:
    if request.batch:
        return _send_batch(request, call)
    served, body = call.served, call.frame.body
    broker = served.broker
    topic = request.topic
    sent = sent_message(topic, body, request.flag, request.properties or "")
    if len(body) > broker.message_size_max:
        raise MessageTooLarge(len(body), broker.message_size_max)
    if topic.startswith(RETRY_PREFIX) and _is_last(request):
        topic = dead_letters_topic(topic)
        sent = sent_message(topic, body, request.flag, request.properties or "")
    queue = queue_of(request, call, topic)
    sys_flag = request.sys_flag & COMPRESSION
    if sent.wants_reply:
        served.relay.listen()
    # Of oneway sends that follow each other, the last waits for the disk, for all of them.
    is_hurried = call.frame.is_oneway and call.connection.is_send_followed
    while True:
        if sent.is_half:
            append: Appender = broker.transactions.preparer(queue, request.producer_group)
        else:
            append = served.oneway_appender(queue) if is_hurried else served.appender(queue)
        result = append(sent.message, body, sys_flag, sent.unique_id or None)
        if result is not None:
            break
        served.forget_appenders()
    return stored(call, result, result.msg_id)


def _send_batch(request: SendFields, call: Call) -> Reply:
    broker, frame = call.served.broker, call.frame
    if request.topic.startswith(RETRY_PREFIX):
        raise MessageInvalid("a batch cannot be sent to a retry topic: send its messages one by one")
    if len(frame.body) > broker.message_size_max:
        raise MessageTooLarge(
            len(frame.body),
            broker.message_size_max,
            f"a batch of {len(frame.body):,} bytes is over the limit of {broker.message_size_max:,}:"
            " send several smaller ones",
        )
    messages = sent_batch(request.topic, frame.body)
    result = broker.append_batch(queue_of(request, call, request.topic), messages)
    return stored(call, result, None)


def stored(call: Call, result: SendResult, transaction_id: str | None) -> Reply:
    """The answer to a send whose message is stored."""
    served = call.served
    served.traffic.stored += len(result.msg_ids)
    fields = SendAnswer(
        served.store_hosts.offset_id(result.offset_msg_id, served.store_host(call.connection)),
        result.queue.queue_id,
        result.queue_offset,
        transaction_id,
        recall_handle=result.recall_handle,
    )
    return Reply(fields, code=result.status.value)


def queue_of(request: SendFields, call: Call, topic: str) -> MessageQueue:
    """The queue that is meant; any of the topic's where the client leaves the choice."""
    if request.queue_id >= 0 and topic == request.topic:
        return call.served.queue(topic, request.queue_id, request.broker_name)
    queues = call.served.broker.publishable(topic)
    if not queues:
        raise TopicNotFound(topic)
    return random.choice(queues)


def _is_last(request: SendFields) -> bool:
    """Whether a consumer has tried as often as it will."""
    limit = RETRIES_MAX if request.max_reconsume_times is None else request.max_reconsume_times
    return (request.reconsume_times or 0) >= (RETRIES_MAX if limit < 0 else limit)
