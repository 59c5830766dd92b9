"""The error answers of brokers as the exceptions of mq.errors.

Each class is also a RemotingError, with the broker's code and remark.
"""

from __future__ import annotations

from mq.errors import (
    FilterSyntaxError,
    MessageInvalid,
    MQError,
    NotPermitted,
    RemotingError,
    TopicNotFound,
)
from mq.remoting.codec.response_codes import ResponseCode

__all__ = [
    "MessageRejected",
    "NoSuchTopic",
    "RequestDenied",
    "WrongExpression",
    "denied",
    "is_final",
    "no_route",
    "translated",
]


class NoSuchTopic(TopicNotFound, RemotingError):
    """The broker does not know the topic."""


class RequestDenied(NotPermitted, RemotingError):
    """The broker, the topic or the credentials do not allow it."""


class MessageRejected(MessageInvalid, RemotingError):
    """The broker rejects the message."""


class WrongExpression(FilterSyntaxError, RemotingError):
    """The broker cannot parse the expression of a subscription."""


ACCESS_DENIED = "rocketmq.acl."
_NAMES: dict[int, type[RemotingError]] = {
    ResponseCode.TOPIC_NOT_EXIST: NoSuchTopic,
    ResponseCode.NO_PERMISSION: RequestDenied,
    ResponseCode.MESSAGE_ILLEGAL: MessageRejected,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: WrongExpression,
}


def translated(error: RemotingError, topic: str = "") -> RemotingError:
    """The error as the class for its code, if there is one."""
    kind = _NAMES.get(error.code if error.code is not None else -1)
    if kind is None:
        return error
    found = kind.__new__(kind)
    RemotingError.__init__(found, str(error), code=error.code, remark=error.remark, address=error.address)
    if isinstance(found, TopicNotFound):
        found.topic = topic
    if isinstance(found, FilterSyntaxError):
        found.position = 0
    return found


def no_route(topic: str, name_servers: str) -> RemotingError:
    """The error for a topic of which the name servers have no route."""
    return translated(
        RemotingError(
            f"topic {topic!r} does not exist: the name server at {name_servers} has no route to it; make it"
            f" with broker.create_topic({topic!r})",
            code=ResponseCode.TOPIC_NOT_EXIST,
            address=name_servers,
        ),
        topic,
    )


def denied(
    text: str, address: str | None, *, code: int | None = ResponseCode.NO_PERMISSION, remark: str = ""
) -> RemotingError:
    """The error for what the address, or what it said, does not permit."""
    return RequestDenied(text, code=code, remark=remark, address=address)


def is_final(error: MQError) -> bool:
    """Whether a retry, later or at another broker, would fail again."""
    if isinstance(error, tuple(_NAMES.values())):
        return True
    # 4.9 has no code for denied access; the remark has the name of its exception class.
    return isinstance(error, RemotingError) and ACCESS_DENIED in (error.remark or "")
