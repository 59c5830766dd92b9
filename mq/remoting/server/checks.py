"""Transaction checks of remote producers: the broker asks them about transactions that were not ended.

Each of their groups joins the broker's checks like a local producer (mq.api.transactions.Checker). A check is
sent to one of the group's connections, in turn. The answer is END_TRANSACTION.

RocketMQ: broker/transaction/AbstractTransactionalMessageCheckListener.java.
"""

from __future__ import annotations

import logging
from itertools import count

from mq.api.broker import Broker
from mq.api.transactions import Check, Checker
from mq.errors import BrokerClosed, MQError
from mq.remoting.codec.records import with_names
from mq.remoting.codec.requests.pushed import CheckTransactionState
from mq.remoting.server.access import Access
from mq.remoting.server.groups.members import RemoteMembers
from mq.remoting.server.transport.connection import Connection

__all__ = ["Checks"]

log = logging.getLogger("mq.transactions")

CHECKS_AT_ONCE = 1000
QUEUE_ID_AT, QUEUE_ID_END = 12, 16


class Checks:
    """The checks of one server; look() is called every second by one thread at a time."""

    def __init__(self, broker: Broker, members: RemoteMembers, access: Access | None) -> None:
        self._broker = broker
        self._members = members
        self._access = access
        self._checkers: dict[str, Checker] = {}
        self._turn = count()

    def look(self) -> None:
        """Send the checks that are due."""
        groups = set(self._members.producer_groups())
        for group in self._checkers.keys() - groups:
            self._checkers.pop(group).leave()
        for group in groups:
            try:
                checker = self._checkers.get(group)
                if checker is None:
                    checker = self._checkers[group] = self._broker.transactions.enlist(
                        group, f"serve@{group}"
                    )
                for _ in range(CHECKS_AT_ONCE):
                    readers = [each for each, _ in self._members.producers(group) if each.has_room]
                    # Each check that is taken counts: none is for producers that do not read.
                    check = checker.next(0.0) if readers else None
                    if check is None:
                        break
                    self._ask(readers, check)
            except BrokerClosed:
                return
            except MQError as error:
                log.warning("group %s: transactions cannot be checked: %s", group, error)

    def close(self) -> None:
        """Leave the broker's checks."""
        checkers, self._checkers = self._checkers, {}
        for checker in checkers.values():
            checker.leave()

    def _ask(self, readers: list[Connection], check: Check) -> None:
        message, access = check.message, self._access
        # A check contains the message, and any key may name the group in a heartbeat.
        producers = [
            connection
            for connection in readers
            if access is None or access.may_send(connection.access_key, message.topic)
        ]
        if not producers:
            return  # The next round asks another producer.
        connection = producers[next(self._turn) % len(producers)]
        record = with_names(message.record, message.topic.encode(), message.encoded)
        record = b"".join(
            (record[:QUEUE_ID_AT], message.queue_id.to_bytes(4, "big", signed=True), record[QUEUE_ID_END:])
        )
        request = CheckTransactionState(
            tran_state_table_offset=check.queue_offset,
            commit_log_offset=check.log_offset,
            msg_id=message.msg_id,
            transaction_id=message.msg_id,
            offset_msg_id=message.offset_msg_id,
            topic=message.topic,
            broker_name=message.broker_name,
        )
        connection.tell(request, record)
