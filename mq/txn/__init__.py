"""Transactions: half messages, which nobody sees until their producer has decided.

producer.py  TransactionProducer, for users
mq/api/transactions.py     what may become of a transaction, and the questions that a broker asks about one
mq/broker/transactions/half_queues.py      records of the half topic and the op topic
mq/broker/transactions/check_loop.py     which half messages are to be asked about (pure)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Transaction", "TransactionProducer", "TransactionState"]

if TYPE_CHECKING:
    from mq.api.transactions import TransactionState as TransactionState
    from mq.txn.producer import Transaction as Transaction
    from mq.txn.producer import TransactionProducer as TransactionProducer
else:
    _HOMES = {
        "Transaction": "mq.txn.producer",
        "TransactionProducer": "mq.txn.producer",
        "TransactionState": "mq.api.transactions",
    }

    def __getattr__(name: str) -> Any:
        """Loaded when it is asked for: the broker's border imports this package, and is imported by these."""
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'mq.txn' has no attribute {name!r}")
