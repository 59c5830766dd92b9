"""A database row and a message that are committed together, or not at all.

The first deposit commits both, the second neither. The third one's process dies right after the database
commit and before the message's: another process of the group is asked, and finds the row.
"""

import os
import sqlite3
import time
from typing import Any

import mq

COMMIT, ROLLBACK = mq.TransactionState.COMMIT, mq.TransactionState.ROLLBACK
# Short times for the example. In production: a deposit that takes longer than this is rejected.
SOON: dict[str, Any] = {"transaction_timeout": 2.0, "transaction_check_interval": 0.2}


def connect() -> sqlite3.Connection:
    rows = sqlite3.connect("deposits.db", timeout=30)
    rows.execute("CREATE TABLE IF NOT EXISTS deposits (id TEXT PRIMARY KEY, amount INTEGER)")
    return rows


def check(message: mq.MessageExt) -> mq.TransactionState:
    """The state of a deposit, perhaps after the death of its process; any process of the group may be
    asked."""
    rows = connect()
    with rows:
        # If the row is missing, insert the id, so that a late deposit finds it taken and fails.
        rows.execute("INSERT OR IGNORE INTO deposits VALUES (?, NULL)", message.keys)
        [(amount,)] = rows.execute("SELECT amount FROM deposits WHERE id = ?", message.keys)
    return ROLLBACK if amount is None else COMMIT


def deposit(producer: mq.TransactionProducer, number: str, amount: int, *, dies: bool = False) -> None:
    message = mq.Message("deposits", b"%d" % amount, keys=number)
    with producer.begin(message), connect() as rows:
        rows.execute("INSERT INTO deposits VALUES (?, ?)", (number, amount))
        if amount < 0:
            raise ValueError(f"deposit {number} is negative")
        if dies:
            rows.commit()
            os._exit(1)


def one_that_dies(number: str) -> None:
    with mq.open("var/transaction") as broker:
        deposit(mq.TransactionProducer(broker, "tellers", check), number, 300, dies=True)


# Numbers go on where the run before ended: an id is used once.
[(last,)] = connect().execute("SELECT coalesce(max(CAST(substr(id, 2) AS INTEGER)), 0) FROM deposits")
good, bad, late = (f"D{last + more}" for more in (1, 2, 3))

if child := os.fork():
    os.waitpid(child, 0)
else:
    one_that_dies(late)

with mq.open("var/transaction") as broker, mq.TransactionProducer(broker, "tellers", check) as producer:
    deposit(producer, good, 100)
    try:
        deposit(producer, bad, -200)
    except ValueError as error:
        print("rolled back:", error)

with mq.open("var/transaction", **SOON) as broker, mq.TransactionProducer(broker, "tellers", check):
    while broker.transactions.undecided():
        time.sleep(0.05)
    found = [message for queue in broker.topic("deposits").queues for message in queue.read(0).messages]
    print("messages:", *sorted(f"{message.keys[0]} {message.body.decode()}" for message in found))
    print(
        "rows:",
        *(f"{number} {amount}" for number, amount in connect().execute("SELECT * FROM deposits ORDER BY id")),
    )
