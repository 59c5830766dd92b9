"""The parameters that all processes of a run share: paths and counts."""

from pathlib import Path
from typing import NamedTuple

__all__ = ["CHANGES", "PRODUCER_COUNT", "QUERY_GROUP", "RESULTS", "Plan"]

CHANGES = "changes"
RESULTS = "lines"
QUERY_GROUP = "lines-by-day"  # the group to which the query commits its offsets, for monitoring only
PRODUCER_COUNT = 2
BATCHES_A_LIFE = 3  # the minimum of micro-batches per driver, so that each is killed while it works


class Plan(NamedTuple):
    directory: Path
    scratch: Path  # for what Spark's processes leave behind when they are killed; its name is short
    master: str
    event_count: int
    rate: float  # events a second, of all producers together
    kill_count: int

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def events(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def table(self) -> Path:
        return self.directory / "table.db"

    @property
    def batch_result(self) -> Path:
        return self.directory / "batch.json"

    @property
    def log(self) -> Path:
        """The log of Spark."""
        return self.directory / "spark.log"

    @property
    def events_per_trigger(self) -> int:
        return max(1, self.event_count // (BATCHES_A_LIFE * (self.kill_count + 1)))

    def killed_at(self, life: int) -> int | None:
        """How many events are in the table when the driver is killed for the time `life`, 0 and up; None for
        the driver that is not killed."""
        if life >= self.kill_count:
            return None
        return self.event_count * (life + 1) // (self.kill_count + 1)
