"""The stream reader. It lives in one process as long as its query, and plans how far each micro-batch reads.

A batch depends on its two offsets and the options alone: after a restart, Spark plans an unfinished batch
again and must get the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mq.api.results import MessageQueue
from mq.errors import MQError
from mq.spark.errors import SparkError, raises_spark_errors
from mq.spark.source.batch import MqPartition
from mq.spark.source.offset_planner import OffsetPlanner, QueueSnapshot, raise_data_loss
from mq.spark.source.offsets import Offset
from mq.spark.source.options import SourceOptions
from mq.spark.source.origin import Origin, origin_of
from mq.spark.source.ranges import DataLoss, Positions, backlog, clamp_positions, pack, ranges_between
from mq.spark.source.rate_limit import admit, admit_bytes
from mq.spark.source.reading import read_ranges
from mq.spark.target import StoreRef
from mq.spark.target_options import ClusterRef

__all__ = ["FailedStream", "StreamReader"]

OFFSETS_KEPT = 4  # parsed offsets: Spark passes start, end and latest repeatedly

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the process of the query; reads in the tasks. schema is Arrow's, clock is monotonic."""

    def __init__(
        self,
        ref: StoreRef | ClusterRef,
        options: SourceOptions,
        schema: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ref = ref
        self._options = options
        self.schema = schema
        self.clock = clock
        self._planner: tuple[Origin, OffsetPlanner] | None = None
        self._offsets: list[tuple[dict[str, Any], Offset]] = []
        self._idle: tuple[QueueSnapshot, Offset] | None = None  # the last snapshot without new messages
        self._newest_snapshot: QueueSnapshot | None = None  # the newest
        self._latest: tuple[QueueSnapshot, dict[str, Any]] | None = None
        self._until: Positions | None = None  # where a query with Trigger.AvailableNow ends
        self._last_trigger: float | None = None  # of the last batch with rows
        self._turn: MessageQueue | None = None  # the queue that comes first if the limit excludes some
        self._group_positions: Positions = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state that a task needs."""
        return {"_ref": self._ref, "_options": self._options, "schema": self.schema}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        options = self._options
        if options.rows_per_trigger_max is not None:
            # Spark has no limit by rows and bytes; latestOffset applies both.
            return ReadMaxRows(options.rows_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    @raises_spark_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        planner = self._current_planner()
        limits = planner.snapshot().limits
        start, losses = clamp_positions(planner.resolve(self._options.start, limits), limits)
        self._handle_losses(losses)
        return self._kept(planner.offset(start, {}, {})._replace(is_new=True))

    @raises_spark_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        self._until = self._snapshot().ends

    @raises_spark_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """The end offset of the next batch. If there are no messages, it waits up to pollTimeoutMs."""
        before = self._offset(start)
        self._commit_to_group(before.positions)
        deadline = self.clock() + (self._options.poll_timeout if self._until is None else 0)
        while True:
            snapshot = self._snapshot()
            end, missing = self._next(snapshot, before, limit)
            if end is not None:
                return self._kept(end)
            left = deadline - self.clock()
            if left <= 0:
                return start
            # While nothing arrives this is the same object, which wait() checks fastest.
            wanted = self._idle[0].ends if self._idle is not None and not missing else snapshot.ends
            if missing:
                # Until one queue has its share of the missing messages, all queues together have too few.
                part = -(-missing // max(len(wanted), 1)) - 1
                wanted = {queue: offset + part for queue, offset in wanted.items()}
                left = min(left, self._held_back_for())
            self._origin().scans.wait(wanted, left, snapshot.version)

    def _next(self, snapshot: QueueSnapshot, before: Offset, limit: ReadLimit) -> tuple[Offset | None, int]:
        """The offset after the next batch, or None if there is nothing to read yet; and how many messages are
        missing for minOffsetsPerTrigger."""
        if self._idle is not None and self._idle[1] is before and self._idle[0] == snapshot:
            return None, 0
        planner, limits, ends = self._current_planner(), snapshot.limits, snapshot.ends
        remade = planner.remade(before, limits)
        begin, losses = clamp_positions(before.positions, limits, remade)
        self._handle_losses(losses)
        if self._until is not None:
            ends = {
                queue: max(begin[queue], min(end, self._until.get(queue, 0))) for queue, end in ends.items()
            }
        rows = backlog(begin, ends)
        # A new queue without messages does not start a batch.
        if not rows and all(begin.get(queue) == offset for queue, offset in before.positions.items()):
            self._idle = snapshot, before
            return None, 0
        if rows and (missing := self._missing(rows, limit)):
            return None, missing
        self._last_trigger = self.clock()
        known = {topic: marker for topic, marker in before.markers.items() if topic not in remade}
        end = planner.offset(self._admitted(begin, ends, limit), begin, known)
        # Record what Spark's start offset lacks: the begin of new queues, and of those that lost messages.
        moved = {queue: offset for queue, offset in begin.items() if before.positions.get(queue) != offset}
        return end._replace(begin={**before.positions, **moved} if before.is_new else moved or None), 0

    def _admitted(self, begin: Positions, ends: Positions, limit: ReadLimit) -> Positions:
        options = self._options
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once, or no limit.
            return admit(begin, ends, None).positions
        positions, turn = admit(begin, ends, options.rows_per_trigger_max, self._turn)
        fit, bytes_max = self._origin().fit, options.bytes_per_trigger_max
        if bytes_max is not None and fit is not None:
            positions, turn_of_bytes = admit_bytes(begin, positions, bytes_max, fit, self._turn)
            turn = turn_of_bytes if turn_of_bytes != self._turn else turn
        self._turn = turn
        return positions

    def _missing(self, rows: int, limit: ReadLimit) -> int:
        """How many more messages the trigger waits for; 0 once maxTriggerDelay has passed since the last
        batch."""
        options = self._options
        least = options.rows_per_trigger_min
        if least is None or rows >= least or self._until is not None or self._held_back_for() <= 0:
            return 0
        is_limited = options.rows_per_trigger_max is not None or options.bytes_per_trigger_max is not None
        if is_limited and isinstance(limit, ReadAllAvailable):
            return 0  # Trigger.Once has no next batch.
        return least - rows

    def _held_back_for(self) -> float:
        """How many seconds the trigger may still wait for more messages."""
        if self._last_trigger is None:
            return 0.0
        return self._last_trigger + self._options.trigger_delay - self.clock()

    @raises_spark_errors
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """The ends of the queues, for the progress of the query."""
        # On a cluster a snapshot asks every broker. Spark calls this right after latestOffset, so reuse that
        # one.
        on_cluster = isinstance(self._ref, ClusterRef)
        snapshot = (
            self._newest_snapshot if on_cluster and self._newest_snapshot is not None else self._snapshot()
        )
        if self._latest is None or self._latest[0] != snapshot:
            self._latest = snapshot, Offset(snapshot.ends, {}).json(on_cluster=on_cluster)
        return self._latest[1]

    @raises_spark_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = self._offset(start), self._offset(end)
        planner, snapshot = self._current_planner(), self._snapshot()
        limits = snapshot.limits
        # The planned messages of a topic that was re-created since are gone; its new ones belong to the next
        # batch.
        too_late = planner.remade(after, limits)
        begin, losses = clamp_positions({**before.positions, **(after.begin or {})}, limits, too_late)
        self._handle_losses(losses)
        ends = {queue: offset for queue, offset in after.positions.items() if queue.topic not in too_late}
        return [
            MqPartition(part, snapshot.begins)
            for part in pack(ranges_between(begin, ends), self._options.tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, MqPartition)
        yield from read_ranges(self._ref, partition.ranges, partition.begins, self._options, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls this only when it plans the next batch, and latestOffset commits earlier."""

    def stop(self) -> None:
        """Nothing: the end of the process releases everything that the reader holds."""

    def _origin(self) -> Origin:
        known = self._planner[0] if self._planner is not None else None
        return origin_of(self._ref, self._options, writable=self._options.commits_to_group, known=known)

    def _current_planner(self) -> OffsetPlanner:
        here = self._origin()
        if self._planner is None or self._planner[0] is not here:
            self._planner = here, OffsetPlanner(here, self._options)
        return self._planner[1]

    def _snapshot(self) -> QueueSnapshot:
        self._newest_snapshot = self._current_planner().snapshot(ignore_missing=True)
        return self._newest_snapshot

    def _offset(self, value: dict[str, Any]) -> Offset:
        for known, offset in self._offsets:
            if known == value:
                return offset
        offset = Offset.of(value, self._origin().name)
        self._offsets = [(value, offset), *self._offsets[: OFFSETS_KEPT - 1]]
        return offset

    def _kept(self, offset: Offset) -> dict[str, Any]:
        value = offset.json(on_cluster=isinstance(self._ref, ClusterRef))
        self._offsets = [(value, offset), *self._offsets[: OFFSETS_KEPT - 1]]
        return value

    def _handle_losses(self, losses: list[DataLoss]) -> None:
        if self._options.fail_on_data_loss:
            raise_data_loss(losses)
        for loss in losses:
            _log.warning("%s", loss)

    def _commit_to_group(self, positions: Positions) -> None:
        """Commit processed offsets to the group, for monitoring; the query itself uses its checkpoint."""
        group = self._options.group
        if group is None or not self._options.commits_to_group or positions is self._group_positions:
            return
        assigned = self._origin().broker.consumer_groups.assigned(group)
        for queue, offset in positions.items():
            if self._group_positions.get(queue) == offset:
                continue
            try:
                claim = assigned.claim(queue)
                claim.commit(offset)
                if isinstance(self._ref, ClusterRef):
                    claim.release()  # Sends the commit now: Spark may kill this process at any time.
            except (MQError, ValueError) as error:  # ValueError: the queue is gone.
                _log.warning("the offset of %s is not committed to group %s: %s", queue, group, error)
                return
        self._group_positions = positions


class FailedStream(DataSourceStreamReader):
    """A stream that raises its error at the first call: Spark 4.3 does not report an error raised earlier."""

    def __init__(self, error: SparkError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        raise self._error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - see above
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error
