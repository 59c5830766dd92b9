"""The producer's side of a transaction: a half message, what the application does, and the word that ends it.

    half message -> execute, or the body of a with statement -> END: commit or rollback

The half message is stored before the application does anything, and nobody sees it. END makes it a message
like any other, or forgets it. A process that dies in between leaves it undecided; then, after the broker's
transaction_timeout, a live producer of the same group is asked by its `check`: perhaps one of another
process, which never heard of this message. So a check answers from what all of them see, as a database, and
never from the memory of the process that sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from mq.api.broker import (
    COMPRESS_OVER,
    Broker,
    Ender,
    MessageQueue,
    Queue,
    SendResult,
    SendStatus,
)
from mq.api.transactions import TransactionState
from mq.client.listener import check_function, close_unrun
from mq.client.producer import Producer
from mq.client.selector import Selector
from mq.errors import (
    MessageInvalid,
    MQError,
    NotPermitted,
    RemotingError,
    RequestTimeout,
    SendFailed,
    StoreFull,
    StoreLocked,
    StorePoisoned,
)
from mq.fastpath import TransactionFields, TransactionSender, Transactor, in_c
from mq.message import Message, MessageExt
from mq.names import check_group
from mq.txn.answers import Answers
from mq.txn.half_topic_broker import HalfTopicBroker
from mq.uninterrupted import closed_when_dropped, handed_over, uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Transaction", "TransactionProducer"]

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
CLOSE_SECONDS = 30.0
PASSING = (StoreFull, StoreLocked, StorePoisoned, RemotingError, RequestTimeout, OSError)

Execute = Callable[[Message, Any], TransactionState]
CheckState = Callable[[MessageExt], TransactionState]

logger = logging.getLogger("mq.transactions")


class TransactionProducer(TransactionSender):
    """Sends messages that are seen only if the application's own transaction is; any thread may use it.

    `check(message) -> TransactionState` tells what became of a transaction whose word never came, of this
    process or of any other of the group: it runs in up to `threads` threads of this producer, and may be
    called for one message more than once. Where it raises, or returns what is no TransactionState, that
    counts as UNKNOWN: it is asked again after the broker's transaction_check_interval,
    transaction_check_max times in all.

    Close it, or use it in a with statement. One that is dropped gives a ResourceWarning, and is closed.
    """

    def __init__(
        self,
        broker: Broker,
        group: str,
        check: CheckState,
        *,
        selector: Selector | None = None,
        compress_over: int = COMPRESS_OVER,
        threads: int = 1,
    ) -> None:
        check_group(group)
        check_function("check", check)
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise TypeError(f"threads is a whole number, not {threads!r}")
        if threads < 1:
            raise ValueError(f"threads is {threads}, must be 1 or more")
        self.group = group
        self._broker = broker
        end = broker.transactions.ender(group)
        # A producer asks no more of its broker than what HalfTopicBroker has.
        half_topic = cast("Broker", HalfTopicBroker(broker, group))
        self._half = Producer(half_topic, group, selector=selector, compress_over=compress_over)
        self._slow_path = _SlowPath(group, self._half, end)
        self._start(self._slow_path.usual)
        self._pid = os.getpid()
        self._answers = Answers(broker.transactions, group, check, end, threads, self._half.close)
        uninterrupted(self._answers.start, lambda _: self._answers.close(0.0))

    @in_c("transaction_send")
    def send(
        self,
        message: Message,
        execute: Execute,
        arg: Any = None,
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
    ) -> SendResult:
        """Store the half message, call execute(message, arg), and commit or roll back as it returns.

        Where it raises, or returns UNKNOWN or nonsense, the transaction stays undecided, and `check` is asked
        later: the error is logged, and send returns. Where the half message is not safely on disk
        (result.status is not SEND_OK), execute is not called and the message rolled back. The result is that
        of the half message: `queue_offset` is not the one that consumers will see.

        Raises what a send raises, before execute is called; NotPermitted where a check has ended the
        transaction the other way while execute was at work; TypeError where execute is async.
        """
        if not callable(execute):
            raise TypeError(f"execute is a function of a message and arg, not {type(execute).__name__}")
        return self._slow_path.decide(self._prepare(message, queue, shard_key), message, execute, arg)

    @in_c("transaction_begin")
    def begin(
        self,
        message: Message,
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
    ) -> Transaction:
        """Store the half message; the with statement over what is returned decides.

        Raises what a send raises, and SendFailed where the half message is not safely on disk; it is rolled
        back then.
        """
        return self._slow_path.begun(self._prepare(message, queue, shard_key))

    def _prepare(
        self, message: Message, queue: MessageQueue | Queue | None, shard_key: str | bytes | int | None
    ) -> SendResult:
        if isinstance(message, Message) and message.delayed:
            raise MessageInvalid(
                "a transactional message cannot be delayed as well (delay_level, delay_ms, deliver_at_ms):"
                " commit it, and have its consumer send one that is"
            )
        return self._half.send(message, queue=queue, shard_key=shard_key)

    @handed_over
    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Begin no more transactions, wait for checks under way, and leave the group. Twice is fine.

        After `timeout` seconds it leaves without waiting longer, which the log tells. Those begun can
        still be ended, as long as the broker is open; others of the group are asked about the rest. An
        interrupt ends the wait, and not the closing.
        """
        self._close(timeout)

    def _close(self, timeout: float | None) -> None:
        if os.getpid() == self._pid and not self._answers.has_left:
            self._answers.close(timeout)

    @closed_when_dropped
    def __del__(self) -> Callable[[], object] | None:
        answers = getattr(self, "_answers", None)
        return partial(answers.close, 0.0) if answers is not None and answers.is_at_work else None

    def __enter__(self) -> Self:
        return self

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(CLOSE_SECONDS)

    def __repr__(self) -> str:
        closed = ", closed" if self._answers.is_closed else ""
        return f"TransactionProducer({self._broker!r}, {self.group!r}{closed})"


