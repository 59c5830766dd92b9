"""The table of handlers by request code, and the threads that run them.

    handlers = Handlers()

    @handlers.on(GetMinOffset)
    def min_offset(request: GetMinOffset, call: Call) -> Reply: ...

A handler gets the request's parsed header and returns the reply, or None if it answers later with
call.answer() or not at all. An exception becomes an error answer (replies.py).

HOT and SEND handlers run on the loop if the broker never waits for a disk or a network, otherwise each in a
thread of the pool; there the oneway SEND requests of one connection run sequentially, in its order. CONTROL
handlers run in a pool of their own, those of one connection sequentially in the order of the requests. If the
connection is lost, requests that have not begun are dropped, except oneway ones; these too if it has the most
bytes of requests while memory is short.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from mq.errors import MessageTooLarge, MQError
from mq.remoting.codec.fields import Request, decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody, from_json
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.replies import Refusal, Reply, encoded, refused
from mq.remoting.server.served import Served
from mq.remoting.server.transport.connection import Connection

__all__ = ["Call", "Handler", "Handlers", "Lane", "dispatch"]

Body = TypeVar("Body", bound=JsonBody)
Function = Callable[[Any, "Call"], "Reply | None"]
Declared = TypeVar("Declared", bound=Function)
# Response codes that are results, not errors.
WELL = frozenset({0, 10, 11, 12, 19, 20, 21, 22})
_NOTHING: dict[str, str] = {}


class Lane(Enum):
    HOT = 1
    SEND = 2
    CONTROL = 3


class Handler(NamedTuple):
    """A request class and its handler. `always`: fields of every answer, including error answers."""

    request: type[Request]
    function: Function
    lane: Lane
    always: dict[str, str]


class Handlers:
    """Handlers by request code."""

    def __init__(self) -> None:
        self.by_code: dict[int, Handler] = {}

    def on(
        self, *requests: type[Request], lane: Lane = Lane.CONTROL, always: dict[str, str] | None = None
    ) -> Callable[[Declared], Declared]:
        """Decorator: register a function as the handler of these requests."""

        def handled(function: Declared) -> Declared:
            for request in requests:
                assert request.CODE not in self.by_code, request
                self.by_code[request.CODE] = Handler(request, function, lane, always or _NOTHING)
            return function

        return handled

    def add(self, others: Handlers) -> None:
        """Add the handlers of another table."""
        assert not self.by_code.keys() & others.by_code.keys()
        self.by_code.update(others.by_code)


class Call:
    """One request that is being handled."""

    __slots__ = ("connection", "frame", "handler", "is_answered", "served")

    def __init__(self, served: Served, connection: Connection, frame: Frame, handler: Handler) -> None:
        self.served = served
        self.connection = connection
        self.frame = frame
        self.handler = handler
        self.is_answered = False

    def body(self, kind: type[Body]) -> Body:
        """The request's body. Raises RemotingError."""
        return from_json(kind, self.frame.body)

    def run(self) -> None:
        """Run the handler in this thread."""
        try:
            access = self.served.access
            if access is not None:
                self.connection.access_key = access.authenticate(self.frame)
            request = decode_fields(self.handler.request, self.frame.fields)
            if access is not None:
                access.authorize(request, self.frame)
            reply = self.handler.function(request, self)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other end gets an answer
            reply = refused(error, self.frame)
        if reply is not None:
            self.answer(reply)

    def answer(self, reply: Reply) -> None:
        """Send the answer, unless the request is oneway. Thread-safe; only the first call counts."""
        if self.is_answered:
            return
        self.is_answered = True
        if reply.code not in WELL:
            self.served.traffic.refused += 1
        data = b"" if self.frame.is_oneway else encoded(self.frame, reply, self.handler.always)
        self.connection.answered(self.frame, reply.code, data)


def dispatch(handlers: Handlers, served: Served, connection: Connection, frame: Frame) -> None:
    """Dispatch a request to its handler. Called by the loop."""
    served.traffic.requests += 1
    handler = handlers.by_code.get(frame.code)
    if handler is None or frame.dropped_size:
        reply = _unknown(served, frame) if handler is None else refused(_too_large(served, frame), frame)
        data = b"" if frame.is_oneway else encoded(frame, reply, _NOTHING)
        served.traffic.refused += 1
        connection.answered(frame, reply.code, data)
        return
    call = Call(served, connection, frame, handler)
    if handler.lane is Lane.CONTROL:
        connection.in_order(served.control, call.run, is_kept=frame.is_oneway)
    elif not served.broker.may_wait:
        call.run()
    elif handler.lane is Lane.SEND and frame.is_oneway:
        connection.in_order_of_sends(served.pool, call.run, is_kept=True)
    else:  # Transactions end oneway: side by side, they wait for the disk together.
        connection.beside(served.pool, call.run, is_kept=frame.is_oneway)


def _too_large(served: Served, frame: Frame) -> MQError:
    limit = served.broker.message_size_max
    return MessageTooLarge(
        frame.dropped_size,
        limit,
        f"a body of {frame.dropped_size:,} bytes is over the limit of {limit:,} for a message, and for all of"
        " a batch: send less at once",
    )


def _unknown(served: Served, frame: Frame) -> Reply:
    """The answer to a request code without a handler."""
    try:
        if served.access is not None:
            served.access.authenticate(frame)
    except Refusal as error:
        return refused(error, frame)
    remark = f" request type {frame.code} not supported"
    if frame.code in Request.TABLE:
        remark += (
            f": mq.remoting.serve has no answer to {Request.TABLE[frame.code].NAME}, see docs/serving.md"
        )
    return Reply(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
