"""What a broker refuses, by the name that the border has for it.

Each of these is a RemotingError too, with the broker's code and remark.
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

__all__ = ["MessageRefused", "NoSuchTopic", "Refused", "WrongExpression", "is_final", "named"]


class NoSuchTopic(TopicNotFound, RemotingError):
    """The broker does not know the topic."""


class Refused(NotPermitted, RemotingError):
    """The broker, the topic or the credentials do not allow it."""


class MessageRefused(MessageInvalid, RemotingError):
    """The broker does not take a message like this."""


class WrongExpression(FilterSyntaxError, RemotingError):
    """The broker cannot read the expression of a subscription."""


ACCESS_DENIED = "rocketmq.acl."
_NAMES: dict[int, type[RemotingError]] = {
    ResponseCode.TOPIC_NOT_EXIST: NoSuchTopic,
    ResponseCode.NO_PERMISSION: Refused,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: WrongExpression,
}


def named(error: RemotingError, topic: str = "") -> RemotingError:
    """The same error by its own name, where the border has one for its code."""
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


def is_final(error: MQError) -> bool:
    """Whether the same request, a little later or to another broker, is refused again."""
    if isinstance(error, tuple(_NAMES.values())):
        return True
    # 4.9 has no code for access that it denies, and names the class of its error.
    return isinstance(error, RemotingError) and ACCESS_DENIED in (error.remark or "")
