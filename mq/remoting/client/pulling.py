"""Pull requests and their answers. Pure.

RocketMQ: client/impl/consumer/PullAPIWrapper.java, broker/processor/PullMessageProcessor.java.
"""

from __future__ import annotations

from typing import NamedTuple

from mq.api.group import Subscription
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.errors import RemotingError
from mq.remoting.client.broker_errors import translated
from mq.remoting.client.connections.answers import checked, fields_of, records_of
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.consuming import PullAnswer, PullFlag, PullMessage
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["HOLD_SECONDS", "READER_GROUP", "PullHead", "Pulled", "pull_head", "pull_request", "pulled"]

HOLD_SECONDS = 15.0  # how long a broker holds a pull that finds nothing
READER_GROUP = "TOOLS_CONSUMER"  # RocketMQ's group for readers that are not consumers
_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class PullHead(NamedTuple):
    """The header of the answer to a pull. broker_id: the broker to ask next."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int


class Pulled(NamedTuple):
    """The result of a pull, and the id of the broker, master or slave, to ask next."""

    result: PullResult
    broker_id: int


def pull_request(
    group: str,
    queue: MessageQueue,
    offset: int,
    count_max: int,
    byte_max: int,
    *,
    hold: float = 0.0,
    committed: int | None = None,
    subscription: Subscription | None = None,
    sub_version: int = 0,
) -> PullMessage:
    """The request of a pull. Names as on the wire. hold: seconds to wait for a message. committed: the
    group's offset, which the broker stores. subscription: the filter, instead of the heartbeat's."""
    flags = PullFlag.SUSPEND if hold > 0 else 0
    if committed is not None:
        flags |= PullFlag.COMMIT
    if subscription is not None:
        flags |= PullFlag.SUBSCRIPTION
    return PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count_max,
        sys_flag=flags,
        commit_offset=committed or 0,
        suspend_timeout_millis=int(hold * 1000),
        sub_version=sub_version,
        subscription=None if subscription is None else subscription.expression,
        expression_type=None if subscription is None else subscription.kind,
        max_msg_bytes=byte_max,
        broker_name=queue.broker_name,
    )


def pull_head(answer: Frame, queue: MessageQueue, offset: int, address: str) -> PullHead:
    """The header of the answer to a pull from `offset` on. Raises RemotingError, or the subclass for its code
    (see broker_errors.py)."""
    try:
        checked(answer, PullMessage, address, _STATUS)
    except RemotingError as error:
        raise translated(error, queue.topic) from None
    fields = fields_of(PullAnswer, answer)
    status = _STATUS[ResponseCode(answer.code)]
    next_offset = fields.next_begin_offset
    if status is PullStatus.FOUND and (not answer.body or next_offset <= offset):
        raise RemotingError(
            f"{address} found {len(answer.body):,} bytes of messages of {queue.topic}/{queue.queue_id} at"
            f" queue offset {offset}, and says to go on at {next_offset}",
            address=address,
        )
    if status is PullStatus.NO_NEW_MESSAGE:
        if next_offset > offset:  # Nothing there is selected, or a file of the queue is missing.
            status = PullStatus.NO_MATCHED_MESSAGE
        else:
            next_offset = offset
    return PullHead(status, next_offset, fields.min_offset, fields.max_offset, fields.suggest_which_broker_id)


def pulled(answer: Frame, queue: MessageQueue, offset: int, address: str, namespace: Namespace) -> Pulled:
    """The answer to a pull from `offset` on. Raises RemotingError, or the subclass for its code (see
    broker_errors.py)."""
    status, next_offset, min_offset, max_offset, broker_id = pull_head(answer, queue, offset, address)
    messages = []
    if status is PullStatus.FOUND:
        messages = namespace.plain_messages(records_of(answer, queue.broker_name))
    return Pulled(PullResult(status, messages, next_offset, min_offset, max_offset), broker_id)
