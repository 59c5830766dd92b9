"""The books: what happened to the orders and the money of it by double entry, kept from messages alone.

    changes    each change of an order that a message told of
    postings   who paid whom how much

They are a database of their own and never look into the shop's. A message that comes again finds its line.
"""

from collections import Counter
from collections.abc import Sequence

from examples.orders.database import Database
from examples.orders.model import Change, movements

__all__ = ["Books"]

SCHEMA = """
CREATE TABLE changes (
    number INTEGER, what TEXT, customer TEXT NOT NULL, cents INTEGER NOT NULL, PRIMARY KEY (number, what));
CREATE TABLE postings (
    number INTEGER NOT NULL, payer TEXT NOT NULL, payee TEXT NOT NULL, cents INTEGER NOT NULL);
"""


class Books(Database):
    """What the processes write into the books, and read there."""

    def open(self) -> None:
        self.create(SCHEMA)

    def enter(self, changes: Sequence[Change]) -> int:
        """Write down what has happened, all of it in one transaction; returns how much was known."""
        known = 0
        with self.connection() as database, database:
            for change in changes:
                line = database.execute("INSERT OR IGNORE INTO changes VALUES (?, ?, ?, ?)", change)
                if not line.rowcount:
                    known += 1
                    continue
                database.executemany(
                    "INSERT INTO postings VALUES (?, ?, ?, ?)",
                    [(change.number, *movement) for movement in movements(change)],
                )
        return known

    def changes(self) -> set[Change]:
        return {Change(*row) for row in self.rows("SELECT * FROM changes")}

    def count(self) -> int:
        [(count,)] = self.rows("SELECT count(*) FROM changes")
        return int(count)

    def movements(self) -> Counter[str]:
        """What each account has more, or less, than before."""
        moved: Counter[str] = Counter()
        for payer, payee, cents in self.rows("SELECT payer, payee, cents FROM postings"):
            moved[payer] -= cents
            moved[payee] += cents
        return moved
