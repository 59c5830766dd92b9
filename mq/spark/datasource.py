"""The data source that Spark knows as "mq"."""

from __future__ import annotations

import os
import time
from typing import Any

from pyspark.sql.datasource import DataSource

from mq.spark.cluster import cluster_broker, on_cluster
from mq.spark.columns import check_fields, check_nullable, schema_text
from mq.spark.errors import SparkError
from mq.spark.option_names import check_names
from mq.spark.sink.options import SinkOptions, reject_overwrite, reject_version, sink_options
from mq.spark.sink.rows import check_columns, check_target
from mq.spark.source.options import SourceOptions, includes_properties, source_options
from mq.spark.target import StoreRef, broker, locate
from mq.spark.target_options import ClusterRef, Target
from mq.spark.version import check_spark

__all__ = ["MqDataSource"]


class MqDataSource(DataSource):
    """format("mq") of spark.read, spark.readStream, df.write and df.writeStream."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        check_spark()
        self._options = check_names(dict(options))

    @classmethod
    def name(cls) -> str:
        return "mq"

    def schema(self) -> str:
        return schema_text(includes_properties(self._options))

    def reader(self, schema: Any) -> Any:
        from mq.spark.source.batch import BatchReader

        options = self._source_options(stream=False)
        return BatchReader(_locate(options.target), options, arrow_schema(schema))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - the name is Spark's
        from mq.spark.source.stream import FailedStream, StreamReader

        try:
            options = self._source_options(stream=True)
            return StreamReader(_locate(options.target), options, arrow_schema(schema))
        except SparkError as error:
            return FailedStream(error)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from mq.spark.sink.cluster_writers import ClusterBatchWriter
        from mq.spark.sink.writers import batch_writer

        reject_overwrite(self._options, overwrite)
        ref, options = self._sink_options(schema)
        if isinstance(ref, ClusterRef):
            return ClusterBatchWriter(ref, options)
        return batch_writer(ref, options)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - the name is Spark's
        from mq.spark.sink.cluster_writers import ClusterStreamWriter
        from mq.spark.sink.writers import stream_writer

        reject_overwrite(self._options, overwrite)
        ref, options = self._sink_options(schema)
        reject_version(options)
        if isinstance(ref, ClusterRef):
            return ClusterStreamWriter(ref, options, "")
        return stream_writer(ref, options)

    def _sink_options(self, schema: Any) -> tuple[StoreRef | ClusterRef, SinkOptions]:
        options = sink_options(self._options)
        check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options.topic)
        ref = _locate(options.target)
        if options.topic is not None:
            if isinstance(ref, ClusterRef):
                with on_cluster(ref, f"looking for topic {options.topic}"):
                    check_target(cluster_broker(ref), options.topic)
            else:
                check_target(broker(ref, writable=True), options.topic)
        return ref, options

    def _source_options(self, *, stream: bool) -> SourceOptions:
        return source_options(
            self._options, stream=stream, now_ms=time.time_ns() // 1_000_000, cores=os.cpu_count() or 1
        )


def _locate(target: Target) -> StoreRef | ClusterRef:
    return target if isinstance(target, ClusterRef) else locate(target)


def arrow_schema(schema: Any) -> Any:
    """The Arrow schema that Spark expects of the batches. Raises SparkError for unknown columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    check_fields([(field.name, field.dataType.simpleString()) for field in schema.fields])
    for field in schema.fields:
        if not (field.nullable and getattr(field.dataType, "valueContainsNull", True)):
            check_nullable(field.name)
    return to_arrow_schema(schema, timezone="UTC")
