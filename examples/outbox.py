"""A database transaction and a message that commit together, or not at all.

The message is stored first, as a half message that consumers do not see. Then the database commits, including
a row in its table `outbox` that says that this message belongs to the transaction. Then the message is
committed. A process that dies in between leaves a half message; a process with the same database is asked
about it, and looks for the row.

If there is no row, the transaction has failed, or is still running. So check does not only read: it inserts
the row with "no". A transaction that is still running then finds its row taken, and fails. So the answer of
check is final.

With flush="sync" the half message is on disk before the database commits, so this also holds after a power
cut. Rows of the outbox may be deleted when they are older than any check (transaction_check_max intervals).
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager

import mq

OUTBOX = "CREATE TABLE IF NOT EXISTS outbox (msg_id TEXT PRIMARY KEY, is_sent BOOLEAN NOT NULL) WITHOUT ROWID"
OURS = "INSERT OR IGNORE INTO outbox VALUES (?, ?)"


class TooLate(Exception):
    """A check has answered no while the transaction was running."""


@contextmanager
def together(
    producer: mq.TransactionProducer, message: mq.Message, database: sqlite3.Connection
) -> Generator[str, None, None]:
    """Commits the body's database changes together with the message; an exception rolls both back.

    Yields the id of the message. Raises TooLate before the body runs.
    """
    half = producer.begin(message)
    try:
        with database:
            if not database.execute(OURS, (half.message_id, True)).rowcount:
                raise TooLate(half.message_id)
            yield half.message_id
    except Exception:
        half.rollback()
        raise
    # Ctrl-C may come just after the database has committed. It is not an Exception, so the message stays
    # undecided, and check decides it.
    half.commit()


def check(message: mq.MessageExt, database: sqlite3.Connection) -> mq.TransactionState:
    """Whether the database has the transaction of this message; if not, it never will.

    A running transaction holds the database's lock, so this waits for it.
    """
    with database:
        database.execute(OURS, (message.msg_id, False))
        query = "SELECT is_sent FROM outbox WHERE msg_id = ?"
        [(is_sent,)] = database.execute(query, (message.msg_id,))
    return mq.TransactionState.COMMIT if is_sent else mq.TransactionState.ROLLBACK


# An application: payments, each with a message about it.

DATABASE = "var/bank.db"
ACCOUNTS = "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER CHECK (cents >= 0))"


def connect() -> sqlite3.Connection:
    return sqlite3.connect(DATABASE, timeout=60)


def check_payment(message: mq.MessageExt) -> mq.TransactionState:
    """Called in a thread of the producer, about a payment of any process."""
    with closing(connect()) as database:
        return check(message, database)


def pay(
    producer: mq.TransactionProducer, database: sqlite3.Connection, payer: str, payee: str, cents: int
) -> None:
    message = mq.Message("payments", f"{payer} pays {payee} {cents} cents".encode(), keys=(payer, payee))
    with together(producer, message, database):
        database.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", (cents, payee))
        database.execute("UPDATE accounts SET cents = cents - ? WHERE name = ?", (cents, payer))


def main() -> None:
    with (
        mq.open("var/bank", flush="sync") as broker,
        closing(connect()) as database,
        mq.TransactionProducer(broker, "bank", check_payment) as producer,
    ):
        topic = broker.create_topic("payments", queue_count=1)
        with database:
            database.execute(OUTBOX)
            database.execute(ACCOUNTS)
            database.executemany(
                "INSERT OR REPLACE INTO accounts VALUES (?, ?)", [("ann", 100), ("bob", 100)]
            )
        pay(producer, database, "ann", "bob", 70)
        try:
            pay(producer, database, "ann", "bob", 70)
        except sqlite3.IntegrityError as error:
            print("not paid:", error)
        for name, cents in database.execute("SELECT name, cents FROM accounts ORDER BY name"):
            print(f"{name} has {cents} cents")
        for message in topic.queues[0].read(0).messages:
            print("sent:", message.body.decode())


if __name__ == "__main__":
    main()
