"""What operators have the broker do at once: delete what is too old, check a transaction again.

RocketMQ: broker/processor/AdminBrokerProcessor.java (deleteExpiredCommitLog, cleanExpiredConsumeQueue,
cleanUnusedTopic, resumeCheckHalfMessage).
"""

from __future__ import annotations

from mq.api.local import directory
from mq.errors import MessageNotFound
from mq.remoting.codec.requests.brokers import (
    CleanExpiredQueues,
    CleanUnusedTopics,
    DeleteExpiredFiles,
    ResumeCheckHalfMessage,
)
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.handlers.operators.clients import OFFSET_ID
from mq.remoting.server.replies import DONE, Reply

__all__ = ["handlers"]

handlers = Handlers()


@handlers.on(DeleteExpiredFiles)
def delete_expired_files(_request: DeleteExpiredFiles, call: Call) -> Reply:
    """Delete what is older than the store keeps, as its leader does from time to time."""
    directory(call.served.broker, "deleting old messages").expire()
    return DONE


@handlers.on(CleanExpiredQueues, CleanUnusedTopics)
def clean(_request: object, call: Call) -> Reply:
    """Nothing is left to do: a queue's files go with the files of the log, or with the topic."""
    directory(call.served.broker, "cleaning queues")
    return DONE


@handlers.on(ResumeCheckHalfMessage)
def resume(request: ResumeCheckHalfMessage, call: Call) -> Reply:
    """Have a transaction that was given up checked again. Its message is named by the unique id, or by the
    offset id in the topic of those that were given up."""
    served, msg_id = call.served, request.msg_id or ""
    try:
        served.broker.transactions.resume(msg_id)
    except MessageNotFound:
        if not OFFSET_ID.fullmatch(msg_id):
            raise
        found = served.store_hosts.message(int(msg_id[-16:], 16))
        served.broker.transactions.resume(found.msg_id)
    return DONE
