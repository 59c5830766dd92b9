"""The stream reader: lives in one process as long as its query, and says how far each micro-batch goes.

What a batch reads follows from its two offsets and the options alone: a batch that was planned and not
finished is planned again after a restart, and must be the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mq.broker.local import LocalBroker
from mq.broker.results import MessageQueue
from mq.errors import MQError
from mq.spark.batch import MqPartition
from mq.spark.offsets import Offset
from mq.spark.options import SourceOptions
from mq.spark.ranges import Limits, Positions, admit, backlog, pack, settle, spans
from mq.spark.reading import read_ranges
from mq.spark.refusal import Refusal
from mq.spark.survey import Survey, refuse_losses
from mq.spark.target import StoreRef, broker

__all__ = ["RefusedStream", "StreamReader"]

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the process of the query; reads in the tasks. schema is Arrow's."""

    def __init__(self, store: StoreRef, options: SourceOptions, schema: Any) -> None:
        self._store = store
        self._options = options
        self._schema = schema
        self._until: Positions | None = None  # where a query of what is available now ends
        self._last_trigger: float | None = None  # monotonic; of the last batch with rows
        self._mirrored: Positions = {}
        self._is_held_back = False

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        most = self._options.rows_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        survey = Survey(self._broker(), self._options)
        limits = survey.limits(survey.queues())
        start, losses = settle(survey.resolve(self._options.start, limits), limits)
        self._judge(losses)
        return survey.offset(start, {}, {}).json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        self._until = {
            queue: limit.end for queue, limit in self._limits(Survey(self._broker(), self._options)).items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """How far the next batch goes. Waits a while for messages if there are none."""
        before = Offset.of(start, self._broker().name)
        self._mirror(before.positions)
        deadline = time.monotonic() + (self._options.poll_timeout if self._until is None else 0)
        while True:
            end = self._next(before, limit)
            if end is not None:
                return end
            left = deadline - time.monotonic()
            if left <= 0:
                return start
            if self._is_held_back:
                time.sleep(left)
            else:
                self._broker().bulk.wait(before.positions, left)

    def _next(self, before: Offset, limit: ReadLimit) -> dict[str, Any] | None:
        """The offset after the next batch; None if there is none to be read yet."""
        survey = Survey(self._broker(), self._options)
        limits = self._limits(survey)
        remade = survey.remade(before, limits)
        begin, losses = settle(before.positions, limits, remade)
        self._judge(losses)
        ends = {queue: limit.end for queue, limit in limits.items()}
        if self._until is not None:
            ends = {
                queue: max(begin[queue], min(end, self._until.get(queue, 0))) for queue, end in ends.items()
            }
        rows = backlog(begin, ends)
        if not rows and begin == before.positions:
            return None
        if rows and self._holds_back(rows, limit):
            self._is_held_back = True
            return None
        self._is_held_back = False
        self._last_trigger = time.monotonic()
        positions = admit(begin, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        known = {topic: witness for topic, witness in before.witnesses.items() if topic not in remade}
        return survey.offset(positions, begin, known).json()

    def _holds_back(self, rows: int, limit: ReadLimit) -> bool:
        """Whether to wait for more rows, since there are few and the last batch was not long ago."""
        least = self._options.rows_per_trigger_min
        if least is None or rows >= least or self._until is not None or self._last_trigger is None:
            return False
        if isinstance(limit, ReadAllAvailable) and self._options.rows_per_trigger_max is not None:
            return False  # Trigger.Once: there is no next time.
        return time.monotonic() - self._last_trigger < self._options.trigger_delay

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """The ends of the queues, for the progress of the query."""
        limits = self._limits(Survey(self._broker(), self._options))
        return Offset({queue: limit.end for queue, limit in limits.items()}, {}).json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        name = self._broker().name
        before, after = Offset.of(start, name), Offset.of(end, name)
        survey = Survey(self._broker(), self._options)
        limits = self._limits(survey)
        begin, losses = settle(before.positions, limits, survey.remade(before, limits))
        self._judge(losses)
        return [MqPartition(ranges) for ranges in pack(spans(begin, after.positions), self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, MqPartition)
        yield from read_ranges(broker(self._store), partition.ranges, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark tells of a batch only when it plans the next one; latestOffset knows earlier."""

    def stop(self) -> None:
        """Nothing is held that the end of the process would not give back."""

    def _broker(self) -> LocalBroker:
        return broker(self._store, writable=self._options.group is not None)

    def _limits(self, survey: Survey) -> dict[MessageQueue, Limits]:
        return survey.limits(survey.queues(gone_is_fine=True))

    def _judge(self, losses: list[Any]) -> None:
        if self._options.fail_on_data_loss:
            refuse_losses(losses)
        for loss in losses:
            _log.warning("%s", loss)

    def _mirror(self, positions: Mapping[MessageQueue, int]) -> None:
        """Have the group say what was processed; for those who look, and never what the query goes by."""
        group = self._options.group
        if group is None:
            return
        for queue, offset in positions.items():
            if self._mirrored.get(queue) == offset:
                continue
            try:
                self._broker().commit(group, queue, offset)
            except MQError as error:
                _log.warning("the offset of %s is not said in group %s: %s", queue, group, error)
                return
            self._mirrored[queue] = offset


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
