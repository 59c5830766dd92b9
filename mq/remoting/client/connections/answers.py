"""Frames of requests, and errors from answers."""

from __future__ import annotations

from collections.abc import Collection

from mq.errors import ProtocolMismatch, RemotingError
from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody, to_json
from mq.remoting.codec.response_codes import ResponseCode, name_of

__all__ = ["checked", "framed"]

SUCCESS_ONLY = frozenset({int(ResponseCode.SUCCESS)})


def framed(request: Request, body: bytes | JsonBody = b"") -> Frame:
    """The frame of a request; the connection sets its opaque."""
    content = to_json(body) if isinstance(body, JsonBody) else body
    return Frame(request.CODE, encode_fields(request), content)


def checked(
    answer: Frame, request: type[Request], address: str, also: Collection[int] = SUCCESS_ONLY
) -> Frame:
    """The answer, if its code is SUCCESS or one of `also`; otherwise raises RemotingError with code and
    remark."""
    if answer.code == ResponseCode.SUCCESS or answer.code in also:
        return answer
    told = answer.remark.strip() or "without a remark"
    shown = told if len(told) <= 500 else told[:497] + "..."
    kind, hint = RemotingError, ""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        kind, hint = ProtocolMismatch, f" (its version, number {answer.version}, lacks this request)"
    raise kind(
        f"{address} answered {request.NAME} with {name_of(answer.code)}: {shown}{hint}",
        code=answer.code,
        remark=answer.remark,
        address=address,
    )
