"""Bytes made to mislead: control words, queue units and whole records with checksums that fit."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from mq.store.native import lib
from mq.store.shared.control import Control
from tests.damage.harm import Snapshot
from tests.damage.known import Known, look
from tests.damage.rounds import copied
from tests.support.processes.children import say

EXTREME = (
    -1, 0, 1, 7, 19, 20, 1 << 14, (1 << 14) - 1, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 58, (1 << 62) + 3,
    (1 << 63) - 1, -(1 << 63), -(1 << 62), (1 << 63) // 20, (1 << 63) // 20 + 1, (1 << 63) // 320 + 1,
)  # fmt: skip
ALL = os.environ.get("MQ_HOSTILE") == "all"
SHARE = 1 if ALL else 3
# Behind the words single fields come first, then arrays of what is alike: of these one word in so many.
SINGLE_SIZE = 1024
STEP = 1 if ALL else 17
WORDS = tuple(range(lib.MQ_WORD_COUNT))
# Of a queue's entry in the table, relative to its topic: 8 bytes each, then 4.
WIDE_FIELDS = (-64, -56, -48, -40)
NARROW = (0, 1, 2, 3, 127, 255, 256, 300, 1 << 20, 1 << 30, (1 << 31) + 6, (1 << 32) - 1)
NARROW_FIELDS = (-32, -28, -24, -20, -16)
CRC_SIZE = 20
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def record(
    topic: bytes,
    number: int,
    queue_offset: int,
    log_offset: int,
    body: bytes,
    properties: bytes,
    **odd: int,
) -> bytes:
    """A V1 record whose checksums fit, whatever else it says. odd: fields that are to say something else."""
    fields = {
        "total_size": 91 + len(body) + len(topic) + len(properties) + CRC_SIZE,
        "magic": lib.MQ_MAGIC_V1, "queue_id": number, "flag": 0, "queue_offset": queue_offset,
        "log_offset": log_offset, "sys_flag": 0, "body_size": len(body), "topic_size": len(topic),
        "properties_size": len(properties) + CRC_SIZE, "store_time": 1_800_000_000_000, **odd,
    }  # fmt: skip
    head = struct.pack(
        ">iiIiiqqiq8sq8siqi",
        fields["total_size"], fields["magic"], zlib.crc32(body) & 0x7FFFFFFF, fields["queue_id"],
        fields["flag"],
        fields["queue_offset"], fields["log_offset"], fields["sys_flag"], 1_800_000_000_000, HOST,
        fields["store_time"], HOST, 0, 0, fields["body_size"],
    )  # fmt: skip
    tail = (
        struct.pack(">b", fields["topic_size"])
        + topic
        + struct.pack(">h", fields["properties_size"])
        + properties
    )
    covered = head + body + tail
    crc = zlib.crc32(covered) & 0x7FFFFFFF
    digits = "".join(reversed(f"{crc:010}"))
    return covered + b"__CRC32#\x01" + digits.encode() + b"\x02"


def hostile_records(log_offset: int) -> Iterator[bytes]:
    """Each would be the next of its log."""
    for topic in (b"..", b"../../up", b".", b"a/b", b"a\0b", b"/", b"\xff\xfe", b"orders", b"t" * 127):
        for queue_id in (0, 7, 65_535, (1 << 31) - 1):
            yield record(topic, queue_id, 0, log_offset, b"body", b"")
    for queue_offset in (0, 1, 5, 31, 32, 640, 1 << 31, 1 << 40, (1 << 63) // 20, (1 << 63) - 1):
        yield record(b"orders", 0, queue_offset, log_offset, b"body", b"")
    for properties in (
        b"\x01", b"\x02", b"\x01\x02" * 50, b"KEYS\x01" + b" " * 3000 + b"\x02", b"KEYS\x01" + b"k " * 1000,
        b"UNIQ_KEY\x01\x02", b"UNIQ_KEY\x01" + b"u" * 3000 + b"\x02", b"TAGS", b"TAGS\x01", b"\xff" * 40,
        b"DELAY\x01999999\x02", b"__CRC32#\x011\x02", b"\0" * 30,
    ):  # fmt: skip
        for topic in (b"orders", b"SCHEDULE_TOPIC_XXXX"):
            yield record(topic, 0, 0, log_offset, b"body", properties)
    for sys_flag in (1, 0x100, 0x300, 0x10, 0x20, 0x30, 4, 8, 12, -1, 0x7FFFFFFF):
        yield record(b"orders", 0, 0, log_offset, b"body", b"", sys_flag=sys_flag)
    for name in ("total_size", "body_size", "queue_id", "magic"):
        for value in (-1, 0, 1, 8, 90, 91, 1 << 14, (1 << 31) - 1, -(1 << 31)):
            yield record(b"orders", 0, 0, log_offset, b"body", b"k\x01v\x02", **{name: value})
    for topic_size in (-128, -1, 0, 1, 127):
        yield record(b"orders", 0, 0, log_offset, b"body", b"", topic_size=topic_size)
    for properties_size in (-32768, -1, 0, 1, 32767):
        yield record(b"orders", 0, 0, log_offset, b"body", b"k\x01v\x02", properties_size=properties_size)
    for store_time in (-(1 << 63), -1, 0, (1 << 63) - 1):
        yield record(b"orders", 0, 0, log_offset, b"body", b"", store_time=store_time)


def hostile_units() -> Iterator[bytes]:
    for log_offset in (
        -1,
        0,
        1,
        50,
        (1 << 14) - 4,
        1 << 14,
        3 << 14,
        1 << 40,
        1 << 62,
        (1 << 63) - 1,
        -(1 << 63),
    ):
        for size in (-(1 << 31), -1, 0, 1, 90, 91, 400, 1 << 14, 1 << 20, (1 << 31) - 1):
            yield struct.pack(">qiq", log_offset, size, 0)


def some(values: Sequence[int], place: int) -> Sequence[int]:
    """Those that this place meets; the next one meets others."""
    return values[place % SHARE :: SHARE]


def control_damage(root: Path) -> Iterator[tuple[str, int, bytes]]:
    """(what, byte offset in the control file, bytes)."""
    path = root / "mq" / "control"
    with path.open("rb") as file:
        head = file.read(1 << 16)
    marks = []
    control = Control(path, create=False)
    for word in WORDS:
        # Where a word lies is found by changing it: no knowledge of the layout is needed here.
        was = control.get(word)
        control.set(word, 0x1122334455667788)
        with path.open("rb") as file:
            marks.append(file.read(1 << 16).index(struct.pack("@q", 0x1122334455667788)))
        control.set(word, was)
    control.close()
    for word, at in zip(WORDS, marks, strict=True):
        for value in some(EXTREME, word):
            yield f"word {word} = {value}", at, struct.pack("@q", value)
    topic_at = head.index(b"orders\0")
    for field in WIDE_FIELDS:
        for value in some(EXTREME, field // 8):
            yield f"queue field {field} = {value}", topic_at + field, struct.pack("@q", value)
    for field in NARROW_FIELDS:
        for value in some(NARROW, field // 4):
            yield f"queue field {field} = {value}", topic_at + field, struct.pack("@I", value)
    for name in (b"../../", b"./././", b"or/ers", b"or\0ers", b"\xff" * 6):
        yield f"topic {name!r}", topic_at, name
    for at in range(0, marks[0], 4):
        for value in some((0, 1, 0x40000001, 0x7FFFFFFF, 0xFFFFFFFF), at // 4):
            yield f"head {at} = {value}", at, struct.pack("@I", value)
    behind = marks[-1] + 8
    arrays = behind + SINGLE_SIZE
    for at in chain(range(behind, arrays, 4), range(arrays, topic_at - 64, 4 * STEP)):
        for value in some((1, 0x7FFFFFFF, 0xFFFFFFFF), at // 4):
            yield f"behind the words {at} = {value}", at, struct.pack("@I", value)


def look_at_each(root: str, known: Known, kind: str, part: int, parts: int) -> int:
    """Put each piece of hostile bytes in, look, put the store back; how many there were."""
    path = Path(root)
    snapshot = Snapshot(path, Path(tempfile.mkdtemp(prefix="mq-aside-", dir=path.parent)) / "links")
    pieces: list[tuple[str, str, int, bytes]] = []
    if kind == "control":
        pieces = [(what, "mq/control", at, data) for what, at, data in control_damage(path)]
        snapshot.restore()
    elif kind == "units":
        name = next(name for name in sorted(snapshot.files) if name.startswith("consumequeue/orders/0/"))
        last = len(snapshot.files[name].data) // 20 * 20
        for data in hostile_units():
            pieces += [(f"unit {data.hex()} at {at}", name, at, data) for at in (0, 40, last)]
    elif kind == "records":
        name = max(name for name in snapshot.files if name.startswith("commitlog/"))
        data = snapshot.files[name].data
        # Behind the last record, whose CRC property ends with 02; a recovery continues the log there.
        end = len(data)
        for piece in hostile_records(int(Path(name).name) + end):
            if end + len(piece) + 8 < snapshot.files[name].size:
                pieces.append((f"record {piece[:60].hex()}", name, end, piece))
        # Not believed, so that all is looked at again.
        (path / "mq" / "control").unlink()
        snapshot.files.pop("mq/control")
    for what, name, at, data in pieces[part::parts]:
        say(what)
        with (path / name).open("r+b") as file:
            file.seek(at)
            file.write(data)
        known_now = copied(known)
        if kind == "records":
            known_now.lenient = True
        look(root, known_now)
        snapshot.restore()
    say("")
    return len(pieces[part::parts])
