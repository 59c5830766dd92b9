"""Transactions as a client sees them: how one ended, which are to be checked, and which producers are asked.

A transaction begins with a half message, which is stored and which nobody sees. Its end makes the message
visible, or says that it never will be. Whose end does not come is asked about: any live producer of the same
group gets a Check, looks at what the transaction was about, and ends it in the other's place.

A half message that is checked is stored once more, so that it can be asked about again; its place changes,
its name does not. All places of one transaction may be given to end it, which happens once.

RocketMQ: client/producer/TransactionListener.java, LocalTransactionState.java.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from mq.api.queues import Appender
from mq.api.results import MessageQueue, SendResult
from mq.message import MessageExt
from mq.properties import value_of

__all__ = [
    "Check",
    "Checker",
    "Ender",
    "HalfMessage",
    "TransactionState",
    "Transactions",
    "Undecided",
]


class TransactionState(Enum):
    """How a transaction ended, in RocketMQ's numbers."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0  # it is not known yet: ask again later


class HalfMessage(MessageExt):
    """A half message as a checker sees it: of the topic and the queue it was sent to.

    queue_offset and log_offset are its place among the half messages.
    """

    __slots__ = ("_queue_id", "_topic")

    def __init__(self, message: MessageExt) -> None:
        super().__init__(message.record, message.broker_name)
        encoded = message.encoded
        queue_id = value_of(encoded, b"REAL_QID\x01")
        self._topic = value_of(encoded, b"REAL_TOPIC\x01") or message.topic
        self._queue_id = int(queue_id) if queue_id and queue_id.isdecimal() else message.queue_id

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def queue_id(self) -> int:
        return self._queue_id

    @property
    def transaction_id(self) -> str | None:
        """The unique id, also where the broker does not name the transaction: 4.9 does not."""
        return super().transaction_id or self.msg_id

    @property
    def group(self) -> str:
        """The producers that may end it."""
        return value_of(self.encoded, b"PGROUP\x01") or ""

    @property
    def times_checked(self) -> int:
        text = value_of(self.encoded, b"TRANSACTION_CHECK_TIMES\x01") or ""
        return int(text) if text.isdecimal() and len(text) < 10 else 0


class Check(NamedTuple):
    """A transaction whose end did not come: find out about it, and end it with this place of it."""

    message: MessageExt
    group: str
    log_offset: int  # of the newest copy of the half message
    queue_offset: int  # the same, in the queue of half messages


class Undecided(NamedTuple):
    """A transaction that has not ended."""

    message: HalfMessage  # its newest copy
    group: str
    times_checked: int
    given_up: (
        bool  # asked about as often as the broker does: it waits in TRANS_CHECK_MAX_TIME_TOPIC to be resumed
    )


class Checker(Protocol):
    """A live producer of a group, which is asked about transactions whose end did not come."""

    def next(self, wait: float) -> Check | None:
        """The next to look at; waits up to `wait` seconds for one. None after that, and after wakeup(). May
        return None early for nothing. From any thread."""
        ...

    def wakeup(self) -> None:
        """Have next() return, from any thread."""
        ...

    def leave(self) -> None:
        """Be asked no more: the others are, from the next round of checks on. Twice is fine."""
        ...


class Ender(Protocol):
    """Ends transactions of one group: see Transactions.ender."""

    def __call__(
        self,
        log_offset: int,
        queue_offset: int,
        state: TransactionState,
        from_check: bool = False,
        of: SendResult | Check | None = None,
        /,
    ) -> None:
        """End the transaction of a half message: with COMMIT its message is stored, once, whichever process
        says so and how often; UNKNOWN changes nothing. from_check: it is the answer to a Check. of: the
        result of the half message, or the Check, for a broker of which there are several.

        Raises MessageNotFound if there is no half message at this place, NotPermitted if it is of another
        group or has ended the other way; a half message with a CHECK_IMMUNITY_TIME_IN_SECONDS that is over,
        and so is the transaction_timeout, is ended by checks alone (NotPermitted)."""
        ...


class Transactions(Protocol):
    """What a broker does with half messages: Broker.transactions."""

    def preparer(self, queue: MessageQueue, group: str) -> Appender:
        """What stores half messages of a group of producers, for a queue, as an appender stores messages.

        The result says which queue, and which place among the half messages: queue_offset, and the log offset
        in offset_msg_id. Raises MessageInvalid for one that is delayed, and what an appender raises."""
        ...

    def ender(self, group: str) -> Ender:
        """What ends transactions of a group, as often as wanted. Raises GroupInvalid, NotPermitted."""
        ...

    def enlist(self, group: str, client_id: str) -> Checker:
        """Be one of the producers of a group that are asked about transactions. Raises GroupInvalid,
        NotPermitted."""
        ...

    def undecided(self) -> list[Undecided]:
        """The transactions that have not ended, oldest first."""
        ...

    def resume(self, msg_id: str) -> None:
        """Have a transaction that was given up checked again, from the first check on. Raises
        MessageNotFound if none of this unique id was, NotPermitted if it has ended."""
        ...