class Transaction(TransactionFields):
    """A half message, until it is decided: made by TransactionProducer.begin.

    Leaving the with statement commits. An exception rolls back and goes on up; but KeyboardInterrupt and what
    else is no Exception leaves it to check, since it may come when the database has just committed. commit()
    and rollback() decide before that; unknown() leaves it to check as well.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def result(self) -> SendResult: ...
        @property
        def state(self) -> TransactionState | None: ...

    @property
    def message_id(self) -> str:
        """The unique id, which the message keeps when it is committed."""
        return self.result.msg_id

    def commit(self) -> None:
        """Have the message seen. Raises NotPermitted where it was rolled back, here or by a check."""
        self._become(COMMIT)

    def rollback(self) -> None:
        """Have the message forgotten. Raises NotPermitted where it was committed, here or by a check."""
        self._become(ROLLBACK)

    def unknown(self) -> None:
        """Leave it to check, whatever happens next. Raises NotPermitted where it is decided."""
        self._become(UNKNOWN)

    def __repr__(self) -> str:
        return f"Transaction({self.message_id}, {'undecided' if self.state is None else self.state.name})"

    def _become(self, state: TransactionState) -> None:
        if self.state is None:
            self._decide(state)
        elif self.state is not state:
            raise NotPermitted(
                f"transaction {self.message_id} is decided: {self.state.name}; it cannot become {state.name}"
            )

    def _abandon(self, kind: type[BaseException] | None) -> None:
        """An exception is on its way up: it is what the caller is to see."""
        has_failed = kind is not None and issubclass(kind, Exception)
        try:
            self._decide(ROLLBACK if has_failed else UNKNOWN)
        except MQError as failure:
            logger.warning("transaction %s: was not rolled back: %s", self.message_id, failure)


class _SlowPath:
    """What becomes of a transaction, in whatever case; `usual` does the same in C for the usual one."""

    def __init__(self, group: str, half: Producer, end: Ender) -> None:
        self._group = group
        self._end = end
        self.usual = Transactor(half.send, end, self, Transaction, COMMIT, ROLLBACK)

    def decide(self, result: SendResult, message: Message, execute: Execute, arg: Any) -> SendResult:
        """Have it executed, unless the half message is not safe, and do what that says."""
        if result.status is not SendStatus.SEND_OK:
            self.finish(result, ROLLBACK)
            return result
        try:
            state = execute(message, arg)
        except Exception as error:  # noqa: BLE001 - it is logged, and check will decide
            self.executed(result, None, error)
            return result
        if state is COMMIT or state is ROLLBACK:
            self.finish(result, state)
        else:
            self.executed(result, state, None)
        return result

    def begun(self, result: SendResult) -> Transaction:
        """The transaction of a half message, unless that is not safe."""
        if result.status is SendStatus.SEND_OK:
            made: Transaction = self.usual.begun(result)
            return made
        self.finish(result, ROLLBACK)
        raise SendFailed(
            f"the half message {result.msg_id} was stored with status {result.status.name}, and rolled back:"
            " begin again"
        )

    def executed(self, result: SendResult, state: object, error: Exception | None) -> None:
        """What execute raised, or returned that decides nothing. Raises TypeError where it has not run."""
        if error is not None:
            logger.error(
                "transaction %s of group %s: execute failed; check will decide",
                *(result.msg_id, self._group),
                exc_info=error,
            )
        elif close_unrun(state):
            raise TypeError(
                "execute is an async function or a generator function, which does not run: give a plain one;"
                f" check will decide transaction {result.msg_id}"
            )
        elif state is not UNKNOWN:
            logger.error(
                "transaction %s of group %s: execute returned %r, which is no TransactionState;"
                " check will decide",
                *(result.msg_id, self._group, state),
            )

    def finish(self, result: SendResult, state: TransactionState) -> None:
        log_offset = int(result.offset_msg_id[-16:], 16)
        try:
            self._end(log_offset, result.queue_offset, state, False, result)
        except Exception as error:  # noqa: BLE001 - which may be raised again
            self.unended(result, state, error)

    def unended(self, result: SendResult, state: TransactionState, error: Exception) -> None:
        """An end failed. What may pass is logged: check will say the same again."""
        if not isinstance(error, PASSING):
            raise error
        logger.warning(
            "transaction %s of group %s: %s did not get through; check will decide",
            *(result.msg_id, self._group, state.name),
            exc_info=error,
        )
