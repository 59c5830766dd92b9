"""The books: the changes of orders and the payments in double entry, filled from messages only.

    changes    each change of an order that a message reported
    postings   payer, payee and amount

They are a separate database and never read the shop's. A repeated message finds its line.
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
    """The books, as the processes read and write them."""

    def open(self) -> None:
        self.create(SCHEMA)

    def enter(self, changes: Sequence[Change]) -> int:
        """Record changes in one transaction; returns how many were recorded before."""
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
        """The change of each account's balance."""
        moved: Counter[str] = Counter()
        for payer, payee, cents in self.rows("SELECT payer, payee, cents FROM postings"):
            moved[payer] -= cents
            moved[payee] += cents
        return moved
