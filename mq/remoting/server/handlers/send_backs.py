"""What a consumer failed to consume, handed back.

The request names a log offset, which may be that of any message of the store. So the topic of the message
found there is checked, and for a retry the topic that it was first sent to as well.

RocketMQ: broker/processor/AbstractSendMessageProcessor.java, consumerSendMsgBack.
"""

from __future__ import annotations

from mq.api.group import Claim
from mq.api.results import MessageQueue
from mq.errors import NotPermitted
from mq.message import MessageExt
from mq.names import DEAD_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, UNSENDABLE_TOPICS, check_group
from mq.remoting.codec.requests.sending import SendMessageBack
from mq.remoting.server.dispatch import Call, Handlers, Lane
from mq.remoting.server.replies import DONE, Reply

__all__ = ["handlers"]

handlers = Handlers()

RETRIES_MAX = 16


@handlers.on(SendMessageBack, lane=Lane.HOT)
def send_back(request: SendMessageBack, call: Call) -> Reply:
    served, group = call.served, request.group
    check_group(group)
    message = served.store_hosts.message(request.offset, request.origin_msg_id)
    _check_topic(message, call)
    queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
    member = served.members.of(call.connection, group)
    kept = member.kept(queue) if member is not None else None
    # Of a queue that the member has given up meanwhile, perhaps just now, it is handed back all the same: its
    # successor may consume it once more, but it is not lost.
    limit = RETRIES_MAX if request.max_reconsume_times is None else request.max_reconsume_times

    def send(claim: Claim) -> bool:
        return claim.send_back(message, delay_level=request.delay_level, max_reconsume_times=limit)

    if kept is None or not send(kept.claim):
        send(served.broker.consumer_groups.assigned(group).claim(queue))
    return DONE


def _check_topic(message: MessageExt, call: Call) -> None:
    """Raises NotPermitted, Refusal if the client may not read the message."""
    topic = message.topic
    if topic in UNSENDABLE_TOPICS or topic.startswith(SYSTEM_PREFIX):
        # Delayed messages, and halves of open transactions: no consumer has them yet.
        raise NotPermitted(
            f"the message at log offset {message.log_offset} is in {topic}, which is the broker's own: send"
            " back only what was pulled"
        )
    access = call.served.access
    if access is None:
        return
    topics = [topic]
    if topic.startswith((RETRY_PREFIX, DEAD_PREFIX)) and (origin := message.properties.get("RETRY_TOPIC")):
        topics.append(origin)
    access.check_readable(call.frame, topics)
