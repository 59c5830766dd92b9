"""The index: RocketMQ's bytes, and every key found again over any number of files.

The oracle is a second index, written here in a few lines of Python from the rules of the format; files are
compared with it byte for byte.
"""

import re
import shutil
import struct
import time as clock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.errors import StoreCorrupted
from mq.store.index import index as index_module
from mq.store.index.index import Index, IndexFile
from mq.store.native import check, ffi, lib
from tests.store.small_log import Log

NAME = "20261121094500123"
ROLLBACK = 12
T = 1700000000123

# The record of the format's first worked example: TopicA, keys "k1 k2", at log offset 0.
EXAMPLE = bytes.fromhex(
    "000000ae daa320a7 69c865ed 00000001 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 c0a8010a0000c738 0000018bcfe5687b 0a00000500002a9f 00000000 0000000000000000"
    "0000000e 48656c6c6f20526f636b65744d51 06 546f70696341 003f"
    "54414753 01 54616741 02 4b455953 01 6b31206b32 02"
    "554e49515f4b4559 01 3041303030303035303030313138423441414332303030303030303030303030 02"
)


def java_hash(text: str) -> int:
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = 31 * value + unit
    value = abs((value + 2**31) % 2**32 - 2**31)
    return 0 if value == 2**31 else value


class Oracle:
    """Index files as RocketMQ's rules make them."""

    def __init__(self, slot_count: int, unit_count: int) -> None:
        self.slot_count, self.unit_count = slot_count, unit_count
        self.size = 40 + 4 * slot_count + 20 * unit_count
        self.files: list[bytearray] = []

    def put_record(self, log_offset: int, store_time: int, topic: str, properties: dict[str, str]) -> None:
        keys = [properties["UNIQ_KEY"]] if properties.get("UNIQ_KEY") else []
        keys += [word for word in properties.get("KEYS", "").split(" ") if word]
        for key in keys:
            if not self.files or struct.unpack_from(">i", self.files[-1], 36)[0] >= self.unit_count:
                self.roll()
            self.put(java_hash(f"{topic}#{key}"), log_offset, store_time)

    def roll(self) -> None:
        self.files.append(bytearray(self.size))
        if len(self.files) > 1:
            _, end_time, _, end_offset = struct.unpack_from(">qqqq", self.files[-2])
            struct.pack_into(">qqqq", self.files[-1], 0, end_time, end_time, end_offset, end_offset)

    def put(self, hash_: int, log_offset: int, store_time: int) -> None:
        file = self.files[-1]
        begin, _, begin_offset, _, used, number = struct.unpack_from(">qqqqii", file)
        number = max(number, 1)
        slot_at = 40 + 4 * (hash_ % self.slot_count)
        (previous,) = struct.unpack_from(">i", file, slot_at)
        seconds = max((store_time - begin) // 1000, 0) if begin > 0 else 0
        unit_at = 40 + 4 * self.slot_count + 20 * number
        struct.pack_into(">iqii", file, unit_at, hash_, log_offset, seconds, previous)
        struct.pack_into(">i", file, slot_at, number)
        if number == 1:
            begin, begin_offset = store_time, log_offset
        used += previous == 0
        struct.pack_into(">qqqqii", file, 0, begin, store_time, begin_offset, log_offset, used, number + 1)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Of 7 slots and 6 units: five keys a file, in chains that collide."""
    index = Index(tmp_path / "index", slot_count=7, unit_count=6)
    yield index
    assert list(index.problems()) == []
    index.close()


def open_file(path: Path, slot_count: int, unit_count: int) -> Any:
    check(lib.mq_index_create(bytes(path), slot_count, unit_count))
    return IndexFile(path, slot_count, unit_count, writable=True)


def put(file: IndexFile, topic: str, key: str, log_offset: int, store_time: int) -> int:
    name, word = topic.encode(), key.encode()
    hash_ = lib.mq_index_hash(name, len(name), word, len(word))
    return check(lib.mq_index_put(file.handle, hash_, log_offset, store_time))


def test_layout_table_agrees_with_the_c_header() -> None:
    rows = re.findall(r"^ +(\d+) +(\d+)  (\w+)", index_module.__doc__ or "", re.MULTILINE)
    assert len(rows) == 6
    for offset, _, field in rows:
        assert int(offset) == getattr(lib, f"AT_INDEX_{field.upper()}")
    assert sum(int(size) for _, size, _ in rows) == lib.MQ_INDEX_HEADER_SIZE


def test_default_geometry_of_the_worked_example(tmp_path: Path) -> None:
    file = open_file(tmp_path / NAME, 5_000_000, 20_000_000)
    parsed, keys_done = ffi.new("mq_record *"), ffi.new("int32_t *")
    assert lib.mq_record_parse(EXAMPLE, len(EXAMPLE), parsed) == len(EXAMPLE)
    assert lib.mq_index_put_record(file.handle, EXAMPLE, parsed, keys_done) == 1
    assert keys_done[0] == 3
    with file.path.open("rb") as stream:
        for hash_, slot_at, number, unit_at in [
            (335049552, 198248, 1, 20000060),
            (1903240649, 12962636, 2, 20000080),
            (1903240648, 12962632, 3, 20000100),
        ]:
            stream.seek(slot_at)
            assert struct.unpack(">i", stream.read(4)) == (number,)
            stream.seek(unit_at)
            assert struct.unpack(">iqii", stream.read(20)) == (hash_, 0, 0, 0)
    assert file.path.stat().st_size == 420_000_040
    assert file.path.stat().st_blocks * 512 < 23 << 20  # Slots, and a first step of units.


def test_an_entry_touches_its_own_pages_alone(tmp_path: Path) -> None:
    """All that are touched are written to disk when the last process closes."""
    file = open_file(tmp_path / NAME, 5_000_000, 20_000_000)
    for number in range(10):
        assert put(file, "TopicA", f"k{number}", number, T) == 1
    _, _, area = Path("/proc/self/smaps").read_text().partition(f"{file.path}\n")
    resident = re.search(r"^Rss: +(\d+) kB", area, re.MULTILINE)
    assert resident is not None
    assert int(resident[1]) < 1024, "some pages of 4 KiB for each, whatever the kernel maps beside them"


@pytest.mark.parametrize(
    ("topic", "key", "hash_"),
    [("T", "5eeedzu", 0), ("TopicTest", "key1", 1655984460), ("TopicTest", "order-1001", 1043804929)],
)
def test_hashes_of_the_references(topic: str, key: str, hash_: int) -> None:
    assert lib.mq_index_hash(topic.encode(), len(topic), key.encode(), len(key)) == hash_


def test_collision_chain_of_the_worked_example(tmp_path: Path) -> None:
    file = open_file(tmp_path / NAME, 10, 20)
    for key, log_offset, time in [("k1", 0, T), ("k16", 174, T + 1500), ("k25", 500, T + 61999)]:
        assert put(file, "TopicA", key, log_offset, time) == 1
    expected = bytes.fromhex(
        "0000018bcfe5687b0000018bcfe65aaa000000000000000000000000000001f40000000100000004"
        + 9 * "00000000"
        + "00000003"
        + 20 * "00"
        + "717125c9000000000000000000000000"
        + "00000000"
        + "434c6cdf00000000000000ae00000001"
        + "00000001"
        + "434c6cfd00000000000001f40000003d"
        + "00000002"
    )
    assert file.path.read_bytes() == expected + bytes(480 - len(expected))


WORD = st.sampled_from(["", "k", "k1", "k16", "order-7", "键", "😀", "z" * 40])
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": st.integers(0, 30).map(lambda number: f"{number:032X}"),
        "KEYS": st.lists(WORD, min_size=1, max_size=6).map(" ".join).filter(bool),
        "TAGS": st.just("paid"),
    },
)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 90_000),
        st.sampled_from(["A", "TopicB"]),
        PROPERTIES,
        st.sampled_from([0, 4, 8, ROLLBACK]),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, slot_count=st.integers(1, 12), unit_count=st.integers(2, 25), data=st.data())
def test_files_are_rocketmqs_and_every_key_is_found(
    tmp_path: Path, messages: list[Any], slot_count: int, unit_count: int, data: st.DataObject
) -> None:
    root = tmp_path / "example"
    shutil.rmtree(root, ignore_errors=True)
    log, oracle = Log(root), Oracle(slot_count, unit_count)
    index = Index(root / "index", slot_count=slot_count, unit_count=unit_count)
    model: dict[tuple[str, str], list[tuple[int, int]]] = {}
    time, reached = T, 0
    for delay, topic, properties, sys_flag in messages:
        time += delay
        at = log.append(time, topic, properties, sys_flag)
        if sys_flag != ROLLBACK:
            oracle.put_record(at, time, topic, properties)
            for key in [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]:
                if key:
                    model.setdefault((topic, key), []).insert(0, (at, time))
        if data.draw(st.booleans()):
            reached = index.put(log.handle, reached, log.end)
            assert reached == log.end
    assert index.put(log.handle, reached, log.end) == log.end

    if messages and not oracle.files:
        oracle.roll()  # None of them had a key.
    assert [file.path.read_bytes() for file in index.files()] == [bytes(file) for file in oracle.files]
    assert list(index.problems()) == []
    for (topic, key), places in model.items():
        assert list(index.find(topic, key)) == list(dict.fromkeys(at for at, _ in places))
        begin, end = sorted(data.draw(st.tuples(st.integers(T - 1, time + 1), st.integers(T - 1, time + 1))))
        found = list(index.find(topic, key, begin, end))
        assert set(found) >= {at for at, stored in places if begin <= stored <= end}
        # Whole seconds: a candidate may lie up to one outside.
        assert set(found) <= {at for at, stored in places if begin - 1000 < stored < end + 1000}
    assert list(index.find("A", "never used")) == []


def fill(log: Log, index: Index, count: int) -> list[int]:
    """Records with one key each, "key 0" and so on, one second apart; indexed. Their log offsets."""
    places = [log.append(T + number * 1000, "A", {"KEYS": f"key{number}"}) for number in range(count)]
    assert index.put(log.handle, 0, log.end) == log.end
    return places


def test_putting_again_repeats_the_last_record_alone_and_nothing_is_found_twice(
    log: Log, index: Index
) -> None:
    places = fill(log, index, 12)
    units = sum(file.state().units for file in index.files())
    assert index.put(log.handle, 0, log.end) == log.end
    assert sum(file.state().units for file in index.files()) == units + 1
    for number, at in enumerate(places):
        assert list(index.find("A", f"key{number}")) == [at]


def test_a_record_of_which_some_keys_were_put_before_a_kill_is_put_again_whole(
    log: Log, index: Index
) -> None:
    fill(log, index, 2)
    at = log.append(T + 2000, "A", {"UNIQ_KEY": "id", "KEYS": "one two"})
    assert put(index.files()[-1], "A", "id", at, T + 2000) == 1
    later = log.append(T + 3000, "A", {"UNIQ_KEY": "later"})
    assert index.put(log.handle, at, log.end) == log.end
    assert [list(index.find("A", key)) for key in ("id", "one", "two", "later")] == [
        [at],
        [at],
        [at],
        [later],
    ]


def test_more_is_found_than_one_call_returns(log: Log, tmp_path: Path) -> None:
    index = Index(tmp_path / "index", slot_count=3, unit_count=150)
    places = [log.append(T, "A", {"UNIQ_KEY": f"{number:032}", "KEYS": "hot"}) for number in range(200)]
    index.put(log.handle, 0, log.end)
    assert len(index.files()) == 3
    assert list(index.find("A", "hot")) == places[::-1]
    lookup = index.find("A", "hot")
    assert [next(lookup) for _ in range(3)] == places[:-4:-1]


def test_a_step_may_end_within_a_record_and_goes_on_behind_it(log: Log, index: Index) -> None:
    places = [log.append(T, "A", {"KEYS": f"key{number:02}"}) for number in range(12)]
    size = places[1] - places[0]
    reached = 0
    while reached < log.end:
        before, reached = reached, index.put(log.handle, reached, reached + size + 1)
        assert reached == min(before + 2 * size, log.end)
    for number, at in enumerate(places):
        assert list(index.find("A", f"key{number:02}")) == [at]
    assert sum(file.state().units for file in index.files()) == 12


def test_indexing_stops_before_a_record_that_cannot_be_read_and_keeps_what_came_before(
    log: Log, index: Index
) -> None:
    good = log.append(T, "A", {"KEYS": "good"})
    bad = log.append(T, "A", {"KEYS": "bad"})
    path = log.root / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    content[bad + 90] ^= 1  # Of the body.
    path.write_bytes(content)
    with pytest.raises(StoreCorrupted):
        index.put(log.handle, 0, log.end)
    assert list(index.find("A", "good")) == [good]
    assert list(index.find("A", "bad")) == []


def test_ends_say_where_to_go_on(log: Log, index: Index) -> None:
    assert index.end_log_offset() is None
    assert index.begin_log_offset() is None
    places = fill(log, index, 12)
    assert index.begin_log_offset() == places[0]
    assert index.end_log_offset() == places[-1]


def test_a_removed_index_is_built_again(log: Log, index: Index) -> None:
    places = fill(log, index, 12)
    before = [file.path.read_bytes() for file in index.files()]
    index.clear()
    assert list(index.find("A", "key3")) == []
    index.put(log.handle, 0, log.end)
    assert list(index.find("A", "key3")) == [places[3]]
    assert [file.path.read_bytes() for file in index.files()] == before


def test_a_reader_sees_files_that_others_make_and_remove(log: Log, index: Index, tmp_path: Path) -> None:
    reader = Index(tmp_path / "index", slot_count=7, unit_count=6, read_only=True)
    assert list(reader.find("A", "key0")) == []
    places = fill(log, index, 12)
    assert list(reader.find("A", "key0")) == [places[0]]
    lookup = reader.find("A", "key11")
    assert index.delete_before(places[5]) == 1
    assert list(lookup) == [places[11]]
    assert list(reader.find("A", "key0")) == []


def test_retention_removes_files_that_lie_wholly_below_but_never_the_newest(log: Log, index: Index) -> None:
    places = fill(log, index, 13)  # Units 5, 5 and 3.
    assert index.delete_before(places[4]) == 0
    assert index.delete_before(places[4] + 1) == 1
    assert list(index.find("A", "key5")) == [places[5]]
    assert index.delete_before(log.end) == 1
    assert [list(index.find("A", f"key{number}")) for number in (4, 9, 10)] == [[], [], [places[10]]]


def test_only_full_files_older_than_the_checkpoint_survive_a_crash_of_the_machine(
    log: Log, index: Index
) -> None:
    places = fill(log, index, 13)
    assert index.discard_after(T + 9000, log.end) == 1  # The newest was never forced to disk.
    assert index.end_log_offset() == places[9]
    assert index.discard_after(T + 8999, log.end) == 1
    assert index.end_log_offset() == places[4]
    assert index.discard_after(T + 4000, places[4]) == 1  # The log was cut below what is indexed.
    assert index.end_log_offset() is None


def test_full_files_are_vouched_for_once_the_next_begins_later(log: Log, index: Index) -> None:
    fill(log, index, 5)
    assert index.sync_full(0) == 0  # More may come with the same time.
    at = log.append(T + 5000, "A", {"KEYS": "key5"})
    index.put(log.handle, at, log.end)
    assert index.sync_full(0) == T + 4000
    assert index.sync_full(T + 4000) == T + 4000
    index.sync()


def test_a_full_file_is_not_vouched_for_by_a_time_that_the_next_one_shares(log: Log, index: Index) -> None:
    fill(log, index, 5)
    log.append(T + 4000, "A", {"KEYS": "key5"})
    index.put(log.handle, 0, log.end)
    assert len(index.files()) == 2
    assert index.sync_full(0) == 0


def test_names_are_local_time_and_always_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    clock.tzset()
    try:
        assert index_module.name_after("", T) == "20231115061320123"
        assert index_module.name_after("20231115061320122", T) == "20231115061320123"
        assert index_module.name_after("20231115061320123", T) == "20231115061320124"
        assert index_module.name_after("20231115071320999", T) == "20231115071321000"
    finally:
        monkeypatch.undo()
        clock.tzset()


def test_what_does_not_belong_there_is_left_alone(log: Log, index: Index, tmp_path: Path) -> None:
    directory = tmp_path / "index"
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    (directory / "20261121").write_text("not 17 digits")
    places = fill(log, index, 3)
    index.clear()
    index.put(log.handle, 0, log.end)
    assert list(index.find("A", "key1")) == [places[1]]
    assert (directory / "notes.txt").read_text() == "mine"
    assert (directory / "20261121").exists()


def test_a_file_whose_creator_died_at_once_is_skipped_and_then_removed(
    log: Log, index: Index, tmp_path: Path
) -> None:
    places = fill(log, index, 5)
    unmade = tmp_path / "index" / "99990101000000000"
    unmade.touch()
    assert list(index.find("A", "key1")) == [places[1]]
    log.append(T + 5000, "A", {"KEYS": "key5"})
    index.put(log.handle, 0, log.end)
    assert not unmade.exists()
    assert len(index.files()) == 2


def test_a_file_whose_creator_died_before_its_header_continues_the_previous_one(
    log: Log, index: Index
) -> None:
    places = fill(log, index, 5)
    newest = index.files()[-1].path
    path = newest.with_name(f"{int(newest.name) + 1}")
    check(lib.mq_index_create(bytes(path), 7, 6))
    log.append(T + 5000, "A", {"KEYS": "key5"})
    index.put(log.handle, 0, log.end)  # From 0: only the file before tells what is in already.
    assert [file.state().units for file in index.files()] == [5, 2]
    assert index.files()[-1].state().begin_log_offset == places[-1]


def test_a_file_of_another_length_is_one_clear_error(log: Log, index: Index, tmp_path: Path) -> None:
    fill(log, index, 3)
    other = Index(tmp_path / "index", slot_count=8, unit_count=6)
    with pytest.raises(StoreCorrupted, match="8 slots") as raised:
        list(other.find("A", "key1"))
    assert raised.value.path == str(index.files()[0].path)
    assert len(list(other.problems())) == 1


def test_a_file_that_is_deleted_while_names_are_read_is_passed_over(
    log: Log, index: Index, tmp_path: Path
) -> None:
    """The name of a file that retention deleted since the directory was listed."""
    places = fill(log, index, 5)
    (tmp_path / "index" / "20000101000000000").symlink_to(tmp_path / "gone")
    assert list(index.find("A", "key1")) == [places[1]]
    log.append(T + 5000, "A", {"KEYS": "key5"})
    index.put(log.handle, 0, log.end)
    assert len(list(index.find("A", "key5"))) == 1
    assert len(index.files()) == 2
