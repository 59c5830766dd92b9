"""The stream reader: lives in one process as long as its query, and says how far each micro-batch goes.

What a batch reads follows from its two offsets and the options alone: a batch that was planned and not
finished is planned again after a restart, and must be the same.
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
from mq.spark.errors import Refusal, planning
from mq.spark.source.batch import MqPartition
from mq.spark.source.offset_planner import Survey, View, refuse_losses
from mq.spark.source.offsets import Offset
from mq.spark.source.options import SourceOptions
from mq.spark.source.origin import Origin, origin_of
from mq.spark.source.ranges import Loss, Positions, backlog, pack, settle, spans
from mq.spark.source.rate_limit import admit, admit_bytes
from mq.spark.source.reading import read_ranges
from mq.spark.target import StoreRef
from mq.spark.target_options import ClusterRef

__all__ = ["RefusedStream", "StreamReader"]

OFFSETS_KEPT = 4  # start, end and latest come again, and of many queues they are long

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the process of the query; reads in the tasks. schema is Arrow's, clock is monotonic."""

    def __init__(
        self,
        place: StoreRef | ClusterRef,
        options: SourceOptions,
        schema: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._options = options
        self.schema = schema
        self.clock = clock
        self._survey: tuple[Origin, Survey] | None = None
        self._offsets: list[tuple[dict[str, Any], Offset]] = []
        self._idle: tuple[View, Offset] | None = None  # what was looked at last, and had nothing new
        self._viewed: View | None = None  # the newest
        self._latest: tuple[View, dict[str, Any]] | None = None
        self._until: Positions | None = None  # where a query of what is available now ends
        self._last_trigger: float | None = None  # of the last batch with rows
        self._turn: MessageQueue | None = None  # which queue comes first where not all can
        self._mirrored: Positions = {}

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs."""
        return {"_place": self._place, "_options": self._options, "schema": self.schema}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        options = self._options
        if options.rows_per_trigger_max is not None:
            return ReadMaxRows(options.rows_per_trigger_max)  # There is none of both: latestOffset knows.
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    @planning
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        survey = self._surveyed()
        limits = survey.view().limits
        start, losses = settle(survey.resolve(self._options.start, limits), limits)
        self._judge(losses)
        return self._kept(survey.offset(start, {}, {})._replace(is_new=True))

    @planning
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        self._until = self._view().ends

    @planning
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """How far the next batch goes. Waits a while for messages if there are none."""
        before = self._offset(start)
        self._mirror(before.positions)
        deadline = self.clock() + (self._options.poll_timeout if self._until is None else 0)
        while True:
            view = self._view()
            end, missing = self._next(view, before, limit)
            if end is not None:
                return self._kept(end)
            left = deadline - self.clock()
            if left <= 0:
                return start
            # The same object as long as nothing comes, which costs least.
            wanted = self._idle[0].ends if self._idle is not None and not missing else view.ends
            if missing:
                # As long as no queue has its part of what is missing, there is not enough in all of them.
                part = -(-missing // max(len(wanted), 1)) - 1
                wanted = {queue: offset + part for queue, offset in wanted.items()}
                left = min(left, self._held_back_for())
            self._origin().scans.wait(wanted, left, view.version)

    def _next(self, view: View, before: Offset, limit: ReadLimit) -> tuple[Offset | None, int]:
        """The offset after the next batch; None if there is none to be read yet, and for how many messages
        more it would wait."""
        if self._idle is not None and self._idle[1] is before and self._idle[0] == view:
            return None, 0
        survey, limits, ends = self._surveyed(), view.limits, view.ends
        remade = survey.remade(before, limits)
        begin, losses = settle(before.positions, limits, remade)
        self._judge(losses)
        if self._until is not None:
            ends = {
                queue: max(begin[queue], min(end, self._until.get(queue, 0))) for queue, end in ends.items()
            }
        rows = backlog(begin, ends)
        # A queue that is new and has nothing to be read yet is no reason for a batch.
        if not rows and all(begin.get(queue) == offset for queue, offset in before.positions.items()):
            self._idle = view, before
            return None, 0
        if rows and (missing := self._missing(rows, limit)):
            return None, missing
        self._last_trigger = self.clock()
        known = {topic: witness for topic, witness in before.witnesses.items() if topic not in remade}
        end = survey.offset(self._admitted(begin, ends, limit), begin, known)
        # What Spark will not know any more when the batch is read: new queues, and those that were moved on.
        moved = {queue: offset for queue, offset in begin.items() if before.positions.get(queue) != offset}
        return end._replace(begin={**before.positions, **moved} if before.is_new else moved or None), 0

    def _admitted(self, begin: Positions, ends: Positions, limit: ReadLimit) -> Positions:
        options = self._options
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once, or there is no limit.
            return admit(begin, ends, None).positions
        positions, turn = admit(begin, ends, options.rows_per_trigger_max, self._turn)
        fit, bytes_max = self._origin().fit, options.bytes_per_trigger_max
        if bytes_max is not None and fit is not None:
            positions, turn_of_bytes = admit_bytes(begin, positions, bytes_max, fit, self._turn)
            turn = turn_of_bytes if turn_of_bytes != self._turn else turn
        self._turn = turn
        return positions

    def _missing(self, rows: int, limit: ReadLimit) -> int:
        """How many more messages to wait for, since there are few and the last batch was not long ago."""
        options = self._options
        least = options.rows_per_trigger_min
        if least is None or rows >= least or self._until is not None or self._held_back_for() <= 0:
            return 0
        is_limited = options.rows_per_trigger_max is not None or options.bytes_per_trigger_max is not None
        if is_limited and isinstance(limit, ReadAllAvailable):
            return 0  # Trigger.Once: there is no next time.
        return least - rows

    def _held_back_for(self) -> float:
        """How many seconds there may still be waited for more messages."""
        if self._last_trigger is None:
            return 0.0
        return self._last_trigger + self._options.trigger_delay - self.clock()

    @planning
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """The ends of the queues, for the progress of the query."""
        # On a cluster a look asks every broker; Spark asks this right after latestOffset.
        on_cluster = isinstance(self._place, ClusterRef)
        view = self._viewed if on_cluster and self._viewed is not None else self._view()
        if self._latest is None or self._latest[0] != view:
            self._latest = view, Offset(view.ends, {}).json(on_cluster=on_cluster)
        return self._latest[1]

    @planning
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = self._offset(start), self._offset(end)
        survey, view = self._surveyed(), self._view()
        limits = view.limits
        # Of a topic that was made again since the batch was planned nothing can be read; what is in the new
        # one belongs to the next batch.
        too_late = survey.remade(after, limits)
        begin, losses = settle({**before.positions, **(after.begin or {})}, limits, too_late)
        self._judge(losses)
        ends = {queue: offset for queue, offset in after.positions.items() if queue.topic not in too_late}
        return [MqPartition(part, view.begins) for part in pack(spans(begin, ends), self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, MqPartition)
        yield from read_ranges(self._place, partition.ranges, partition.begins, self._options, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark tells of a batch only when it plans the next one; latestOffset knows earlier."""

    def stop(self) -> None:
        """Nothing is held that the end of the process would not give back."""

    def _origin(self) -> Origin:
        known = self._survey[0] if self._survey is not None else None
        return origin_of(self._place, self._options, writable=self._options.shows_progress, known=known)

    def _surveyed(self) -> Survey:
        here = self._origin()
        if self._survey is None or self._survey[0] is not here:
            self._survey = here, Survey(here, self._options)
        return self._survey[1]

    def _view(self) -> View:
        self._viewed = self._surveyed().view(gone_is_fine=True)
        return self._viewed

    def _offset(self, value: dict[str, Any]) -> Offset:
        for known, offset in self._offsets:
            if known == value:
                return offset
        offset = Offset.of(value, self._origin().name)
        self._offsets = [(value, offset), *self._offsets[: OFFSETS_KEPT - 1]]
        return offset

    def _kept(self, offset: Offset) -> dict[str, Any]:
        value = offset.json(on_cluster=isinstance(self._place, ClusterRef))
        self._offsets = [(value, offset), *self._offsets[: OFFSETS_KEPT - 1]]
        return value

    def _judge(self, losses: list[Loss]) -> None:
        if self._options.fail_on_data_loss:
            refuse_losses(losses)
        for loss in losses:
            _log.warning("%s", loss)

    def _mirror(self, positions: Positions) -> None:
        """Have the group say what was processed; for people to see, and never what the query goes by."""
        group = self._options.group
        if group is None or not self._options.shows_progress or positions is self._mirrored:
            return
        assigned = self._origin().broker.consumer_groups.assigned(group)
        for queue, offset in positions.items():
            if self._mirrored.get(queue) == offset:
                continue
            try:
                claim = assigned.claim(queue)
                claim.commit(offset)
                if isinstance(self._place, ClusterRef):
                    claim.release()  # The broker is told at once; a process that Spark kills has no later.
            except (MQError, ValueError) as error:  # ValueError: the queue is gone.
                _log.warning("the offset of %s is not said in group %s: %s", queue, group, error)
                return
        self._mirrored = positions


class RefusedStream(DataSourceStreamReader):
    """Says why there is no stream at the first question: Spark 4.3 trips over an error before that."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        raise self._refusal

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        raise self._refusal

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - see above
        raise self._refusal

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._refusal

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._refusal
