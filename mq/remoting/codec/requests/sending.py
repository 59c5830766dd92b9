"""Sending messages, ending transactions, taking delayed messages back."""

from __future__ import annotations

from mq.remoting.codec.body_kind import BATCH, MESSAGE
from mq.remoting.codec.fields import Answer, Int, Long, Request
from mq.remoting.codec.wire_names import wire

__all__ = [
    "EndTransaction",
    "RecallAnswer",
    "RecallMessage",
    "SendAnswer",
    "SendBatchMessage",
    "SendFields",
    "SendMessage",
    "SendMessageBack",
    "SendMessageV2",
    "SendReplyMessage",
    "SendReplyMessageV2",
]

V2_LETTERS = "abcdefghijklmn"


class SendFields(Request):
    """What all ways of sending have in common.

    default_topic is the topic whose settings a new one gets, default_topic_queue_nums how many queues it may
    have. queue_id < 0 leaves the choice to the broker. sys_flag says whether and how the body is compressed,
    and what the message is in a transaction. properties is the property string (mq/properties.py).
    reconsume_times and max_reconsume_times are of messages to retry topics.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int | None = None
    batch: bool | None = None
    broker_name: str | None = wire("bname", default=None)


class SendAnswer(Answer):
    """msg_id is the offset id; of a batch all of them, with commas between, and queue_offset is the first's.

    Java's client reads MSG_REGION from every answer, also of a send that failed.
    """

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None  # ⁵
    recall_handle: str | None = None  # ⁵ of a message with a time of its own
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: str | None = wire("TRACE_ON", default=None)


class SendMessage(SendFields, code=10, name="SEND_MESSAGE", body=MESSAGE, answer=SendAnswer):
    """With long names of fields, as old clients send."""


class SendMessageV2(
    SendFields, code=310, name="SEND_MESSAGE_V2", body=MESSAGE, answer=SendAnswer, letters=V2_LETTERS
):
    """The same with a letter for each name, which is what clients send."""


class SendBatchMessage(
    SendFields, code=320, name="SEND_BATCH_MESSAGE", body=BATCH, answer=SendAnswer, letters=V2_LETTERS
):
    """Several messages to one queue; `batch` is true."""


class SendReplyMessage(SendFields, code=324, name="SEND_REPLY_MESSAGE", body=MESSAGE, answer=SendAnswer):
    """The answer to a message of Producer.request(), which the broker pushes to the requester."""


class SendReplyMessageV2(
    SendFields,
    code=325,
    name="SEND_REPLY_MESSAGE_V2",
    body=MESSAGE,
    answer=SendAnswer,
    letters=V2_LETTERS,
):
    """The same with letters."""


class SendMessageBack(Request, code=36, name="CONSUMER_SEND_MSG_BACK"):
    """A consumer failed: the broker puts the message, by its log offset, into the retry or dead letter topic.

    delay_level 0: the broker decides; < 0: dead letters at once.
    """

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int | None = None
    broker_name: str | None = wire("bname", default=None)


class EndTransaction(Request, code=37, name="END_TRANSACTION"):
    """Commit (8) or roll back (12) a half message; 0 is neither. Sent oneway.

    tran_state_table_offset and commit_log_offset say where the half message is: in the queue, in the log.
    msg_id is its unique id.
    """

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None  # ⁵
    broker_name: str | None = wire("bname", default=None)


class RecallAnswer(Answer):
    msg_id: str


class RecallMessage(Request, code=370, name="RECALL_MESSAGE", answer=RecallAnswer):
    """Takes back a message with a time of its own, before it is delivered. ⁵"""

    topic: str
    recall_handle: str
    producer_group: str | None = None
