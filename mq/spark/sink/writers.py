"""The sink's writers for a directory: tasks stage their rows or append them directly, and the driver commits.

Spark creates a new stream writer for every commit, so all that a commit needs is in the messages of the
tasks.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mq.api.broker import DirectoryBroker
from mq.errors import MQError
from mq.spark.sink.append import append_batches
from mq.spark.sink.commit import commit_epoch, discard_epoch, tidy
from mq.spark.sink.ledger import key_of
from mq.spark.sink.options import SinkOptions
from mq.spark.sink.rows import RowEncoder
from mq.spark.sink.staging import Staged, remove, sink_directory, stage
from mq.spark.sink.task_identity import this_task
from mq.spark.target import StoreRef, broker, store_error

__all__ = ["BatchWriter", "StreamWriter"]

_log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """The result of one task. staged has no rows if the task appended them directly."""

    query_id: str
    staged: Staged


class _Writer:
    """The part that both writers share."""

    def __init__(self, store: StoreRef, options: SinkOptions, run: str) -> None:
        self._store = store
        self._options = options
        self.run = run  # of a batch write: its transaction id unless the user gave one

    def write(self, iterator: Iterator[Any]) -> Written:
        return self.write_task(iterator, *this_task(self.run, self._options.version))

    def write_task(
        self, iterator: Iterator[Any], query_id: str, epoch: int, partition: int, attempt: int
    ) -> Written:
        options = self._options
        here = broker(self._store, writable=not options.exactly_once)
        encoder = RowEncoder(here, options.topic, partition + epoch)
        batches = (staged for batch in iterator for staged in encoder.encode(batch))
        if not options.exactly_once:
            for batch in batches:
                append_batches(here, [batch])
            return Written(query_id, Staged("", 0, 0))
        place = sink_directory(Path(self._store.path), key_of(options.txn or query_id))
        try:
            return Written(query_id, stage(place, epoch, f"{partition}-{attempt}", batches))
        except PermissionError as error:
            raise store_error(self._store, error, "written") from None

    def commit_all(self, messages: Sequence[Written | None], epoch: int) -> None:
        written = [message for message in messages if message is not None]
        if not written:
            return
        here = broker(self._store, writable=True)
        if self._options.exactly_once:
            self._commit_epoch(here, written, epoch)
        try:
            here.bulk.flush_unattended()
        except (MQError, OSError, RuntimeError) as error:  # RuntimeError: there can be no more threads.
            # The rows are in the log. Raising would make the caller write them again.
            _log.warning("%s: the appended rows are not flushed yet: %s", here, error)

    def _commit_epoch(self, here: DirectoryBroker, written: Sequence[Written], epoch: int) -> None:
        commit_epoch(
            here,
            self._options.txn or written[0].query_id,
            written[0].query_id,
            epoch,
            [message.staged for message in written],
            is_version_given=self._options.version is not None,
            lasting=self._options.txn is not None or not self.run,
            chunk_bytes=self._options.chunk_bytes,
        )

    def abort_all(self, messages: Sequence[Written | None], epoch: int) -> None:
        written = [message for message in messages if message is not None]
        if not self._options.exactly_once or not written:
            return
        try:
            discard_epoch(
                broker(self._store, writable=True),
                self._options.txn or written[0].query_id,
                [message.staged for message in written],
            )
        except (MQError, OSError, ValueError) as error:  # ValueError: a topic has fewer queues by now.
            _log.warning("the files staged for epoch %d stay until a later sweep: %s", epoch, error)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """df.writeStream.format("mq")"""

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        self.commit_all(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - the name is Spark's
        self.abort_all(messages, batchId)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """df.write.format("mq")"""

    def commit(self, messages: Sequence[Any]) -> None:
        self.commit_all(messages, self._options.version or 0)
        self._forget()

    def abort(self, messages: Sequence[Any]) -> None:
        self.abort_all(messages, self._options.version or 0)
        self._forget()

    def _forget(self) -> None:
        """Without a txnAppId the transaction id belongs to this write alone, so its directory is removed."""
        if self._options.exactly_once and self._options.txn is None:
            remove(sink_directory(Path(self._store.path), key_of(self.run)))


def batch_writer(store: StoreRef, options: SinkOptions) -> BatchWriter:
    _tidy(store)
    return BatchWriter(store, options, f"batch-{uuid.uuid4()}")


def stream_writer(store: StoreRef, options: SinkOptions) -> StreamWriter:
    _tidy(store)
    return StreamWriter(store, options, "")


def _tidy(store: StoreRef) -> None:
    tidy(Path(store.path), lambda: broker(store, writable=True))
