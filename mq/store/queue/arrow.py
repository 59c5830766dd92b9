"""Bulk reads as Arrow: C fills the columns, and no Python object is made for a message.

The columns are those of the Spark source (brokerName and topic are the same in every row):

    topic string, brokerName string, queueId int32, queueOffset int64, msgId string, tags string, keys
    string, bornTimestamp timestamp[UTC], storeTimestamp timestamp[UTC], reconsumeTimes int32, flag int32,
    body binary, properties map<string, string>

and, for further use, encoded binary: the property string. properties are all but those that have a
column of their own; they are read where they are asked for. Times are in ms for read_arrow, in µs for Spark.

Needs pyarrow, the extra `arrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mq.api.bulk import Batch
from mq.api.results import MessageQueue
from mq.compression import decompress
from mq.errors import MessageInvalid, MQError, StoreCorrupted
from mq.store.native import check, ffi, lib
from mq.store.queue.unit_repair import UNREADABLE, made_anew, unreadable
from mq.store.store import Store

__all__ = ["COLUMNS", "ArrowReader", "ColumnBatches", "Scan"]

COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "msgId",
    "tags",
    "keys",
    "bornTimestamp",
    "storeTimestamp",
    "reconsumeTimes",
    "flag",
    "body",
)
CONSTANT = ("topic", "brokerName", "queueId")
FIXED = {
    "queueOffset": ("queue_offset", 8),
    "bornTimestamp": ("born_time", 8),
    "storeTimestamp": ("store_time", 8),
    "reconsumeTimes": ("reconsume_times", 4),
    "flag": ("flag", 4),
    "sysFlag": ("sys_flag", 4),
}
TEXTS = {"msgId": "id", "tags": "tags", "keys": "keys", "body": "body", "encoded": "encoded"}
OPTIONAL = {"tags": "has_tags", "keys": "has_keys"}
TIME_SCALES = {"ms": 1, "us": 1000}

COUNT_MAX = 1 << 20
BYTES_MAX = 1 << 30  # Arrow's binary columns count bytes in 31 bits.
PLAIN_FACTOR = 16
# Bytes that a message has on average at most, before the first batch ends early; later ones know better.
ROOMS = {"id": 56, "tags": 64, "keys": 128, "encoded": 256, "entries": 4, "names": 64, "values": 128}
ONE_MESSAGE = 70_000  # what one message's properties may need
ALIGNMENT = 64  # as Arrow advises


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
        if not -(1 << 63) <= offset < 1 << 63:
            raise ValueError(f"offset {offset} does not fit into 64 bits")
        if count_max < 1 or byte_max < 1:
            raise ValueError(f"count_max is {count_max} and byte_max is {byte_max}: both must be at least 1")
        return self.scan(queue, number, COLUMNS, "ms").read(offset, 1 << 62, count_max, byte_max).records

    def scan(
        self,
        queue: MessageQueue,
        number: int,
        columns: Sequence[str],
        unit: str,
        hashes: frozenset[int] | None = None,
    ) -> Scan:
        """Reads of one queue, one after the other: these columns, times in this unit, of messages whose tag
        has one of these hashes."""
        try:
            import pyarrow as pa
        except ImportError:
            raise MQError("read_arrow needs pyarrow: pip install 'mq[arrow]'") from None
        return Scan(ColumnBatches(pa, self._name, queue, columns, unit), self._store, number, hashes)


class ColumnBatches:
    """Batches of one queue out of what C fills, one after the other: these columns, times in this unit. For
    one thread."""

    def __init__(self, pa: Any, name: str, queue: MessageQueue, columns: Sequence[str], unit: str) -> None:
        self.queue = queue
        self._pa = pa
        self._columns = tuple(columns)
        self._time_scale = TIME_SCALES[unit]
        moment = pa.timestamp(unit, tz="UTC")
        text, entry = pa.string(), pa.field("value", pa.string(), True)
        self._types = {
            **dict.fromkeys(("msgId", "tags", "keys"), text),
            **dict.fromkeys(("body", "encoded"), pa.binary()),
            **dict.fromkeys(("bornTimestamp", "storeTimestamp"), moment),
            **dict.fromkeys(("reconsumeTimes", "flag", "sysFlag"), pa.int32()),
            "queueOffset": pa.int64(),
            "properties": pa.map_(pa.string(), entry),
        }
        values = pa.scalar(queue.topic), pa.scalar(name), pa.scalar(queue.queue_id, pa.int32())
        self._constants = dict(zip(CONSTANT, values, strict=True))
        self._repeated: dict[str, Any] = {}
        self._needs = dict(ROOMS)  # bytes a message, by the batches so far

    def read(
        self, fill: Callable[[Any, int], int], result: Any, count_max: int, byte_max: int
    ) -> tuple[int, Filling]:
        """What fill(columns, count), a call of C, has to say, and what it has filled: at most count_max
        messages, and about byte_max bytes of stored body, or of any other column, but at least one message.
        Bodies that were compressed come to PLAIN_FACTOR times that."""
        count, size_max = min(count_max, COUNT_MAX), min(byte_max, BYTES_MAX)
        rooms = {name: min(count * need, size_max) + ONE_MESSAGE for name, need in self._needs.items()}
        rooms["body"] = size_max
        while True:
            filled = _Filled(self._pa, self._columns, count, rooms, self._time_scale)
            code = fill(filled.struct, count)
            if code != lib.MQ_ROOM:
                break
            rooms = {name: max(room, int(result.bytes)) for name, room in rooms.items()}
        found, next_offset, error = int(result.count), int(result.next_offset), None
        if code == 0 and found:
            self._learn(filled, found)
            whole, error = filled.unpack(found, min(size_max * PLAIN_FACTOR, BYTES_MAX))
            if whole < found:  # The rest comes with the next read.
                found, next_offset = whole, int(filled.struct.queue_offset[whole])
        return code, Filling(self._batch(filled, found if code == 0 else 0), next_offset, error)

    def _learn(self, filled: _Filled, count: int) -> None:
        """Have the next batch reserve what this one needed, and a quarter more."""
        for name in self._needs:
            if (used := filled.used(name, count)) is not None:
                self._needs[name] = used * 5 // (4 * count) + 1

    def _batch(self, filled: _Filled, count: int) -> Any:
        arrays = [
            self._constant(name, count) if name in CONSTANT else filled.array(name, self._types[name], count)
            for name in self._columns
        ]
        return self._pa.RecordBatch.from_arrays(arrays, names=list(self._columns))

    def _constant(self, name: str, count: int) -> Any:
        kept = self._repeated.get(name)
        if kept is None or len(kept) < count:
            kept = self._repeated[name] = self._pa.repeat(self._constants[name], count)
        return kept.slice(0, count)


class Filling(NamedTuple):
    """A batch, the offset of the next message, and what is wrong with that one's body, if that is why the
    batch ends there."""

    records: Any
    next_offset: int
    error: MQError | None


class Scan:
    """Reads batches of one queue of a store. For one thread."""

    def __init__(
        self, batches: ColumnBatches, store: Store, number: int, hashes: frozenset[int] | None
    ) -> None:
        self._batches = batches
        self._store = store
        self._queue = batches.queue
        self._number = number
        self._hashes = ffi.NULL if hashes is None else ffi.new("int32_t[]", list(hashes))
        self._hash_count = -1 if hashes is None else len(hashes)

    def read(self, offset: int, end: int, count_max: int, byte_max: int) -> Batch:
        """Messages of [offset, end), as many as ColumnBatches.read says. Raises StoreCorrupted if the first
        one cannot be read, or decompressed."""
        result = ffi.new("mq_pull_result *", {"next_offset": offset, "status": lib.MQ_PULL_NO_NEW})

        def fill(columns: Any, count: int) -> int:
            if self._number < 0:  # It never had a message.
                return 0
            return int(
                lib.mq_pull_columns(
                    self._store.live(),
                    self._number,
                    offset,
                    end,
                    count,
                    self._hashes,
                    self._hash_count,
                    columns,
                    result,
                )
            )

        code, (records, next_offset, error) = self._batches.read(fill, result, count_max, byte_max)
        name = f"{self._queue.topic}/{self._queue.queue_id}"
        if code in UNREADABLE and made_anew(self._store, name, self._number, result.next_offset):
            code, (records, next_offset, error) = self._batches.read(fill, result, count_max, byte_max)
        if code in UNREADABLE:
            at, log_offset = int(result.next_offset), int(result.log_offset)
            raise unreadable(self._store, self._queue, self._number, at, log_offset, code)
        check(code, str(self._store.root))
        if error is not None and not records.num_rows:
            raise self._undone(next_offset, error)
        return Batch(
            records,
            next_offset,
            int(result.min_offset),
            int(result.max_offset),
            result.status == lib.MQ_PULL_ILLEGAL,
        )

    def _undone(self, offset: int, error: MQError) -> StoreCorrupted:
        queue = self._queue
        return StoreCorrupted(
            f"{self._store.root}: the message at queue offset {offset} of {queue.topic}/{queue.queue_id}"
            f" cannot be read: {error}; reading goes on at queue offset {offset + 1}",
            path=str(self._store.root),
            queue=queue,
            queue_offset=offset,
        )


class _Filled:
    """One piece of memory with all buffers that C fills, and the arrays that Arrow makes of them."""

    def __init__(
        self, pa: Any, columns: tuple[str, ...], count: int, rooms: dict[str, int], time_scale: int
    ) -> None:
        self._pa = pa
        self.struct = struct = ffi.new("mq_columns *", {"time_scale": time_scale})
        places: list[tuple[Any, str, int]] = []  # struct, member, size
        self._has_body = "body" in columns
        self._plain: list[bytes] | None = None  # the bodies, if any of them was compressed
        wanted = {*columns, "sysFlag", "queueOffset"} if self._has_body else set(columns)
        for name in wanted:
            if name in FIXED:
                member, width = FIXED[name]
                places.append((struct, member, count * width))
            elif name in TEXTS:
                places += self._texts(TEXTS[name], count, rooms[TEXTS[name]])
                if name in OPTIONAL:
                    places.append((struct, OPTIONAL[name], (count + 7) // 8))
            elif name == "properties":
                entries = rooms["entries"]
                places.append((struct, "entries_at", (count + 1) * 4))
                places += [*self._texts("names", entries, rooms["names"])]
                places += [*self._texts("values", entries, rooms["values"])]
                struct.entries_room = entries
        # Not initialised: a page that no message reaches is never touched.
        ends, size = [], 0
        for _, _, part in places:
            ends.append(size)
            size += -(-part // ALIGNMENT) * ALIGNMENT
        memory = pa.allocate_buffer(size)
        self._buffers: dict[Any, Any] = {}
        for (owner, member, part), at in zip(places, ends, strict=True):
            pointer = ffi.cast("void *", memory.address + at)
            setattr(owner, member, ffi.cast(ffi.typeof(getattr(owner, member)), pointer))
            self._buffers[int(ffi.cast("intptr_t", pointer))] = memory.slice(at, part)

    def _texts(self, member: str, count: int, room: int) -> list[tuple[Any, str, int]]:
        texts = getattr(self.struct, member)
        texts.room = room
        return [(texts, "at", (count + 1) * 4), (texts, "bytes", room)]

    def _buffer(self, pointer: Any) -> Any:
        return self._buffers[int(ffi.cast("intptr_t", pointer))]

    def used(self, name: str, count: int) -> int | None:
        """How much of a room these messages took; None where it was not asked for."""
        struct = self.struct
        if name == "entries":
            return int(struct.entries) if struct.entries_at else None
        texts = getattr(struct, name)
        if not texts.at:
            return None
        return int(texts.at[struct.entries if name in {"names", "values"} else count])

    def array(self, name: str, kind: Any, count: int) -> Any:
        pa, struct = self._pa, self.struct
        if name in FIXED:
            buffer = self._buffer(getattr(struct, FIXED[name][0]))
            return pa.Array.from_buffers(kind, count, [None, buffer])
        if name == "properties":
            entries = int(struct.entries)
            names = self._strings(struct.names, entries, pa.string())
            values = self._strings(struct.values, entries, pa.string())
            pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(
                kind, count, [None, self._buffer(struct.entries_at)], children=[pairs]
            )
        has = self._buffer(getattr(struct, OPTIONAL[name])) if name in OPTIONAL else None
        if name == "body" and self._plain is not None:
            return pa.array(self._plain, kind)
        return self._strings(getattr(struct, TEXTS[name]), count, kind, has)

    def _strings(self, texts: Any, count: int, kind: Any, has: Any = None) -> Any:
        data = self._buffer(texts.bytes).slice(0, texts.at[count])
        return self._pa.Array.from_buffers(kind, count, [has, self._buffer(texts.at), data])

    def unpack(self, count: int, bytes_max: int) -> tuple[int, MQError | None]:
        """Decompress bodies, of the first message and of more up to bytes_max; of how many messages there are
        bodies then, and what is wrong with the next one's if that is why there are no more."""
        if not (self._has_body and self.struct.compressed):
            return count, None
        flags, size, plain = self.struct.sys_flag, 0, list[bytes]()
        self._plain = plain
        for body in self._strings(self.struct.body, count, self._pa.binary()).to_pylist():
            try:
                whole = decompress(body, int(flags[len(plain)]))
            except (StoreCorrupted, MessageInvalid) as error:
                return len(plain), error
            size += len(whole)
            if plain and size > bytes_max:
                break
            plain.append(whole)
        return len(plain), None
