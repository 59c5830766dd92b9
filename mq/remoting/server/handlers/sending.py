"""Storing messages: one, several, halves of transactions; and replies.

A message of Producer.request() names the client id of the producer that waits. Its consumer sends the reply
to the broker, which pushes it to that producer, and answers once the producer has. The reply is stored as
well, in a topic for all replies, where operators find it.

RocketMQ: broker/processor/SendMessageProcessor.java, ReplyMessageProcessor.java.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Final

from mq.api.queues import Appender
from mq.api.results import MessageQueue, SendResult
from mq.errors import MessageInvalid, MessageTooLarge, MQError, TopicNotFound
from mq.names import RETRY_PREFIX
from mq.properties import decode
from mq.remoting.codec.batch import decode_batch
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.pushed import PushReplyMessage
from mq.remoting.codec.requests.sending import (
    SendAnswer,
    SendBatchMessage,
    SendFields,
    SendMessage,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers, Lane
from mq.remoting.server.messages import REPLY_TO, Sent, dead_letters_topic, sent_message
from mq.remoting.server.replies import Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()

log = logging.getLogger("mq.remoting")

# Java's client reads the first from every answer, also of a send that failed.
ALWAYS: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
COMPRESSION: Final = 0x701  # bits of sys_flag that say whether and how the body is compressed
REPLY_SECONDS = 10.0  # for the producer that gets a reply; RocketMQ's figure
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
    queue = _queue(request, call, topic)
    sys_flag = request.sys_flag & COMPRESSION
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
    messages = [
        sent_message(request.topic, entry.body, entry.flag, entry.properties.decode("utf-8", "replace"))
        for entry in decode_batch(frame.body)
    ]
    if not messages:
        raise MessageInvalid("a batch without messages: send at least one")
    if any(each.is_half for each in messages):
        raise MessageInvalid("a batch takes no halves of transactions: send them one by one")
    queue = _queue(request, call, request.topic)
    result = broker.append_batch(queue, [each.message for each in messages])
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


def _queue(request: SendFields, call: Call, topic: str) -> MessageQueue:
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


@handlers.on(SendReplyMessageV2, SendReplyMessage, lane=Lane.HOT, always=ALWAYS)
def send_reply(request: SendFields, call: Call) -> None:
    served, body = call.served, call.frame.body
    sent = sent_message(request.topic, body, request.flag, request.properties or "")
    if len(body) > served.broker.message_size_max:
        raise MessageTooLarge(len(body), served.broker.message_size_max)
    client_id = decode((request.properties or "").encode()).get(REPLY_TO)
    if not client_id:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"reply message properties[{REPLY_TO}] is null")
    done = _store_reply(request, call, sent)
    producer = served.members.producer(client_id)
    if producer is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"push reply message fail, channel of <{client_id}> not found: no producer of this client id is"
            " connected to this server",
        )

    def answered(answer: Frame | MQError) -> None:
        if isinstance(answer, Frame) and answer.code == ResponseCode.SUCCESS:
            call.answer(done)
            return
        reason = answer.remark if isinstance(answer, Frame) else answer
        remark = f"push reply message to {client_id} fail: {reason}"
        call.answer(Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark))

    producer.ask(_pushed(request, call), answered, REPLY_SECONDS, body)


def _store_reply(request: SendFields, call: Call, sent: Sent) -> Reply:
    """Store the reply, without waiting for the disk. The answer if it is delivered, which it is even if it
    cannot be stored."""
    served = call.served
    try:
        queue = _queue(request, call, request.topic)
        while True:
            append = served.oneway_appender(queue)
            flags = request.sys_flag & COMPRESSION
            result = append(sent.message, call.frame.body, flags, sent.unique_id or None)
            if result is not None:
                return stored(call, result, None)
            served.forget_appenders()
    except (MQError, OSError) as error:
        log.warning("a reply of %s is not stored: %s", call.connection.address, error)
        return Reply(SendAnswer("0", max(request.queue_id, 0), 0))


def _pushed(request: SendFields, call: Call) -> PushReplyMessage:
    """What the producer is sent."""
    now_ms = time.time_ns() // 1_000_000
    properties = (request.properties or "").rstrip("\x02")
    return PushReplyMessage(
        request.producer_group,
        request.topic,
        request.default_topic,
        request.default_topic_queue_nums,
        request.queue_id,
        request.sys_flag,
        request.born_timestamp,
        request.flag,
        born_host=call.connection.address,
        store_host=call.served.address(call.connection),
        store_timestamp=now_ms,
        properties=f"{properties}\x02PUSH_REPLY_TIME\x01{now_ms}\x02",
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
    )
