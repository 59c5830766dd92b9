"""The table at the end of the pipeline: a sqlite3 database, filled by a plain push consumer.

A row for each result, by the message's place in its queue. So a message that is delivered again changes
nothing, while one that was written again has another place, and shows. Of the results for a module and day
the one of the latest micro-batch is the sum, in whatever order they come: that is the view `lines`.
"""

import json
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mq
from examples.pipeline.plan import RESULTS
from examples.pipeline.sums import Sum, Sums

__all__ = ["Table"]

GROUP = "table"
SCHEMA = """
CREATE TABLE results (
    queue_id INTEGER, queue_offset INTEGER,
    batch INTEGER, module TEXT, day TEXT, changes INTEGER, added INTEGER, deleted INTEGER,
    PRIMARY KEY (queue_id, queue_offset)
);
-- SQLite takes the other columns from the row that has the maximum.
CREATE VIEW lines AS
    SELECT module, day, changes, added, deleted, max(batch) AS batch FROM results GROUP BY module, day;
"""


class Table:
    """May be read by other threads than the consumer's."""

    def __init__(self, path: Path) -> None:
        self.event_count = 0  # the number of events in the sums
        self.result_count = 0
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}  # batch, and changes by then
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    @contextmanager
    def filled_from(self, broker: mq.Broker) -> Generator[None, None, None]:
        """Store incoming results while the context is open."""
        with mq.PushConsumer(broker, GROUP, threads=2) as consumer:
            consumer.subscribe(RESULTS, listener=self._add)
            consumer.start()
            yield

    def lag(self, broker: mq.Broker) -> int:
        """How many written results are not in the table yet."""
        return broker.group(GROUP).lag(RESULTS)

    def sums(self) -> Sums:
        with self._lock:
            rows = self._database.execute("SELECT module, day, changes, added, deleted FROM lines")
            return {(module, day): Sum(*sums) for module, day, *sums in rows}

    def twice(self) -> int:
        """The number of duplicate results."""
        asked = "SELECT count(*) - (SELECT count(*) FROM (SELECT DISTINCT batch, module, day FROM results))"
        return self._number(f"{asked} FROM results")

    def missing(self) -> int:
        """How many micro-batches, up to the last one with a result, have none. Each should have one."""
        return self._number("SELECT coalesce(max(batch) + 1 - count(DISTINCT batch), 0) FROM results")

    def batch_count(self) -> int:
        return self._number("SELECT count(DISTINCT batch) FROM results")

    def close(self) -> None:
        self._database.close()

    def _number(self, asked: str) -> int:
        with self._lock:
            (number,) = self._database.execute(asked).fetchone()
        return int(number)

    def _add(self, message: mq.MessageExt) -> None:
        result = json.loads(message.body)
        row = [result[name] for name in ("batch", "module", "day", "changes", "added", "deleted")]
        place = (message.queue_id, message.queue_offset)
        with self._lock:
            added = self._database.execute(
                "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*place, *row)
            )
            if added.rowcount:
                self.result_count += 1
                self._count(result)

    def _count(self, result: dict[str, Any]) -> None:
        key = result["module"], result["day"]
        batch, changes = self._newest.get(key, (-1, 0))
        if result["batch"] > batch:
            self._newest[key] = result["batch"], result["changes"]
            self.event_count += result["changes"] - changes
