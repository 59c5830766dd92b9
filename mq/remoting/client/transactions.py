"""Transactions on a cluster: half messages, their ends, and the checks of brokers.

A client's heartbeat names its transaction producers, to every broker of the cluster. A broker sends a check
to one producer of the group, over its connection. Checks are queued here until the producer's thread takes
them.

RocketMQ: client/impl/producer/TransactionMQProducer.java, client/impl/ClientRemotingProcessor.java.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from time import monotonic

from mq.api.queues import Appender
from mq.api.results import MessageQueue, SendResult
from mq.api.transactions import Check, Ender, HalfMessage, TransactionState, Undecided
from mq.errors import NotSupported, RemotingError
from mq.message import MessageExt
from mq.names import check_group
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.connection import Connection
from mq.remoting.client.heartbeats import HeartbeatClient, Heartbeats
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.sending import Sending
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.requests.pushed import CheckTransactionState
from mq.remoting.codec.requests.sending import EndTransaction
from mq.remoting.weak_list import WeakList

__all__ = ["RemoteTransactions"]

log = logging.getLogger("mq.transactions")

CHECKS_WAITING_MAX = 2000  # per producer, as in RocketMQ; the broker repeats a check that was dropped


class RemoteTransactions:
    """See mq.api.transactions.Transactions."""

    def __init__(
        self, brokers: Brokers, namespace: Namespace, heartbeats: Heartbeats, sending: Sending
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._heartbeats = heartbeats
        self._sending = sending
        self._checkers: list[RemoteChecker] = []
        self._every: WeakList[RemoteChecker] = WeakList()  # also those that have left
        brokers.remoting.handle(CheckTransactionState.CODE, self._asked)
        brokers.cluster.keeps_all = lambda: bool(self._checkers)

    def preparer(self, queue: MessageQueue, group: str) -> Appender:
        """See Transactions.preparer."""
        check_group(group)
        return self._sending.preparer(queue, group)

    def ender(self, group: str) -> Ender:
        """See Transactions.ender. An end is a oneway request: if it gets lost, the broker checks later."""
        check_group(group)
        wire_group = self._namespace.wire(group)

        def end(
            log_offset: int,
            queue_offset: int,
            state: TransactionState,
            from_check: bool = False,
            of: SendResult | Check | None = None,
            /,
        ) -> None:
            if not isinstance(state, TransactionState):
                raise TypeError(
                    f"the state of a transaction is a TransactionState, not {type(state).__name__}"
                )
            if of is None:
                raise TypeError("an end on a cluster needs the result, or the check, that it is the end of")
            if state is TransactionState.UNKNOWN:
                return
            broker_name, unique_id = _place(of)
            request = EndTransaction(
                producer_group=wire_group,
                tran_state_table_offset=queue_offset,
                commit_log_offset=log_offset,
                commit_or_rollback=state.value,
                msg_id=unique_id,
                from_transaction_check=from_check,
                transaction_id=unique_id,
                broker_name=broker_name,
            )
            self._brokers.send_oneway(broker_name, request)

        return end

    def enlist(self, group: str, client_id: str) -> RemoteChecker:
        """See Transactions.enlist."""
        check_group(group)
        checker = RemoteChecker(self, group, self._namespace.wire(group), client_id)
        self._checkers.append(checker)
        self._every.add(checker)
        self._heartbeats.add(checker.beating)
        self._heartbeats.send_all()
        # Any broker may have a transaction of a producer that is gone, and knows no other to check.
        self._brokers.cluster.find_all(self._heartbeats.send_all)
        return checker

    def undecided(self) -> list[Undecided]:
        """See Transactions.undecided."""
        raise NotSupported("a cluster does not list undecided transactions: use RocketMQ's own tools")

    def resume(self, msg_id: str) -> None:
        """See Transactions.resume."""
        raise NotSupported(f"transaction {msg_id} cannot be resumed from here: use RocketMQ's own tools")

    def check_open(self) -> None:
        self._brokers.remoting.check_open()

    def close(self) -> None:
        for checker in list(self._checkers):
            checker.leave()

    def wake_all(self) -> None:
        """Have every next() return: the broker has just been closed."""
        for checker in self._every.items():
            checker.wakeup()

    def left(self, checker: RemoteChecker) -> None:
        try:
            self._checkers.remove(checker)
        except ValueError:
            return  # It has left before, perhaps by another thread just now.
        self._heartbeats.unregister(checker.beating)

    def _asked(self, connection: Connection, request: Frame) -> None:
        """Handle a broker's check of a transaction."""
        try:
            fields = decode_fields(CheckTransactionState, request.fields)
            broker_name = fields.broker_name or self._name_of(connection.address)
            messages = decode_records(request.body, broker_name, rewritten=True)
        except RemotingError as error:
            log.warning("%s asks about a transaction that cannot be read: %s", connection.address, error)
            return
        for message in messages:
            group = HalfMessage(message).group
            asked = [each for each in self._checkers if each.wire_group == group]
            if not asked:
                log.warning("%s asks group %s, which has no producer here", connection.address, group)
                return
            check = Check(
                HalfMessage(self._namespace.plain_messages([message])[0]),
                self._namespace.plain(group),
                fields.commit_log_offset,
                fields.tran_state_table_offset,
            )
            # A producer with busy threads leaves the next checks to the others of its group.
            min(asked, key=RemoteChecker.waiting_count).put(check)

    def _name_of(self, address: str) -> str:
        for name, broker in self._brokers.cluster.brokers.items():
            if address in broker.broker_addrs.values():
                return name
        raise RemotingError(f"{address} is no broker of a known route", address=address)


class RemoteChecker:
    """See mq.api.transactions.Checker."""

    def __init__(self, transactions: RemoteTransactions, group: str, wire_group: str, client_id: str) -> None:
        self.group = group
        self.wire_group = wire_group
        self.beating = HeartbeatClient(client_id, producer_groups=(wire_group,))
        self._transactions = transactions
        self._arrived = threading.Condition()
        self._waiting: deque[Check] = deque(maxlen=CHECKS_WAITING_MAX)
        self._is_poked = False

    def waiting_count(self) -> int:
        """How many checks wait for its threads."""
        return len(self._waiting)

    def put(self, check: Check) -> None:
        with self._arrived:
            self._waiting.append(check)
            self._arrived.notify()

    def next(self, wait: float) -> Check | None:
        """See Checker.next."""
        self._transactions.check_open()
        deadline = monotonic() + wait
        with self._arrived:
            while not self._waiting and not self._is_poked:
                left = deadline - monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    break
            self._is_poked = False
            return self._waiting.popleft() if self._waiting else None

    def wakeup(self) -> None:
        """See Checker.wakeup."""
        with self._arrived:
            self._is_poked = True
            self._arrived.notify_all()

    def leave(self) -> None:
        """See Checker.leave."""
        self._transactions.left(self)


def _place(of: SendResult | Check) -> tuple[str, str]:
    """The name of the broker that has a half message, and the message's unique id."""
    if isinstance(of, Check):
        message: MessageExt = of.message
        return message.broker_name, message.msg_id
    return of.queue.broker_name, of.msg_id
