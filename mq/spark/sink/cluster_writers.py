"""The sink's writers for a cluster: tasks send their rows directly, and a commit does nothing.

So the rows of a failed or repeated task stay in the cluster. Consumers detect repeated rows by their unique
ids (row_ids.py).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mq.api.bulk import Row
from mq.api.results import MessageQueue
from mq.spark.cluster import ClusterBroker, cluster_broker, on_cluster
from mq.spark.sink.options import SinkOptions
from mq.spark.sink.row_ids import RowIds
from mq.spark.sink.row_sender import RowSender
from mq.spark.sink.rows import RowEncoder
from mq.spark.sink.task_identity import Task, this_task
from mq.spark.target_options import ClusterRef

__all__ = ["ClusterBatchWriter", "ClusterStreamWriter", "ClusterTopics"]

_log = logging.getLogger(__name__)


@dataclass
class SentRows(WriterCommitMessage):
    """How many rows a task has sent."""

    rows: int


class ClusterTopics:
    """A cluster as the target of a RowEncoder: see rows.RowTarget."""

    delay_queues = None

    def __init__(self, broker: ClusterBroker) -> None:
        self._broker = broker
        self.message_size_max = broker.message_size_max
        self.size_max = 2 * broker.message_size_max  # Properties have a limit of their own.

    @property
    def bulk(self) -> ClusterTopics:
        return self

    def queues_to_write(self, topic: str, *, new: bool = False) -> list[MessageQueue]:
        """See Bulk.queues_to_write."""
        if not new:
            self._broker.topic(topic)  # Raises TopicNotFound, even if a send would create the topic.
        return list(self._broker.publishable(topic))


class _ClusterWriter:
    """The part that both writers share. run: the id of a batch write, "" for a stream."""

    def __init__(self, cluster: ClusterRef, options: SinkOptions, run: str) -> None:
        self._cluster = cluster
        self._options = options
        self.run = run

    def write(self, iterator: Iterator[Any]) -> SentRows:
        return self.write_task(iterator, this_task(self.run, self._options.version))

    def write_task(self, iterator: Iterator[Any], task: Task) -> SentRows:
        options, rows = self._options, 0
        with on_cluster(self._cluster, "writing"):
            broker = cluster_broker(self._cluster)
            encoder = RowEncoder(ClusterTopics(broker), options.topic, task.partition + task.epoch)
            ids = RowIds(options.txn or task.query_id, task.epoch, task.partition)
            sender = RowSender(broker)
            for batch in iterator:
                for queue, encoded, is_free in encoder.encode(batch):
                    sender.send(queue, _identified(queue, encoded, ids), is_free=is_free)
                    rows += encoded.num_rows
        return SentRows(rows)


def _identified(queue: MessageQueue, encoded: Any, ids: RowIds) -> Iterator[Row]:
    topic = queue.topic.encode()
    bodies, properties = (encoded.column(name).to_pylist() for name in ("body", "properties"))
    for body, each in zip(bodies, properties, strict=True):
        yield Row(body, each, ids.of(topic, body, each))


class ClusterStreamWriter(_ClusterWriter, DataSourceStreamArrowWriter):
    """df.writeStream.format("mq") with the option nameServer."""

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        """Nothing: the tasks have stored the rows."""

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        _log.warning(
            "epoch %d was aborted; the rows that its tasks sent to %s stay there", batchId, self._cluster
        )


class ClusterBatchWriter(_ClusterWriter, DataSourceArrowWriter):
    """df.write.format("mq") with the option nameServer."""

    def __init__(self, cluster: ClusterRef, options: SinkOptions) -> None:
        super().__init__(cluster, options, f"batch-{uuid.uuid4()}")

    def commit(self, messages: Sequence[Any]) -> None:
        """Nothing: the tasks have stored the rows."""

    def abort(self, messages: Sequence[Any]) -> None:
        _log.warning("the write was aborted; the rows that its tasks sent to %s stay there", self._cluster)
