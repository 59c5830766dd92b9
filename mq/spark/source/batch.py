"""The batch reader: the messages that the queues have at planning time, split into tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mq.spark.errors import raises_spark_errors
from mq.spark.source.offset_planner import OffsetPlanner, check_ends, raise_data_loss
from mq.spark.source.options import SourceOptions
from mq.spark.source.origin import origin_of
from mq.spark.source.ranges import OffsetRange, clamp_positions, pack, ranges_between
from mq.spark.source.reading import read_ranges
from mq.spark.target import StoreRef
from mq.spark.target_options import ClusterRef

__all__ = ["BatchReader", "MqPartition"]


class MqPartition(InputPartition):
    """The ranges that one task reads, and where each of its topics began: see QueueSnapshot.begins."""

    def __init__(self, ranges: tuple[OffsetRange, ...], begins: Mapping[str, int]) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.begins = {span.queue.topic: begins[span.queue.topic] for span in ranges}

    def __repr__(self) -> str:
        return f"MqPartition({self.ranges})"


class BatchReader(DataSourceReader):
    """Plans on the driver, once for each load(); reads in the tasks. schema is Arrow's."""

    def __init__(self, ref: StoreRef | ClusterRef, options: SourceOptions, schema: Any) -> None:
        self._ref = ref
        self._options = options
        self.schema = schema

    @raises_spark_errors
    def partitions(self) -> list[InputPartition]:
        options = self._options
        origin = origin_of(self._ref, options)
        planner = OffsetPlanner(origin, options)
        snapshot = planner.snapshot()
        limits = snapshot.limits
        wanted = planner.resolve(options.start, limits)
        start, losses = clamp_positions(wanted, limits)
        if options.fail_on_data_loss:
            raise_data_loss(losses)
        end = planner.resolve(options.end, limits)
        if options.fail_on_data_loss:
            check_ends(end, limits)
        end = {queue: min(offset, limits[queue].end) for queue, offset in end.items()}
        ranges = ranges_between(start, end)
        if options.key is not None:
            ranges = origin.prune_by_key(ranges, options.key)
        return [MqPartition(part, snapshot.begins) for part in pack(ranges, options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # If there is no partition, Spark passes an empty one of its own.
        if isinstance(partition, MqPartition):
            yield from read_ranges(self._ref, partition.ranges, partition.begins, self._options, self.schema)
