"""The reply of a handler, and the answer for an error.

Codes are RocketMQ's. The remark is the error's text, which names the value, the limit and the remedy.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from mq.errors import (
    BrokerClosed,
    FilterSyntaxError,
    GroupInvalid,
    InsufficientResources,
    MessageInvalid,
    MessageNotFound,
    MQError,
    NotPermitted,
    NotSupported,
    RemotingError,
    RequestTimeout,
    StoreFull,
    StorePoisoned,
    SubscriptionConflict,
    TopicInvalid,
    TopicNotFound,
)
from mq.remoting.codec.fields import Answer, encode_fields
from mq.remoting.codec.frame import Frame, answer_to, encode
from mq.remoting.codec.json_body import JsonBody, to_json
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["DONE", "Refusal", "Reply", "encoded", "refused"]

log = logging.getLogger("mq.remoting")

REMARK_SIZE_MAX = 2000
INVALID_PARAMETER_VERSION = 413  # 5.0: older clients do not know the code
# The first matching class counts.
_CODES: Final[tuple[tuple[type[Exception], ResponseCode], ...]] = (
    (TopicNotFound, ResponseCode.TOPIC_NOT_EXIST),
    (SubscriptionConflict, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    (TopicInvalid, ResponseCode.INVALID_PARAMETER),
    (GroupInvalid, ResponseCode.INVALID_PARAMETER),
    (MessageInvalid, ResponseCode.MESSAGE_ILLEGAL),
    (MessageNotFound, ResponseCode.SYSTEM_ERROR),
    (NotSupported, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    (NotPermitted, ResponseCode.NO_PERMISSION),
    (FilterSyntaxError, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (StoreFull, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StorePoisoned, ResponseCode.SERVICE_NOT_AVAILABLE),
    (BrokerClosed, ResponseCode.SERVICE_NOT_AVAILABLE),
    (InsufficientResources, ResponseCode.SYSTEM_BUSY),
    (RequestTimeout, ResponseCode.SYSTEM_BUSY),
    (RemotingError, ResponseCode.INVALID_PARAMETER),  # a malformed request
    (MQError, ResponseCode.SYSTEM_ERROR),
    (ValueError, ResponseCode.INVALID_PARAMETER),
    (TypeError, ResponseCode.INVALID_PARAMETER),
)


@dataclass(slots=True)
class Reply:
    """The result of a request: a code, header fields, a body, and the remark of an error."""

    fields: Answer | None = None
    body: bytes | JsonBody = b""
    code: int = ResponseCode.SUCCESS
    remark: str = ""


DONE: Final = Reply()


class Refusal(MQError):
    """Raised by a handler to answer with this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


def refused(error: Exception, request: Frame) -> Reply:
    """The answer to a request whose handler raised this error."""
    if isinstance(error, Refusal):
        return Reply(code=error.code, remark=str(error))
    told = getattr(error, "code", None) if isinstance(error, RemotingError) else None
    if told is not None:
        return Reply(code=told, remark=str(error)[:REMARK_SIZE_MAX])
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        log.error("request %d failed: %r", request.code, error, exc_info=error)
        code = ResponseCode.SYSTEM_ERROR
    if code is ResponseCode.INVALID_PARAMETER and request.version < INVALID_PARAMETER_VERSION:
        code = ResponseCode.SYSTEM_ERROR
    return Reply(code=code, remark=(str(error) or repr(error))[:REMARK_SIZE_MAX])


def encoded(request: Frame, reply: Reply, always: dict[str, str]) -> bytes:
    """The bytes of the answer. `always`: fields of every answer to this request."""
    fields = encode_fields(reply.fields) if reply.fields is not None else {}
    if always:
        fields = {**fields, **always}
    try:
        body = to_json(reply.body) if isinstance(reply.body, JsonBody) else reply.body
        return encode(answer_to(request, reply.code, fields, body, reply.remark))
    except RemotingError as error:
        return encode(answer_to(request, ResponseCode.SYSTEM_ERROR, always, b"", str(error)))
