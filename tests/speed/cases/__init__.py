"""All cases, in the order of the table; one file for each thing that is measured."""

from __future__ import annotations

from tests.speed.cases import (
    arrow,
    backlog,
    batch,
    cluster,
    consume,
    delayed,
    disk,
    due,
    growth,
    latency,
    many_topics,
    once,
    one_way,
    opening,
    pipeline,
    read,
    replica,
    rocketmq,
    round_trip,
    selecting,
    send,
    serving,
    serving_costs,
    spark,
    stalls,
    sync_flush,
    transaction,
    writers,
)
from tests.speed.cases.case import Case

CASES: tuple[Case, ...] = (
    *send.CASES,
    *latency.CASES,
    *batch.CASES,
    *stalls.CASES,
    *sync_flush.CASES,
    *read.CASES,
    *arrow.CASES,
    *selecting.CASES,
    *writers.CASES,
    *round_trip.CASES,
    *backlog.CASES,
    *many_topics.CASES,
    *growth.CASES,
    *disk.CASES,
    *opening.CASES,
    *consume.CASES,
    *pipeline.CASES,
    *one_way.CASES,
    *rocketmq.CASES,
    *once.CASES,
    *delayed.CASES,
    *due.CASES,
    *transaction.CASES,
    *cluster.CASES,
    *serving.CASES,
    *serving_costs.CASES,
    *replica.CASES,
    *spark.CASES,
)


def chosen(patterns: list[str]) -> list[Case]:
    """The cases of these names or groups (`send`, `send/lmdb`); all for none. KeyError for an unknown one."""
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in CASES):
            raise KeyError(pattern)
    return [case for case in CASES if not patterns or any(_matches(case, pattern) for pattern in patterns)]


def _matches(case: Case, pattern: str) -> bool:
    return case.name == pattern or case.name.startswith(f"{pattern}/")
