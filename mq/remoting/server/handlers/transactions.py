"""How transactions end.

RocketMQ: broker/processor/EndTransactionProcessor.java.
"""

from __future__ import annotations

from mq.api.transactions import TransactionState
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
        call.served.ender(request.producer_group)(
            request.commit_log_offset,
            request.tran_state_table_offset,
            state,
            bool(request.from_transaction_check),
        )
    except (MessageNotFound, NotPermitted) as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return DONE
