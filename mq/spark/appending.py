"""Rows for single queues into the log, together: one call, one move of the log's end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from mq.broker.local import LocalBroker
from mq.broker.results import MessageQueue
from mq.spark.staging import StagedBatch

__all__ = ["append_batches"]


def append_batches(
    broker: LocalBroker,
    batches: Sequence[StagedBatch],
    last: tuple[MessageQueue, bytes, bytes] | None = None,
    *,
    sync: bool = False,
) -> None:
    """Append rows together, and one message more at the end: queue, body, properties."""
    import pyarrow as pa
    import pyarrow.compute as pc

    queues: dict[MessageQueue, int] = {}
    places = array("i")
    columns: dict[str, list[Any]] = {"body": [], "properties": []}
    for batch in batches:
        number = queues.setdefault(batch.queue, len(queues))
        places.extend(array("i", [number]) * batch.rows.num_rows)
        for name, parts in columns.items():
            parts.append(batch.rows.column(name))
    if last is not None:
        queue, body, properties = last
        places.append(queues.setdefault(queue, len(queues)))
        columns["body"].append(pa.array([body], pa.binary()))
        columns["properties"].append(pa.array([properties], pa.binary()))
    given = []
    for parts in columns.values():
        whole = pa.concat_arrays(parts)
        _, offsets, data = whole.buffers()
        begin = memoryview(offsets).cast("i")[whole.offset]
        end = memoryview(offsets).cast("i")[whole.offset + len(whole)]
        values = memoryview(data)[begin:end] if data is not None else b""
        lengths = pc.binary_length(whole)
        sizes = memoryview(lengths.buffers()[1])[lengths.offset * 4 : (lengths.offset + len(lengths)) * 4]
        given += [values, sizes]
    stored = broker.bulk.append(list(queues), places, *given)
    if sync:
        broker.bulk.sync(stored)
