"""A process that forks while it is at work with transactions: see test_forked_child.py."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager

import mq
from mq.api.transactions import TransactionState
from mq.broker.local import LocalBroker
from tests.support.insides import asking_lock, checker_of, table_lock
from tests.support.processes.children import say


def held(broker: LocalBroker, which: str) -> AbstractContextManager[object]:
    """What a thread of the parent has while it is asked, or looks into the table."""
    return asking_lock(checker_of(broker)) if which == "asked" else table_lock(broker)


def close_in_child(root: str, which: str) -> int:
    """How a child ends that closes what it inherits; by a signal if it does not come to an end."""
    broker = mq.open(root)
    producer = mq.TransactionProducer(broker, "writers", lambda _message: TransactionState.COMMIT)
    with held(broker, which):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            try:
                checker_of(broker).next(0.0)
            except mq.ForkedBroker:
                producer.close()
                broker.close()
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(pid, 0)
    with producer.begin(mq.Message("orders", b"of the parent")):
        pass
    say("committed")
    producer.close()
    broker.close()
    return status
