"""The oracle against itself and against the worked bytes of the format's description.

The committed stores read as they were recorded: the library of today agrees with the one that wrote
them. The vectors prove that what the description says is what the library writes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracle.make_stores import MAKERS, STORES
from tests.support import oracle
from tests.support.oracle import Sizes, Step, batch, put, read, write

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

UNIQUE_ID = "0A000005000118B4AAC2000000000000"
V6_BORN_HOST = "[2001:db8::1]:51000"
V6_STORE_HOST = "[2001:db8::2]:10911"

# The records of one log, each with the step that stores it and the unit of its queue.
VECTORS: list[tuple[Step, str, str]] = [
    (
        put(
            "TopicA",
            b"Hello RocketMQ",
            queue_id=1,
            properties={"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": UNIQUE_ID},
            store_time_ms=1700000000123,
        ),
        """
        000000ae daa320a7 69c865ed 00000001 00000000 0000000000000000 0000000000000000 00000000
        0000018bcfe56800 c0a8010a0000c738 0000018bcfe5687b 0a00000500002a9f 00000000 0000000000000000
        0000000e 48656c6c6f20526f636b65744d51  06 546f70696341
        003f 54414753 01 54616741 02  4b455953 01 6b31206b32 02
             554e49515f4b4559 01 3041303030303035303030313138423441414332303030303030303030303030 02
        """,
        "0000000000000000 000000ae 000000000027a807",
    ),
    (
        put(
            "TopicA",
            b"v6",
            properties={"TAGS": "标签"},
            born_time_ms=1700000000002,
            born_host=V6_BORN_HOST,
            store_time_ms=1700000000124,
            store_host=V6_STORE_HOST,
        ),
        """
        00000087 daa320a7 77065916 00000000 00000000 0000000000000000 00000000000000ae 00000030
        0000018bcfe56802 20010db8000000000000000000000001 0000c738 0000018bcfe5687c
        20010db8000000000000000000000002 00002a9f 00000000 0000000000000000
        00000002 7636  06 546f70696341  000c 54414753 01 e6a087e7adbe 02
        """,
        "00000000000000ae 00000087 00000000000d1457",
    ),
    (
        put(
            "SCHEDULE_TOPIC_XXXX",
            b"delay",
            queue_id=2,
            properties={"REAL_TOPIC": "TopicA", "DELAY": "3", "TAGS": "TagA", "REAL_QID": "1"},
            born_time_ms=1700000000003,
            store_time_ms=1700000000125,
        ),
        """
        000000a2 daa320a7 329a809b 00000002 00000000 0000000000000000 0000000000000135 00000000
        0000018bcfe56803 c0a8010a0000c738 0000018bcfe5687d 0a00000500002a9f 00000000 0000000000000000
        00000005 64656c6179  13 5343484544554c455f544f5049435f58585858
        002f 5245414c5f544f504943 01 546f70696341 02 44454c4159 01 33 02
             54414753 01 54616741 02 5245414c5f514944 01 31 02
        """,
        "0000000000000135 000000a2 0000018bcfe58f8d",
    ),
    (
        put("x" * 130, b"longtopic", born_time_ms=1700000000004, store_time_ms=1700000000126),
        f"""
        000000e7 daa320ab 408ff555 00000000 00000000 0000000000000000 00000000000001d7 00000000
        0000018bcfe56804 c0a8010a0000c738 0000018bcfe5687e 0a00000500002a9f 00000000 0000000000000000
        00000009 6c6f6e67746f706963  0082 {"78" * 130}  0000
        """,
        "00000000000001d7 000000e7 0000000000000000",
    ),
    (
        put("TopicA", b"", queue_id=1, born_time_ms=1700000000005, store_time_ms=1700000000127),
        """
        00000061 daa320a7 00000000 00000001 00000000 0000000000000001 00000000000002be 00000000
        0000018bcfe56805 c0a8010a0000c738 0000018bcfe5687f 0a00000500002a9f 00000000 0000000000000000
        00000000  06 546f70696341  0000
        """,
        "00000000000002be 00000061 0000000000000000",
    ),
]


def stored_bytes(directory: Path) -> bytes:
    """The commit log, all segments in a row."""
    return b"".join(path.read_bytes() for path in sorted((directory / "commitlog").iterdir()))


@pytest.mark.parametrize("name", MAKERS)
def test_a_committed_store_reads_as_recorded(name: str, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(STORES / name / "store", tmp_path / "store"))
    sizes = Sizes(**json.loads((STORES / name / "sizes.json").read_text()))
    expected = (STORES / name / "expected.jsonl").read_text(encoding="utf-8")

    assert read(directory, sizes).lines == expected.split("\n")[:-1]


def test_the_library_writes_the_worked_records_and_their_units(tmp_path: Path) -> None:
    records = write(tmp_path, Sizes(), [step for step, _, _ in VECTORS])

    log = stored_bytes(tmp_path)
    for record, (_, record_hex, unit_hex) in zip(records, VECTORS, strict=True):
        assert log[record.log_offset :][: record.store_size].hex() == bytes.fromhex(record_hex).hex()
        queue = tmp_path / "consumequeue" / record.topic / str(record.queue_id) / ("0" * 20)
        assert queue.read_bytes()[record.queue_offset * 20 :][:20].hex() == bytes.fromhex(unit_hex).hex()
    assert [record.offset_msg_id for record in (records[4], records[1])] == [
        "0A00000500002A9F00000000000002BE",
        "20010DB800000000000000000000000200002A9F00000000000000AE",
    ]
    assert not any(log[799:])


def test_the_library_appends_the_worked_property_crc(tmp_path: Path) -> None:
    step = put(
        "TopicA", b"Hello RocketMQ", queue_id=1, properties={"TAGS": "TagA"}, store_time_ms=1700000000123
    )
    (record,) = write(tmp_path, Sizes(property_crc=True), [step])

    assert record.store_size == 141
    tail = "001e 5441475301 54616741 02 5f5f435243333223 01 32373335353830353630 02"
    assert stored_bytes(tmp_path)[141 - 32 : 141].hex() == bytes.fromhex(tail).hex()


def test_a_record_that_leaves_no_room_for_a_blank_goes_to_the_next_segment(tmp_path: Path) -> None:
    def filled_to(position: int, then: int) -> tuple[list[int], bytes]:
        directory = tmp_path / str(position)
        sizes = Sizes(commitlog_file_size=4096)
        steps = [put("T", b"x" * (size - 92)) for size in (position, then, 100)]
        records = write(directory, sizes, steps)
        return [record.log_offset for record in records], stored_bytes(directory)

    offsets, log = filled_to(4062, 122)
    assert offsets[1] == 4096
    assert log[4062:4096].hex() == "00000022cbd43194" + "00" * 26
    offsets, log = filled_to(3800, 288)
    assert offsets[1:] == [3800, 4096]
    assert log[4088:4096].hex() == "00000008cbd43194"


def test_the_library_writes_the_worked_index(tmp_path: Path) -> None:
    """Three keys in one slot; fillers of other topics put the records at the worked offsets."""
    start = 1700000000123

    def keyed(key: str, size: int, time_ms: int) -> Step:
        properties = {"KEYS": key} if key else {}
        overhead = 91 + 6 + sum(len(name) + len(value) + 2 for name, value in properties.items())
        return put("TopicA", b"x" * (size - overhead), properties=properties, store_time_ms=time_ms)

    steps = [
        keyed("k1", 174, start),
        keyed("k16", 174, start + 1500),
        keyed("", 152, start + 1500),
        keyed("k25", 174, start + 61999),
    ]
    records = write(tmp_path, Sizes(index_slot_count=10, index_unit_count=20), steps)
    assert [record.log_offset for record in records] == [0, 174, 348, 500]

    (index,) = (tmp_path / "index").iterdir()
    expected = f"""
        0000018bcfe5687b 0000018bcfe65aaa 0000000000000000 00000000000001f4 00000001 00000004
        {"00000000" * 9} 00000003
        {"00" * 20}
        717125c9 0000000000000000 00000000 00000000
        434c6cdf 00000000000000ae 00000001 00000001
        434c6cfd 00000000000001f4 0000003d 00000002
        {"00" * 20 * 16}
    """
    assert index.read_bytes().hex() == bytes.fromhex(expected).hex()


def test_a_client_batch_becomes_ordinary_records(tmp_path: Path) -> None:
    properties = {"TAGS": "BT", "WAIT": "true"}
    steps = [
        put("TopicA", b"before", store_time_ms=1700000000123),
        batch("TopicA", [(b"b0", properties, 0), (b"b1", properties, 7)], store_time_ms=1700000000124),
    ]
    _, first, second = write(tmp_path, Sizes(), steps)

    assert (first.queue_offset, second.queue_offset) == (1, 2)
    assert second.log_offset == first.log_offset + first.store_size
    assert (first.flag, second.flag) == (0, 7)
    assert first.store_time_ms == second.store_time_ms == 1700000000124
    assert first.properties == second.properties == properties
    assert first.sys_flag == second.sys_flag == 0


def test_a_killed_store_keeps_every_record(tmp_path: Path) -> None:
    steps = [put("TopicA", b"x" * number, properties={"KEYS": f"k{number}"}) for number in range(30)]
    written = write(tmp_path, Sizes(), steps, end="kill")

    assert (tmp_path / "abort").exists()
    report = read(tmp_path, Sizes(), close=True)
    assert [record.log_offset for record in report.records] == [record.log_offset for record in written]
    assert [report.by_key["TopicA", f"k{number}"] for number in range(30)] == [
        [record.log_offset] for record in written
    ]
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda store: (store / "commitlog" / "note").write_text("foreign"), id="foreign file"),
        pytest.param(lambda store: (store / "commitlog" / ("0" * 20)).write_bytes(b"short"), id="wrong size"),
    ],
)
def test_a_store_that_a_broker_refuses_is_refused(damage: Callable[[Path], int], tmp_path: Path) -> None:
    write(tmp_path, Sizes(), [put("TopicA", b"body")])
    damage(tmp_path)

    with pytest.raises(oracle.OracleFailed, match="refuses to load"):
        read(tmp_path, Sizes())
