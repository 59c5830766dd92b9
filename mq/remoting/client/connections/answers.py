"""Frames of requests, what answers contain, and errors from answers. Each error names the address."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from mq.errors import ProtocolMismatch, RemotingError
from mq.message import MessageExt
from mq.remoting.codec.fields import Answer, Request, decode_fields, encode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody, from_json, to_json
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.response_codes import ResponseCode, name_of

__all__ = ["body_of", "checked", "fields_of", "framed", "records_of", "unreadable"]

Declared = TypeVar("Declared", bound=Answer)
DeclaredBody = TypeVar("DeclaredBody", bound=JsonBody)

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


def fields_of(declared: type[Declared], answer: Frame) -> Declared:
    """The header of an answer. Raises RemotingError."""
    try:
        return decode_fields(declared, answer.fields)
    except RemotingError as error:
        raise unreadable(answer, error) from None


def body_of(declared: type[DeclaredBody], answer: Frame) -> DeclaredBody:
    """The body of an answer. Raises RemotingError."""
    try:
        return from_json(declared, answer.body)
    except RemotingError as error:
        raise unreadable(answer, error) from None


def records_of(answer: Frame, broker_name: str) -> list[MessageExt]:
    """The messages in the body of an answer. Raises RemotingError."""
    try:
        return decode_records(answer.body, broker_name)
    except RemotingError as error:
        raise unreadable(answer, error) from error


def unreadable(answer: Frame, error: RemotingError) -> RemotingError:
    """The error for an answer with a success code that does not contain what it should."""
    return RemotingError(f"{answer.address} sent an answer that is wrong: {error}", address=answer.address)
