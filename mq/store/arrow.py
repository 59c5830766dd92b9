"""Bulk reads as Arrow: C fills the columns, and no Python object is made for a message.

The columns are those of the Spark source (brokerName and topic are the same in every row):

    topic string, brokerName string, queueId int32, queueOffset int64, msgId string, tags string, keys
    string, bornTimestamp timestamp[ms, UTC], storeTimestamp timestamp[ms, UTC], reconsumeTimes int32, flag
    int32, body binary

Needs pyarrow, the extra `arrow`.
"""

from __future__ import annotations

from typing import Any

from mq.broker.protocol import MessageQueue
from mq.compression import COMPRESSED, decompress
from mq.errors import MQError, StoreCorrupted
from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["ArrowReader"]

COUNT_MAX = 1 << 20
BYTES_MAX = 1 << 30  # Arrow's binary columns count bytes in 31 bits.
# Bytes of ids, tags and keys that a message has on average at most, before the batch ends early.
ID_ROOM, TAGS_ROOM, KEYS_ROOM = 56, 64, 128
ONE_MESSAGE = 70_000  # what one message's properties may need


class ArrowReader:
    """Reads queues of one store into record batches."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def read(self, queue: MessageQueue, number: int, offset: int, count_max: int, byte_max: int) -> Any:
        """Messages from `offset` on, at most count_max and about byte_max bytes of body, at least one if
        there is one.

        An offset below the oldest kept or beyond the end gives an empty batch: ask the queue for its offsets.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise MQError("read_arrow needs pyarrow: pip install 'mq[arrow]'") from None
        if not -(1 << 63) <= offset < 1 << 63:
            raise ValueError(f"offset {offset} does not fit into 64 bits")
        if count_max < 1 or byte_max < 1:
            raise ValueError(f"count_max is {count_max} and byte_max is {byte_max}: both must be at least 1")
        count = min(count_max, COUNT_MAX)
        rooms = {
            "id": count * ID_ROOM + ONE_MESSAGE,
            "tags": count * TAGS_ROOM + ONE_MESSAGE,
            "keys": count * KEYS_ROOM + ONE_MESSAGE,
            "body": min(byte_max, BYTES_MAX),
        }
        while True:
            columns = _Columns(pa, count, rooms)
            result = ffi.new("mq_pull_result *")
            if number < 0:
                break
            code = lib.mq_pull_columns(
                self._store.live(), number, offset, count, ffi.NULL, -1, columns.struct, result
            )
            if code == lib.MQ_ROOM:
                rooms["body"] = max(rooms["body"], int(result.bytes))
                continue
            if code in (lib.MQ_CORRUPT, lib.MQ_MISSING):
                raise StoreCorrupted(
                    f"{self._store.root}: the message at queue offset {result.next_offset} of"
                    f" {queue.topic}/{queue.queue_id} (log offset {result.log_offset}) cannot be read;"
                    f" it is lost, and reading goes on at queue offset {result.next_offset + 1}",
                    path=str(self._store.root),
                    log_offset=int(result.log_offset),
                    queue=queue,
                    queue_offset=int(result.next_offset),
                )
            check(code, str(self._store.root))
            break
        return columns.batch(queue, self._name, int(result.count))


class _Columns:
    """The buffers that C fills and Arrow then owns."""

    def __init__(self, pa: Any, count: int, rooms: dict[str, int]) -> None:
        self._pa = pa
        self._buffers: dict[str, Any] = {}
        self.struct = ffi.new("mq_columns *")
        for name, ctype, size in (
            ("queue_offset", "int64_t", 8),
            ("born_time", "int64_t", 8),
            ("store_time", "int64_t", 8),
            ("reconsume_times", "int32_t", 4),
            ("flag", "int32_t", 4),
            ("sys_flag", "int32_t", 4),
        ):
            self._add(name, ctype, count * size)
        for name, room in rooms.items():
            self._add(f"{name}_at", "int32_t", (count + 1) * 4)
            ffi.cast("int32_t *", getattr(self.struct, f"{name}_at"))[0] = 0
            self._add(name, "char", room)
            setattr(self.struct, f"{name}_room", room)
        for name in ("has_tags", "has_keys"):
            self._add(name, "uint8_t", (count + 7) // 8)

    def _add(self, name: str, ctype: str, size: int) -> None:
        # Not initialised: a page that no message reaches is never touched.
        buffer = self._pa.allocate_buffer(size, resizable=True)
        self._buffers[name] = buffer
        setattr(self.struct, name, ffi.cast(f"{ctype} *", buffer.address))

    def _array(self, kind: Any, count: int, *buffers: Any) -> Any:
        return self._pa.Array.from_buffers(kind, count, list(buffers))

    def _text(self, kind: Any, name: str, count: int, valid: Any = None) -> Any:
        used = ffi.cast("int32_t *", getattr(self.struct, f"{name}_at"))[count]
        data = self._buffers[name]
        # Give back what was reserved and not needed.
        data.resize(used, shrink_to_fit=True)
        return self._array(kind, count, valid, self._buffers[f"{name}_at"], data)

    def batch(self, queue: MessageQueue, broker_name: str, count: int) -> Any:
        pa = self._pa
        data = self._buffers
        moment = pa.timestamp("ms", tz="UTC")
        body = self._text(pa.binary(), "body", count)
        flags = self._array(pa.int32(), count, None, data["sys_flag"])
        packed = [place for place, flag in enumerate(flags.to_pylist()) if flag & COMPRESSED] if count else []
        if packed:
            bodies = body.to_pylist()
            for place in packed:
                bodies[place] = decompress(bodies[place], flags[place].as_py())
            body = pa.array(bodies, pa.binary())
        columns = {
            "topic": pa.repeat(queue.topic, count),
            "brokerName": pa.repeat(broker_name, count),
            "queueId": pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
            "queueOffset": self._array(pa.int64(), count, None, data["queue_offset"]),
            "msgId": self._text(pa.string(), "id", count),
            "tags": self._text(pa.string(), "tags", count, data["has_tags"]),
            "keys": self._text(pa.string(), "keys", count, data["has_keys"]),
            "bornTimestamp": self._array(moment, count, None, data["born_time"]),
            "storeTimestamp": self._array(moment, count, None, data["store_time"]),
            "reconsumeTimes": self._array(pa.int32(), count, None, data["reconsume_times"]),
            "flag": self._array(pa.int32(), count, None, data["flag"]),
            "body": body,
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
