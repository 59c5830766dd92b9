"""The data source that Spark knows as "mq"."""

from __future__ import annotations

import os
import time
from typing import Any

from pyspark.sql.datasource import DataSource

from mq.spark.columns import check_nullable, chosen, schema_text
from mq.spark.errors import Refusal
from mq.spark.sink.options import SinkOptions, sink_options
from mq.spark.sink.rows import check_columns, check_target
from mq.spark.source.options import SourceOptions, check_names, includes_properties, source_options
from mq.spark.target import broker, locate
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
        return BatchReader(locate(options.path), options, arrow_schema(schema))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - the name is Spark's
        from mq.spark.source.stream import RefusedStream, StreamReader

        try:
            options = self._source_options(stream=True)
            return StreamReader(locate(options.path), options, arrow_schema(schema))
        except Refusal as refusal:
            return RefusedStream(refusal)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from mq.spark.sink import writers

        writers.refuse_overwrite(self._options, overwrite)
        options = self._sink_options(schema)
        return writers.batch_writer(locate(options.path), options)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - the name is Spark's
        from mq.spark.sink import writers

        writers.refuse_overwrite(self._options, overwrite)
        options = self._sink_options(schema)
        return writers.stream_writer(locate(options.path), options)

    def _sink_options(self, schema: Any) -> SinkOptions:
        options = sink_options(self._options)
        check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options.topic)
        store = locate(options.path)
        if options.topic is not None:
            check_target(broker(store, writable=True), options.topic)
        return options

    def _source_options(self, *, stream: bool) -> SourceOptions:
        return source_options(
            self._options, stream=stream, now_ms=time.time_ns() // 1_000_000, cores=os.cpu_count() or 1
        )


def arrow_schema(schema: Any) -> Any:
    """The very schema that Spark expects of the batches. Raises Refusal for columns that there are not."""
    from pyspark.sql.pandas.types import to_arrow_schema

    chosen([(field.name, field.dataType.simpleString()) for field in schema.fields])
    for field in schema.fields:
        if not (field.nullable and getattr(field.dataType, "valueContainsNull", True)):
            check_nullable(field.name)
    return to_arrow_schema(schema, timezone="UTC")
