"""Pulling messages, and finding them by key or offset."""

from __future__ import annotations

from mq.remoting.codec.body_kind import RECORDS
from mq.remoting.codec.fields import Answer, Int, Long, Request
from mq.remoting.codec.wire_names import wire

__all__ = [
    "LitePullMessage",
    "PullAnswer",
    "PullFields",
    "PullFlag",
    "PullMessage",
    "QueryAnswer",
    "QueryMessage",
    "ViewMessageById",
]


class PullFlag:
    """Bits of sys_flag of a pull."""

    COMMIT = 1  # store commit_offset for the group
    SUSPEND = 2  # hold the answer until there is something
    SUBSCRIPTION = 4  # filter by the expression of the request, not by the group's
    CLASS_FILTER = 8
    LITE = 16


class PullAnswer(Answer):
    """suggest_which_broker_id: 0, or the slave to read from next."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None  # ⁵, like those below
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None


class PullFields(Request):
    """Messages of one queue from queue_offset on. Without any the broker holds the request, if it may."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None  # TAG, which is the default, or SQL92
    max_msg_bytes: Int | None = None  # ⁵
    request_source: Int | None = None  # ⁵
    proxy_client_id: str | None = wire("proxyFrowardClientId", default=None)  # ⁵ spelled so
    broker_name: str | None = wire("bname", default=None)


class PullMessage(PullFields, code=11, name="PULL_MESSAGE", answer=PullAnswer, answer_body=RECORDS):
    """Of push and pull consumers. Never to a broker's VIP port."""


class LitePullMessage(PullFields, code=361, name="LITE_PULL_MESSAGE", answer=PullAnswer, answer_body=RECORDS):
    """Of lite pull consumers. ⁵"""


class QueryAnswer(Answer):
    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class QueryMessage(Request, code=12, name="QUERY_MESSAGE", answer=QueryAnswer, answer_body=RECORDS):
    """Messages by key, or by unique id where is_unique_key says so. None: QUERY_NOT_FOUND."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    is_unique_key: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


class ViewMessageById(Request, code=33, name="VIEW_MESSAGE_BY_ID", answer_body=RECORDS):
    """The message whose record is at this log offset."""

    offset: Long
    topic: str | None = None  # ⁵
