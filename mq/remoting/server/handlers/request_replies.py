"""Replies: what a consumer answers to a message of Producer.request().

The message names the client id of the producer that waits. Its consumer sends the reply to the broker, which
pushes it to that producer, and answers once the producer has. The reply is stored as well, in a topic for all
replies, where operators find it. Where the producer is connected to another server of the same directory,
that one finds it there, too: then the answer says that the reply is stored (reply_relay.py).

RocketMQ: broker/processor/ReplyMessageProcessor.java.
"""

from __future__ import annotations

import logging

from mq.errors import MessageTooLarge, MQError
from mq.properties import decode
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.pushed import PushReplyMessage
from mq.remoting.codec.requests.sending import (
    SendAnswer,
    SendFields,
    SendReplyMessage,
    SendReplyMessageV2,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers, Lane
from mq.remoting.server.handlers.sending import ALWAYS, COMPRESSION, queue_of, stored
from mq.remoting.server.messages import REPLY_TO, sent_message
from mq.remoting.server.replies import Refusal, Reply
from mq.remoting.server.reply_relay import REPLY_SECONDS, pushed_now

__all__ = ["handlers"]

handlers = Handlers()

log = logging.getLogger("mq.remoting")


@handlers.on(SendReplyMessageV2, SendReplyMessage, lane=Lane.HOT, always=ALWAYS)
def send_reply(request: SendFields, call: Call) -> Reply | None:
    served, body = call.served, call.frame.body
    properties = request.properties or ""
    if len(body) > served.broker.message_size_max:
        raise MessageTooLarge(len(body), served.broker.message_size_max)
    client_id = decode(properties.encode()).get(REPLY_TO)
    if not client_id:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"reply message properties[{REPLY_TO}] is null")
    producer = served.members.producer(client_id)
    if producer is None:
        done = _store(request, call, properties)
        if done is not None and served.relay.is_heard_elsewhere():
            return done
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"push reply message fail, channel of <{client_id}> not found: no producer of this client id is"
            " connected to this server, and no other one serves the store to producers that wait for replies",
        )
    told, now_ms = pushed_now(properties)
    # It is delivered even if it cannot be stored.
    done = _store(request, call, told) or Reply(SendAnswer("0", max(request.queue_id, 0), 0))

    def answered(answer: Frame | MQError) -> None:
        if isinstance(answer, Frame) and answer.code == ResponseCode.SUCCESS:
            call.answer(done)
            return
        reason = answer.remark if isinstance(answer, Frame) else answer
        remark = f"push reply message to {client_id} fail: {reason}"
        call.answer(Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark))

    pushed = PushReplyMessage(
        request.producer_group,
        request.topic,
        request.default_topic,
        request.default_topic_queue_nums,
        request.queue_id,
        request.sys_flag,
        request.born_timestamp,
        request.flag,
        born_host=call.connection.address,
        store_host=served.address(call.connection),
        store_timestamp=now_ms,
        properties=told,
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
    )
    producer.ask(pushed, answered, REPLY_SECONDS, body)
    return None


def _store(request: SendFields, call: Call, properties: str) -> Reply | None:
    """Store the reply, without waiting for the disk. The answer of a stored one; None if it cannot be."""
    served = call.served
    sent = sent_message(request.topic, call.frame.body, request.flag, properties)
    try:
        queue = queue_of(request, call, request.topic)
        while True:
            append = served.oneway_appender(queue)
            flags = request.sys_flag & COMPRESSION
            result = append(sent.message, call.frame.body, flags, sent.unique_id or None)
            if result is not None:
                return stored(call, result, None)
            served.forget_appenders()
    except (MQError, OSError) as error:
        log.warning("a reply of %s is not stored: %s", call.connection.address, error)
        return None
