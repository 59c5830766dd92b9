"""The batch reader: what was in the queues when Spark first looked, cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mq.spark.errors import planning
from mq.spark.source.offset_planner import Survey, refuse_beyond, refuse_losses
from mq.spark.source.options import SourceOptions
from mq.spark.source.origin import origin_of
from mq.spark.source.ranges import Range, pack, settle, spans
from mq.spark.source.reading import read_ranges
from mq.spark.target import StoreRef
from mq.spark.target_options import ClusterRef

__all__ = ["BatchReader", "MqPartition"]


class MqPartition(InputPartition):
    """What one task reads, and of which life of its topics: see View.begins."""

    def __init__(self, ranges: tuple[Range, ...], begins: Mapping[str, int]) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.begins = {span.queue.topic: begins[span.queue.topic] for span in ranges}

    def __repr__(self) -> str:
        return f"MqPartition({self.ranges})"


class BatchReader(DataSourceReader):
    """Plans on the driver, once for each load(); reads in the tasks. schema is Arrow's."""

    def __init__(self, place: StoreRef | ClusterRef, options: SourceOptions, schema: Any) -> None:
        self._place = place
        self._options = options
        self.schema = schema

    @planning
    def partitions(self) -> list[InputPartition]:
        options = self._options
        origin = origin_of(self._place, options)
        survey = Survey(origin, options)
        view = survey.view()
        limits = view.limits
        wanted = survey.resolve(options.start, limits)
        start, losses = settle(wanted, limits)
        if options.fail_on_data_loss:
            refuse_losses(losses)
        end = survey.resolve(options.end, limits)
        if options.fail_on_data_loss:
            refuse_beyond(end, limits)
        end = {queue: min(offset, limits[queue].end) for queue, offset in end.items()}
        ranges = spans(start, end)
        if options.key is not None:
            ranges = origin.narrowed(ranges, options.key)
        return [MqPartition(part, view.begins) for part in pack(ranges, options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Without any partition Spark gives one of its own, with nothing in it.
        if isinstance(partition, MqPartition):
            yield from read_ranges(
                self._place, partition.ranges, partition.begins, self._options, self.schema
            )
