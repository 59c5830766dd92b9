"""The identity of a writing task: query, epoch, partition, attempt."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import TaskContext

__all__ = ["Task", "this_task"]

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a task


class Task(NamedTuple):
    """A task that writes rows."""

    query_id: str
    epoch: int
    partition: int
    attempt: int  # of all attempts of all tasks


def this_task(run: str, version: int | None) -> Task:
    """The task that runs here. run: the id of a batch write, "" of a stream. version: the epoch, if given."""
    context: Any = TaskContext.get()
    # In foreachBatch, the tasks of a batch write also see the properties of the surrounding query. With that
    # query's id, a second write would look like a replay of the first.
    query_id = run or context.getLocalProperty(QUERY_ID)
    epoch = int(context.getLocalProperty(BATCH_ID) or 0) if version is None else version
    return Task(query_id, epoch, context.partitionId(), context.taskAttemptId())
