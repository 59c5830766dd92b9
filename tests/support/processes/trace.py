"""What processes under fire write down, and what must hold of it.

Each writer appends what was acknowledged to a file of its own before it sends on, each reader what it saw;
both in records of fixed size, one write each, so that a kill leaves at most one torn record, at the end.

    Ack      run, sequence   which start of a writer sent it, and its place among what that one sent
             message_count   of a batch; 1 of a single one
             size            of each body
             queue_id, queue_offset, log_offset      where the result said that it is
             durable         1: promised to be on disk
    Flushed  written as an Ack of no messages: all that this file says before is promised to be on disk
    Seen     queue_id, queue_offset, run, sequence, place      a message as a reader got it

Each record ends with how long the journal of recorder.c was when it was written, or 0: that tells what was
promised before a cut at some place of the journal.

A body can be made again from its header, so that a byte of another message in it is noticed. A bulk has a
sequence for its share of each queue, which is acknowledged like a batch; its tag says what the bulk is.
Records of bodies of one size have one size: what lies behind the log's end fits to what is stored before it.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import mq

__all__ = [
    "TOPIC",
    "Ack",
    "Log",
    "Seen",
    "acks",
    "body_of",
    "bulk_tag",
    "check",
    "follow",
    "key_of",
    "log_offset",
    "message_of",
    "records",
    "seen",
]

TOPIC = "events"
QUEUE_COUNT = 4
HEADER = struct.Struct(">IIHHI")
QUERIES = 20


class Ack(NamedTuple):
    run: int
    sequence: int
    message_count: int
    size: int
    queue_id: int
    queue_offset: int
    log_offset: int
    durable: int


class Seen(NamedTuple):
    queue_id: int
    queue_offset: int
    run: int
    sequence: int
    place: int


ACK = struct.Struct(">IIIIIqqI")
SEEN = struct.Struct(">IqIII")


PLACE = struct.Struct(">q")
_journals: list[Path] = []


def follow(journal: Path | str | None) -> None:
    """Have all records of this process say how long the journal was, from now on; with None: say 0."""
    _journals[:] = [] if journal is None else [Path(journal)]


class Log:
    """An append-only file of records. What a kill left of a last one is cut off."""

    def __init__(self, path: Path | str, fields: struct.Struct) -> None:
        self._record = record = _placed(fields)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        os.ftruncate(self._fd, size - size % record.size)

    def add(self, *records: tuple[int, ...]) -> None:
        place = _journals[0].stat().st_size if _journals else 0
        os.write(self._fd, b"".join(self._record.pack(*record, place) for record in records))

    def close(self) -> None:
        os.close(self._fd)


def _placed(fields: struct.Struct) -> struct.Struct:
    return struct.Struct(fields.format + PLACE.format[1:])


def records(path: Path | str, fields: struct.Struct, until: int | None = None) -> Iterator[tuple[int, ...]]:
    """What a Log holds; of one that follows a journal what was added before that was longer than `until`."""
    data = Path(path).read_bytes() if Path(path).exists() else b""
    record = _placed(fields)
    for *values, place in record.iter_unpack(data[: len(data) - len(data) % record.size]):
        if until is not None and place > until:
            return
        yield tuple(values)


def acks(path: Path | str, until: int | None = None) -> list[Ack]:
    """What a writer was promised, durable as far as a later flush made it so; before the journal was longer
    than `until`."""
    found: list[Ack] = []
    undurable = 0
    for fields in records(path, ACK, until):
        ack = Ack(*fields)
        if ack.message_count:
            found.append(ack)
            continue
        found[undurable:] = [earlier._replace(durable=1) for earlier in found[undurable:]]
        undurable = len(found)
    return found


def seen(path: Path | str, until: int | None = None) -> list[Seen]:
    return [Seen(*fields) for fields in records(path, SEEN, until)]


RAMP = bytes(range(256)) + bytes(range(16))


def body_of(run: int, sequence: int, place: int, count: int, size: int) -> bytes:
    header = HEADER.pack(run, sequence, place, count, size)
    first = (run * 31 + sequence * 7 + place) & 0xFF
    return header + RAMP[first : first + 16] * (size // 16)


def message_of(run: int, sequence: int, place: int, count: int, size: int, tag: str = "") -> mq.Message:
    body = body_of(run, sequence, place, count, size)
    return mq.Message(TOPIC, body, tags=tag or f"t{run % 3:013}", keys=key_of(run, sequence, place))


def key_of(run: int, sequence: int, place: int = 0) -> str:
    return f"k{run:03}-{sequence:05}-{place:03}"


def bulk_tag(first: int, count: int) -> str:
    """Of a bulk that is there whole or not at all: its first sequence, and how many messages it has."""
    return f"bulk-{first:05}-{count:03}"


def log_offset(result: mq.SendResult) -> int:
    """Of the first message: an offset id ends with it, and a batch has one for each, with commas between."""
    return int(result.offset_msg_id.split(",")[0][-16:], 16)


class Stored(NamedTuple):
    run: int
    sequence: int
    place: int
    message_count: int  # of its batch
    size: int
    log_offset: int
    bulk: str  # its tag, if it is part of one that is there whole


def stored(message: mq.MessageExt) -> Stored | None:
    """What a message says of itself; None if it is torn."""
    body = message.body
    if len(body) < HEADER.size:
        return None
    run, sequence, place, count, size = HEADER.unpack_from(body)
    if body != body_of(run, sequence, place, count, size):
        return None
    tag = message.tags or ""
    bulk = tag if tag.startswith("bulk") else ""
    return Stored(run, sequence, place, count, size, message.log_offset, bulk)


def check(
    broker: mq.Broker,
    promised: Sequence[Ack],
    readers: Sequence[Sequence[Seen]] = (),
    *,
    whole_batches: bool = True,
    log_min: int = 0,
) -> list[str]:
    """Everything that is wrong with what is stored, in words. What lies below log_min may be gone."""
    wrong: list[str] = []
    if log_min:
        least = {queue.queue_id: queue.min_offset for queue in broker.topic(TOPIC).queues}
        promised = [ack for ack in promised if ack.log_offset >= log_min]
        readers = [[item for item in one if item.queue_offset >= least[item.queue_id]] for one in readers]
        whole_batches = False
    queues = {queue.queue_id: list(_read(queue, wrong)) for queue in broker.topic(TOPIC).queues}
    sent: dict[tuple[int, int, int], tuple[int, int]] = {}
    for queue_id, messages in queues.items():
        before: dict[int, int] = {}
        rest = 0  # of a batch
        for offset, message in enumerate(messages):
            if message is None:
                continue
            name = (message.run, message.sequence, message.place)
            if name in sent:
                wrong.append(f"{name} is stored twice: at {sent[name]} and {(queue_id, offset)}")
            sent[name] = queue_id, offset
            if message.sequence < before.get(message.run, 0):
                wrong.append(f"{name} at {(queue_id, offset)} comes after what was sent later")
            before[message.run] = message.sequence
            if whole_batches and message.place != (message.message_count - rest if rest else 0):
                wrong.append(f"{name} at {(queue_id, offset)} is part of a batch that is not whole")
            rest = message.message_count - message.place - 1
        if whole_batches and rest:
            wrong.append(f"queue {queue_id} ends inside a batch")
    if not log_min:
        wrong += _of_bulks(queues)
    for ack in promised:
        for place in range(ack.message_count):
            at = ack.queue_offset + place
            messages = queues[ack.queue_id]
            found = messages[at] if 0 <= at < len(messages) else None
            if found is None or (found.run, found.sequence, found.place) != (ack.run, ack.sequence, place):
                wrong.append(f"{ack}, place {place}, was acknowledged; there is {found}")
            elif place == 0 and found.log_offset != ack.log_offset:
                wrong.append(f"{ack} was acknowledged; it is at log offset {found.log_offset}")
    for number, seen_there in enumerate(readers):
        wrong.extend(f"reader {number}: {what}" for what in _of_reader(seen_there, queues))
    for ack in promised[:: max(1, len(promised) // QUERIES)]:
        wrong.extend(_of_look_up(broker, ack))
    return wrong


def _of_bulks(queues: dict[int, list[Stored | None]]) -> Iterator[str]:
    """Not even a power cut leaves a bulk in part."""
    counts = Counter(
        (message.run, message.bulk)
        for messages in queues.values()
        for message in messages
        if message is not None and message.bulk
    )
    for (run, bulk), count in counts.items():
        if count != int(bulk.rpartition("-")[2]):
            yield f"of {bulk} of run {run} there are {count} messages"


def _read(queue: mq.Queue, wrong: list[str]) -> Iterator[Stored | None]:
    """What each offset from 0 on holds; None where the message is gone, or cannot be read."""
    offset = queue.min_offset
    yield from [None] * offset
    while offset < queue.max_offset:
        try:
            result = queue.read(offset, count_max=1000)
        except mq.StoreCorrupted as error:
            wrong.append(f"queue {queue.queue_id} offset {offset}: {error}")
            offset += 1
            yield None
            continue
        for message in result.messages:
            if message.queue_offset != offset:
                wrong.append(f"queue {queue.queue_id}: {message.queue_offset} where {offset} should be")
            found = stored(message)
            if found is None:
                wrong.append(f"queue {queue.queue_id} offset {offset}: a torn message was delivered")
            yield found
            offset += 1
        if not result.messages:
            wrong.append(f"queue {queue.queue_id} offset {offset} of {queue.max_offset}: {result.status}")
            return


def _of_reader(trace: Sequence[Seen], queues: dict[int, list[Stored | None]]) -> Iterator[str]:
    expected: dict[int, int] = {}
    for item in trace:
        if item.queue_offset != expected.get(item.queue_id, item.queue_offset):
            yield f"saw {item}, after {expected[item.queue_id] - 1}"
        expected[item.queue_id] = item.queue_offset + 1
        messages = queues[item.queue_id]
        found = messages[item.queue_offset] if item.queue_offset < len(messages) else None
        if found is None or (found.run, found.sequence, found.place) != (item.run, item.sequence, item.place):
            yield f"saw {item}; there is {found} now"


def _of_look_up(broker: mq.Broker, ack: Ack) -> Iterator[str]:
    key = key_of(ack.run, ack.sequence)
    found = [message.log_offset for message in broker.query(TOPIC, key)]
    if found != [ack.log_offset]:
        yield f"{ack} has key {key}, which finds {found}"
