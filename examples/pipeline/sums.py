"""The expected result: lines changed per module and day. Plain Python, without mq and Spark."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

__all__ = ["Found", "Sum", "Sums", "sums_of", "verdict"]


class Sum(NamedTuple):
    changes: int
    added: int
    deleted: int

    def plus(self, other: "Sum") -> "Sum":
        return Sum(self.changes + other.changes, self.added + other.added, self.deleted + other.deleted)


Sums = dict[tuple[str, str], Sum]
"""By module and day, YYYY-MM-DD in UTC."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a run."""

    sent: int  # events in the topic
    table: Mapping[tuple[str, str], Sum]
    results: int  # the number of messages in the table
    twice: int  # the number of duplicates among them
    missing: int  # micro-batches of which there is no result
    batch: Mapping[tuple[str, str], Sum]


def sums_of(events: Iterable[dict[str, Any]]) -> Sums:
    sums: Sums = {}
    for event in events:
        day = datetime.fromtimestamp(event["time"], timezone.utc).date().isoformat()
        # A binary file has no count of lines.
        one = Sum(1, event["added"] or 0, event["deleted"] or 0)
        key = event["module"], day
        sums[key] = sums[key].plus(one) if key in sums else one
    return sums


def verdict(found: Found, truth: Mapping[tuple[str, str], Sum]) -> dict[str, bool]:
    """Each statement about the run, with whether it holds."""
    events, added, deleted = (sum(column) for column in zip(*truth.values(), strict=True))
    return {
        f"all {events:,} events were sent": found.sent == events,
        f"the table that the stream filled has the {len(truth):,} sums of the input:"
        f" {added:,} lines added, {deleted:,} deleted": found.table == truth,
        f"each of {found.results:,} results came, and came once": not found.twice and not found.missing,
        "the batch job, from the topic's beginning, says the same": found.batch == truth,
    }
