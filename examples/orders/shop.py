"""The shop's database: the orders, and everybody's money. A message tells of each change, committed with it.

    accounts   what each customer and the shop has
    orders     each order with its state, and whether money that came too late has gone back
    outbox     which messages belong to a transaction of this database: see examples/outbox.py
    checks     what was answered about messages whose process had died, and how old they were
    repeats    messages that came again when all was done, by group

An order is `placed`, and then in one final state. A message that comes again finds its order in that state:
whether it is the first needs no memory of messages, for state and money change at one moment.
"""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import mq
from examples import outbox
from examples.orders.database import POINTS, Database
from examples.orders.model import Change, Order, World, movements

__all__ = ["CHANGES", "ORDERS", "NotEnough", "Placed", "Progress", "Shop", "now_ms"]

ORDERS = "orders"  # topics
CHANGES = "changes"

SCHEMA = f"""
CREATE TABLE accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
CREATE TABLE orders (
    number INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL, method TEXT NOT NULL,
    deadline_ms INTEGER NOT NULL, transfer_ms INTEGER,
    state TEXT NOT NULL, changed_ms INTEGER, is_refunded BOOLEAN NOT NULL);
CREATE INDEX states ON orders (state);
{outbox.OUTBOX};
CREATE TABLE checks (msg_id TEXT PRIMARY KEY, is_sent BOOLEAN NOT NULL, age_ms INTEGER NOT NULL);
CREATE TABLE repeats (name TEXT PRIMARY KEY, times INTEGER NOT NULL);
"""
# What may happen to an order in which state.
IS_FINAL = "UPDATE orders SET state = :what, changed_ms = :now WHERE number = :number AND state = 'placed'"
IS_REFUNDED = """
UPDATE orders SET is_refunded = TRUE WHERE number = :number AND state = 'cancelled' AND NOT is_refunded"""

PAID_LATE = """
SELECT is_refunded, count(*) FROM orders
WHERE state = 'cancelled' AND transfer_ms NOT NULL GROUP BY is_refunded"""
CAME_AGAIN = """
INSERT INTO repeats VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET times = times + excluded.times"""


class Placed(NamedTuple):
    """An order as it stands in the database."""

    number: int
    customer: str
    cents: int
    method: str
    deadline_ms: int
    transfer_ms: int | None
    state: str = "placed"
    changed_ms: int | None = None
    is_refunded: bool = False


class Progress(NamedTuple):
    """How many orders are in which state, how much has happened to them, and to how many more has yet to."""

    states: dict[str, int]
    changes: int
    open: int


class NotEnough(Exception):
    """The customer has not the money."""


class _Settled(Exception):
    """The order is not in a state in which this can happen."""


class Shop(Database):
    """What the processes do to the database, and ask of it."""

    def open_for(self, world: World) -> None:
        self.create(SCHEMA)
        with self.connection() as database, database:
            database.executemany("INSERT INTO accounts VALUES (?, ?)", world.accounts.items())

    def place(self, producer: mq.TransactionProducer, order: Order, time_to_pay_ms: int) -> None:
        now = now_ms()
        transfer_ms = None if order.transfer_at is None else now + int(order.transfer_at * time_to_pay_ms)
        number, customer, cents, method, *_ = order
        placed = Placed(number, customer, cents, method, now + time_to_pay_ms, transfer_ms)

        def insert(database: sqlite3.Connection) -> None:
            marks = ", ".join("?" * len(placed))
            database.execute(f"INSERT INTO orders VALUES ({marks})", placed)

        self._together(producer, ORDERS, method, number, json.dumps(order), insert)

    def happen(self, producer: mq.TransactionProducer, number: int, what: str) -> bool:
        """Have something happen to an order. False: it has happened, or the order is not in a state for it.

        Raises NotEnough where money is to be taken that is not there.
        """
        order = self.order(number)
        if order.is_refunded or order.state != ("cancelled" if what == "refunded" else "placed"):
            return False  # Most that come again are known by this, before there is half a message.
        change = Change(number, what, order.customer, order.cents)

        def update(database: sqlite3.Connection) -> None:
            step = IS_REFUNDED if what == "refunded" else IS_FINAL
            values = {"what": what, "now": now_ms(), "number": number}
            if not database.execute(step, values).rowcount:
                raise _Settled
            for payer, payee, cents in movements(change):
                database.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", (cents, payee))
                database.execute("UPDATE accounts SET cents = cents - ? WHERE name = ?", (cents, payer))

        try:
            self._together(producer, CHANGES, what, number, json.dumps(change), update)
        except _Settled:
            return False
        except sqlite3.IntegrityError as error:
            raise NotEnough(f"{order.customer} cannot pay {order.cents} cents") from error
        return True

    def _together(
        self,
        producer: mq.TransactionProducer,
        topic: str,
        tag: str,
        number: int,
        body: str,
        do: Callable[[sqlite3.Connection], None],
    ) -> None:
        message = mq.Message(topic, body.encode(), tags=tag, keys=str(number))
        while True:
            # It waited so long for the database that a check was made: once more then.
            with suppress(outbox.TooLate), self.connection() as database:
                with outbox.together(producer, message, database):
                    do(database)
                self.passes(POINTS[3])
                return

    def check(self, message: mq.MessageExt) -> mq.TransactionState:
        """What a producer of any process is asked about a message when the process that sent it has died."""
        with self.connection() as database:
            state = outbox.check(message, database)
            with database:
                is_sent = state is mq.TransactionState.COMMIT
                answer = (message.msg_id, is_sent, now_ms() - message.born_time_ms)
                database.execute("INSERT OR REPLACE INTO checks VALUES (?, ?, ?)", answer)
        return state

    def order(self, number: int) -> Placed:
        [row] = self.rows("SELECT * FROM orders WHERE number = ?", number)
        return Placed(*row)

    def came_again(self, name: str, times: int = 1) -> None:
        """Note that messages came that had been dealt with."""
        with self.connection() as database, database:
            database.execute(CAME_AGAIN, (name, times))

    def numbers(self) -> set[int]:
        return {number for (number,) in self.rows("SELECT number FROM orders")}

    def progress(self) -> Progress:
        states = dict(self.rows("SELECT state, count(*) FROM orders GROUP BY state"))
        paid_late = dict(self.rows(PAID_LATE))
        placed, refunded, coming = states.get("placed", 0), paid_late.get(True, 0), paid_late.get(False, 0)
        return Progress(states, sum(states.values()) - placed + refunded, placed + coming)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
