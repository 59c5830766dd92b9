"""Writes the small stores of tests/data/rocketmq with the oracle.

Run in the root of the repository: python -m tests.oracle.make_stores [NAME ...]

Each directory there holds `store` (written by RocketMQ's library, times and hosts made up),
`sizes.json` (the file sizes, as keywords of mq.open) and `expected.jsonl` (what the library finds in
it). Written again, every file has the same bytes: index files, which the library names by the wall
clock, are renamed after their first record, and the process id in `abort` is 1.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from tests.support.oracle import (
    BORN_TIME_MS,
    Properties,
    Report,
    Sizes,
    Step,
    batch,
    delete_old_segments,
    flush,
    property_text,
    put,
    read,
    write,
)

STORES = Path(__file__).resolve().parent.parent / "data" / "rocketmq"

# What belongs to a store as mq reads it; the library keeps more in the directory, such as compaction/.
KEPT = ("abort", "checkpoint", "commitlog", "consumequeue", "index", "lock")

RETRY_TOPIC = "%RETRY%" + "-".join(f"group{number:02}" for number in range(15))
V6_BORN_HOST = "[2001:db8::1]:51000"
V6_STORE_HOST = "[2001:db8::2]:10911"
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC

SMALL = Sizes(commitlog_file_size=8 * 1024, queue_file_units=10, index_slot_count=10, index_unit_count=40)


def timed(steps: Sequence[Step], step_ms: int = 7, start: int = 0) -> list[Step]:
    """The steps, each stored a little later than the one before; start counts those of earlier calls."""
    for number, step in enumerate(steps, start):
        step["store_time_ms"] = BORN_TIME_MS + 123 + (number + 1) * step_ms
    return list(steps)


def unique_id(number: int) -> str:
    return f"C0A8010A303918B4AAC247B7607B{number:04X}"


def text_body(number: int, size: int) -> bytes:
    """A body that differs from number to number and still compresses well in git."""
    line = f"event {number}: the quick brown fox jumps over the lazy dog. ".encode()
    return (line * (size // len(line) + 1))[:size]


def labelled(number: int, tags: str = "", keys: str = "") -> dict[str, str]:
    """The properties of an ordinary message."""
    properties = {"WAIT": "true", "UNIQ_KEY": unique_id(number)}
    if tags:
        properties["TAGS"] = tags
    if keys:
        properties["KEYS"] = keys
    return properties


def record_size(topic: str, body_size: int, properties: Properties) -> int:
    """The size of a V1 record with two IPv4 hosts."""
    return 91 + body_size + len(topic.encode()) + len(property_text(properties).encode())


def clean(directory: Path) -> Sizes:
    """One segment, closed cleanly: tags, keys, flags and properties of every sort."""
    tags = ["", "TagA", "a", "标签", "😀", "order-created", "polygenelubricants", "TagA || TagB"]
    steps = [
        put(
            "TopicA",
            f"body {number}".encode(),
            queue_id=number % 2,
            properties=labelled(number, tag, f"k{number} every"),
            born_time_ms=BORN_TIME_MS + number,
        )
        for number, tag in enumerate(tags)
    ]
    odd: list[tuple[bytes, Properties | str, int]] = [
        (b"", "", 0),  # the smallest record
        (b"", {"TAGS": "TagA"}, 0),
        (bytes(range(256)), {"KEYS": "binary"}, 0),
        ("Grüße, 世界 😀".encode(), {"Stadt": "Köln", "城市": "北京", "KEYS": "Schlüssel 键 😀"}, 0),
        (b"flags", {"UNIQ_KEY": unique_id(100)}, 0x7FFFFFFF),
        (b"flags", {"UNIQ_KEY": unique_id(101)}, -2),
        (b"keys", {"KEYS": "twice twice  wide "}, 0),  # a repeated word, two spaces, one at the end
        (b"keys", {"KEYS": "k1", "UNIQ_KEY": "k1"}, 0),  # the same word as key and as unique id
        (b"no last separator", "TAGS\x01TagA\x02KEYS\x01unended", 0),
        (b"dropped by readers", "empty\x01\x02TAGS\x01TagB\x02x\x02\x01nameless\x02", 0),
        (b"separator inside", "odd\x01left\x01right\x02", 0),
        (b"twice named", "name\x01first\x02name\x01last\x02", 0),
        (b"long", {"long": "v" * 2000}, 0),
    ]
    steps += [
        put("orders", body, queue_id=2, properties=properties, flag=flag) for body, properties, flag in odd
    ]
    steps += [
        put("%RETRY%billing", b"again", properties=labelled(110, "paid"), reconsume_times=3),
        put("%DLQ%billing", b"dead", properties=labelled(111, "paid"), reconsume_times=16),
        put("a" * 127, b"longest topic of V1"),
    ]
    sizes = Sizes()
    write(directory, sizes, timed(steps))
    return sizes


def rolling(first: int, count: int) -> list[Step]:
    """Messages of two topics and four queues that fill one segment after the other."""
    return [
        put(
            "TopicA" if number % 3 else "orders",
            text_body(number, 200 + number * 37 % 500),
            queue_id=number % 2,
            properties=labelled(number, f"Tag{number % 4}", f"k{number} mod{number % 5}"),
        )
        for number in range(first, first + count)
    ]


def segments(directory: Path) -> Sizes:
    """Several segments, queue files and index files, with every sort of segment end; closed cleanly.

    The first segment ends in a BLANK record behind a record that does not fit, the second with 8 bytes
    of BLANK that just fit, the third with a batch that goes to the next segment as a whole.
    """
    stored = write(directory, SMALL, timed(rolling(0, 24), 611))
    end = stored[-1].log_offset + stored[-1].store_size
    left = SMALL.commitlog_file_size - end % SMALL.commitlog_file_size
    properties = labelled(24, "exact", "fit")
    body_size = left - 8 - record_size("TopicA", 0, properties)
    assert 0 < body_size < SMALL.commitlog_file_size
    parts = [(text_body(number, 900), labelled(number, "batch", f"k{number}"), 0) for number in range(40, 45)]
    steps = [
        put("TopicA", text_body(24, body_size), properties=properties),
        *rolling(25, 9),
        batch("orders", parts),
        *rolling(50, 8),
    ]
    write(directory, SMALL, timed(steps, 611, start=24))
    return SMALL


def killed(directory: Path) -> Sizes:
    """Halted without shutdown: abort exists, the checkpoint is behind, an unused segment lies ahead.

    The first flush keeps the library's flushing of the first index file from racing with that of the second.
    """
    messages = timed(rolling(0, 37), 1009)
    steps = [*messages[:14], flush(), *messages[14:29], flush(), *messages[29:]]
    write(directory, SMALL, steps, end="kill")
    return SMALL


def kinds(directory: Path) -> Sizes:
    """Records of every kind: V2, IPv6, client batches, all compressions, transactions, delay."""
    v6 = {"born_host": V6_BORN_HOST, "store_host": V6_STORE_HOST}
    pair = {"TAGS": "BT", "WAIT": "true"}
    delayed = {"REAL_TOPIC": "TopicA", "DELAY": "3", "TAGS": "TagA", "REAL_QID": "1"}
    half = {"TRAN_MSG": "true", "PGROUP": "group", "REAL_TOPIC": "TopicA", "REAL_QID": "1"}
    steps = [
        put(RETRY_TOPIC, b"long topic", properties=labelled(0, "TagA", "v2")),
        put(RETRY_TOPIC, b"", reconsume_times=1),
        put("TopicA", b"v6", properties={"TAGS": "标签"}) | v6,
        put("TopicA", b"born v6", properties=labelled(1, keys="v6"), born_host=V6_BORN_HOST),
        put("TopicA", b"store v6", properties=labelled(2, keys="v6"), store_host=V6_STORE_HOST),
        put(RETRY_TOPIC, b"V2 and v6", properties=labelled(3)) | v6,
        batch("TopicA", [(b"b0", pair, 0), (b"b1", pair, 5)], queue_id=1),
        batch(
            "TopicA",
            [(b"", "", -1), (b"alone", labelled(4, "BT", "in a batch"), 0), (b"last", "", 0)],
            queue_id=1,
            born_host=V6_BORN_HOST,
        ),
        put(
            "TopicA",
            text_body(5, 5000),
            properties=labelled(5, "zlib-old"),
            compression="ZLIB",
            old_compression_flag=True,
        ),
        put("TopicA", text_body(6, 5000), properties=labelled(6, "zlib"), compression="ZLIB"),
        put("TopicA", text_body(7, 5000), properties=labelled(7, "lz4"), compression="LZ4"),
        put("TopicA", text_body(8, 5000), properties=labelled(8, "zstd"), compression="ZSTD"),
        put("TopicA", b"multi-tag flag", properties=labelled(9, "TagA"), sys_flag=0x2),
        put("TopicA", b"prepared", properties=labelled(10, "TagA", "txn"), sys_flag=PREPARED),
        put(
            "TopicA",
            b"committed",
            properties=labelled(10, "TagA", "txn"),
            sys_flag=COMMIT,
            prepared_transaction_offset=1234,
        ),
        put("TopicA", b"rolled back", properties=labelled(11, "TagA", "txn"), sys_flag=ROLLBACK),
        put("SCHEDULE_TOPIC_XXXX", b"delay", queue_id=2, properties=delayed),
        put("SCHEDULE_TOPIC_XXXX", b"longest delay", queue_id=17, properties=delayed | {"DELAY": "18"}),
        put("RMQ_SYS_TRANS_HALF_TOPIC", b"half", properties=labelled(12, "TagA") | half),
    ]
    sizes = Sizes()
    write(directory, sizes, timed(steps))
    return sizes


def property_crc(directory: Path) -> Sizes:
    """Every record ends in a checksum property; batches and records without other properties too."""
    sizes = Sizes(queue_file_units=10, index_unit_count=40, property_crc=True)
    steps = [
        put("TopicA", b"Hello RocketMQ", queue_id=1, properties={"TAGS": "TagA"}),
        put("TopicA", b"no properties"),
        put("TopicA", b"no last separator", properties="TAGS\x01TagA"),
        put("TopicA", b"replaced", properties="__CRC32#\x010123456789\x02KEYS\x01k1\x02"),
        batch("TopicA", [(b"b0", {"TAGS": "BT"}, 0), (b"b1", "", 0)]),
        put(RETRY_TOPIC, b"V2", properties=labelled(1, "TagA"), born_host=V6_BORN_HOST),
    ]
    write(directory, sizes, timed(steps))
    return sizes


def late(directory: Path) -> Sizes:
    """The log begins late, its first segments are deleted; so do the queues, in two ways.

    Those of TopicA lost their first files to retention. Those of orders were built anew from what is left
    of the log: their first file is filled up with blank units to the first offset.
    """
    messages = timed(rolling(0, 72), 1009)
    write(directory, SMALL, [*messages[:60], delete_old_segments(), *messages[60:70]])
    shutil.rmtree(directory / "consumequeue" / "orders")
    (directory / "abort").write_text("1")
    write(directory, SMALL, messages[70:])
    return SMALL


MAKERS: dict[str, Callable[[Path], Sizes]] = {
    "clean": clean,
    "segments": segments,
    "killed": killed,
    "kinds": kinds,
    "property-crc": property_crc,
    "late": late,
}


def make(name: str) -> Report:
    """Writes one store and what the library finds in it."""
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "store"
        sizes = MAKERS[name](written)
        kept = STORES / name / "store"
        shutil.rmtree(STORES / name, ignore_errors=True)
        kept.mkdir(parents=True)
        for part in KEPT:
            if (written / part).is_dir():
                shutil.copytree(written / part, kept / part)
            elif (written / part).exists():
                shutil.copyfile(written / part, kept / part)
    if (kept / "abort").exists():
        (kept / "abort").write_text("1")
    for path, new_name in list(_renamed(kept / "index")):
        path.rename(path.with_name(new_name))
    keywords = asdict(sizes)
    del keywords["property_crc"]
    (STORES / name / "sizes.json").write_text(json.dumps(keywords, indent=2) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        report = read(Path(shutil.copytree(kept, Path(scratch) / "store")), sizes)
    (STORES / name / "expected.jsonl").write_text(
        "".join(f"{line}\n" for line in report.lines), encoding="utf-8"
    )
    return report


def _renamed(index: Path) -> Iterator[tuple[Path, str]]:
    """Index files and their names by the store time of their first entry, in UTC."""
    for path in sorted(index.iterdir()):
        (begin_ms,) = struct.unpack(">q", path.read_bytes()[:8])
        begin = datetime.fromtimestamp(begin_ms // 1000, timezone.utc)
        yield path, f"{begin:%Y%m%d%H%M%S}{begin_ms % 1000:03}"


def main(names: list[str]) -> None:
    for name in names or MAKERS:
        report = make(name)
        size = sum(path.stat().st_size for path in (STORES / name).rglob("*") if path.is_file())
        print(f"{name}: {len(report.records)} records in {len(report.queues)} queues, {size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
