"""Topics on a broker: make, change, delete, list."""

from __future__ import annotations

from mq.remoting.codec.bodies.route import TopicNames
from mq.remoting.codec.bodies.settings import TopicSettings, TopicSettingsList, TopicTable
from mq.remoting.codec.fields import Answer, Int, Request

__all__ = [
    "AllTopicsAnswer",
    "DeleteTopicInBroker",
    "GetAllTopics",
    "GetSystemTopicsOfBroker",
    "GetTopic",
    "UpdateTopic",
    "UpdateTopics",
]


class UpdateTopic(Request, code=17, name="UPDATE_AND_CREATE_TOPIC"):
    """attributes are of 5.x, as in `+message.type=FIFO,-reserve.time`."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int | None = None
    attributes: str | None = None
    force: bool | None = None


class UpdateTopics(Request, code=18, name="UPDATE_AND_CREATE_TOPIC_LIST", body=TopicSettingsList):
    """⁵"""


class DeleteTopicInBroker(Request, code=215, name="DELETE_TOPIC_IN_BROKER"):
    topic: str


class GetTopic(Request, code=351, name="GET_TOPIC_CONFIG", answer_body=TopicSettings):
    """⁵"""

    topic: str


class AllTopicsAnswer(Answer):
    total_topic_num: Int | None = None  # ⁵


class GetAllTopics(
    Request, code=21, name="GET_ALL_TOPIC_CONFIG", answer=AllTopicsAnswer, answer_body=TopicTable
):
    """5.x answers page by page, from topic_seq on."""

    topic_seq: Int | None = None
    data_version: str | None = None
    max_topic_num: Int | None = None


class GetSystemTopicsOfBroker(
    Request, code=305, name="GET_SYSTEM_TOPIC_LIST_FROM_BROKER", answer_body=TopicNames
):
    """RocketMQ's own."""
