"""The shop's database: orders and accounts. A message reports each change, and is committed with it.

    accounts   the balance of each customer and of the shop
    orders     each order with its state, and whether late money was returned
    outbox     the messages that belong to transactions of this database: see examples/outbox.py
    checks     the answers to checks of messages whose process had died, and the messages' ages
    repeats    repeated messages that found nothing to do, by group

An order is `placed`, and then in one final state. A repeated message finds its order in that state. So the
shop needs no record of handled messages: state and money change in one transaction.
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
# The changes that are possible in each state.
IS_FINAL = "UPDATE orders SET state = :what, changed_ms = :now WHERE number = :number AND state = 'placed'"
IS_REFUNDED = """
UPDATE orders SET is_refunded = TRUE WHERE number = :number AND state = 'cancelled' AND NOT is_refunded"""

PAID_LATE = """
SELECT is_refunded, count(*) FROM orders
WHERE state = 'cancelled' AND transfer_ms NOT NULL GROUP BY is_refunded"""
CAME_AGAIN = """
INSERT INTO repeats VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET times = times + excluded.times"""


class Placed(NamedTuple):
    """An order in the database."""

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
    """The number of orders by state, of changes so far, and of orders that are still open."""

    states: dict[str, int]
    changes: int
    open: int


class NotEnough(Exception):
    """The customer does not have enough money."""


class _Settled(Exception):
    """The order's state does not allow this change."""


class Shop(Database):
    """The shop's database, as the processes use it."""

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
        """Apply a change to an order. False if it was applied before, or the order's state does not allow it.

        Raises NotEnough if the payer does not have enough money.
        """
        order = self.order(number)
        if order.is_refunded or order.state != ("cancelled" if what == "refunded" else "placed"):
            return False  # Most repeated messages end here, before a half message is stored.
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
            # It waited so long for the database that a check decided first: try again.
            with suppress(outbox.TooLate), self.connection() as database:
                with outbox.together(producer, message, database):
                    do(database)
                self.passes(POINTS[3])
                return

    def check(self, message: mq.MessageExt) -> mq.TransactionState:
        """Answer a check about a message whose process has died; any process may be asked."""
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
        """Count repeated messages."""
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
