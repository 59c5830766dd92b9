"""The ends of queues, and how far groups are."""

from __future__ import annotations

from mq.remoting.codec.bodies.consuming import ConsumerOffsets, ConsumersStatus, QueueOffsets
from mq.remoting.codec.bodies.settings import DelayOffsets, TimerCounts
from mq.remoting.codec.body_kind import TIMER_CHECK
from mq.remoting.codec.fields import Answer, Int, Long, Request

__all__ = [
    "CloneGroupOffset",
    "GetAllConsumerOffset",
    "GetAllDelayOffset",
    "GetConsumerStatus",
    "GetEarliestStoreTime",
    "GetMaxOffset",
    "GetMinOffset",
    "GetTimerCheckPoint",
    "GetTimerMetrics",
    "OffsetAnswer",
    "QueryConsumerOffset",
    "ResetConsumerOffset",
    "ResetFields",
    "SearchOffsetByTimestamp",
    "TimestampAnswer",
    "UpdateConsumerOffset",
]


class OffsetAnswer(Answer):
    offset: Long


class TimestampAnswer(Answer):
    timestamp: Long


class QueryConsumerOffset(Request, code=14, name="QUERY_CONSUMER_OFFSET", answer=OffsetAnswer):
    """What a group has committed of a queue. Nothing: QUERY_NOT_FOUND, or 0 by the broker's own rule."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None  # ⁵


class UpdateConsumerOffset(Request, code=15, name="UPDATE_CONSUMER_OFFSET"):
    """Commits. Sent oneway, unless the answer matters."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


class SearchOffsetByTimestamp(Request, code=29, name="SEARCH_OFFSET_BY_TIMESTAMP", answer=OffsetAnswer):
    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None  # ⁵ LOWER, which is the default, or UPPER


class GetMaxOffset(Request, code=30, name="GET_MAX_OFFSET", answer=OffsetAnswer):
    """Where the next message of a queue will be."""

    topic: str
    queue_id: Int
    committed: bool | None = None  # ⁵


class GetMinOffset(Request, code=31, name="GET_MIN_OFFSET", answer=OffsetAnswer):
    topic: str
    queue_id: Int


class GetEarliestStoreTime(Request, code=32, name="GET_EARLIEST_MSG_STORETIME", answer=TimestampAnswer):
    """In ms; -1 of an empty queue."""

    topic: str
    queue_id: Int


class GetAllConsumerOffset(Request, code=43, name="GET_ALL_CONSUMER_OFFSET", answer_body=ConsumerOffsets):
    """A slave asks its master."""


class GetAllDelayOffset(Request, code=45, name="GET_ALL_DELAY_OFFSET", answer_body=DelayOffsets):
    """A slave asks its master."""


class GetTimerCheckPoint(Request, code=60, name="GET_TIMER_CHECK_POINT", answer_body=TIMER_CHECK):
    """How far timer messages are delivered. A slave asks its master every 3 s. 5.x."""


class GetTimerMetrics(Request, code=61, name="GET_TIMER_METRICS", answer_body=TimerCounts):
    """A slave asks its master. 5.x."""


class ResetFields(Request):
    """timestamp in ms; of a negative one the end of the queue is meant. queue_id and offset are of 5.x."""

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: Int | None = None
    offset: Long | None = None


class ResetConsumerOffset(
    ResetFields, code=222, name="INVOKE_BROKER_TO_RESET_OFFSET", answer_body=QueueOffsets
):
    """An operator's: 5.x notes the targets and applies them at the next pull, 4.9 tells the members."""


class GetConsumerStatus(
    Request, code=223, name="INVOKE_BROKER_TO_GET_CONSUMER_STATUS", answer_body=ConsumersStatus
):
    """client_addr is a client id, "" for all."""

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffset(Request, code=314, name="CLONE_GROUP_OFFSET"):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None
