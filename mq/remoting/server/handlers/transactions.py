"""How transactions end.

RocketMQ 5 checks the right to the topic in the request, and RocketMQ 4 none. Here it is the topic of the half
message, whatever the request says.

RocketMQ: broker/processor/EndTransactionProcessor.java.
"""

from __future__ import annotations

from mq.api.transactions import HalfMessage, TransactionState
from mq.errors import MessageNotFound, NotPermitted
from mq.remoting.codec.requests.sending import EndTransaction
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers, Lane
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()


@handlers.on(EndTransaction, lane=Lane.HOT)
def end(request: EndTransaction, call: Call) -> Reply:
    try:
        state = TransactionState(request.commit_or_rollback)
    except ValueError:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"commitOrRollback is {request.commit_or_rollback}: 8 commits, 12 rolls back, 0 is neither",
        ) from None
    try:
        _check_rights(request, call)
        call.served.ender(request.producer_group)(
            request.commit_log_offset,
            request.tran_state_table_offset,
            state,
            bool(request.from_transaction_check),
        )
    except (MessageNotFound, NotPermitted) as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return DONE


def _check_rights(request: EndTransaction, call: Call) -> None:
    """Raises Refusal if the client may not send to the topic of the half message, MessageNotFound if there is
    no message at its offset."""
    access = call.served.access
    if access is not None and access.is_restricted(call.frame):
        found = call.served.store_hosts.message(request.commit_log_offset, request.msg_id)
        access.check_sendable(call.frame, HalfMessage(found).topic)
