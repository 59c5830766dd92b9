"""A broker's own settings and state."""

from __future__ import annotations

from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.body_kind import TEXT_PROPERTIES
from mq.remoting.codec.fields import Answer, Request

__all__ = [
    "BrokerConfigAnswer",
    "CleanExpiredQueues",
    "CleanUnusedTopics",
    "DeleteExpiredFiles",
    "GetBrokerConfig",
    "GetBrokerRuntimeInfo",
    "ResumeCheckHalfMessage",
    "UpdateBrokerConfig",
]


class UpdateBrokerConfig(Request, code=25, name="UPDATE_BROKER_CONFIG", body=TEXT_PROPERTIES):
    """SYSTEM_ERROR for a bad text, NO_PERMISSION for a key that may not be changed."""


class BrokerConfigAnswer(Answer):
    version: str


class GetBrokerConfig(
    Request, code=26, name="GET_BROKER_CONFIG", answer=BrokerConfigAnswer, answer_body=TEXT_PROPERTIES
):
    """All settings."""


class GetBrokerRuntimeInfo(Request, code=28, name="GET_BROKER_RUNTIME_INFO", answer_body=KeyValues):
    """Figures as texts: brokerVersionDesc, putTps, msgPutTotalTodayNow, …"""


class CleanExpiredQueues(Request, code=306, name="CLEAN_EXPIRED_CONSUMEQUEUE"):
    """Deletes queues that lie before the log."""


class CleanUnusedTopics(Request, code=316, name="CLEAN_UNUSED_TOPIC"):
    """Deletes queues whose topic is gone."""


class DeleteExpiredFiles(Request, code=329, name="DELETE_EXPIRED_COMMITLOG"):
    """Deletes what is older than is kept."""


class ResumeCheckHalfMessage(Request, code=323, name="RESUME_CHECK_HALF_MESSAGE"):
    """Has a transaction checked again that was given up."""

    msg_id: str | None = None
    topic: str | None = None  # ⁵
