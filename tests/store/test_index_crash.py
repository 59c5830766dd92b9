"""The index beside death and damage.

A process dies between any two stores of a put: found by stepping through the machine instructions of the
process that puts, and taking each state of the file that a kill at that instruction would leave. A process
puts while another looks up. Bytes are damaged anywhere. The disk is full.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.errors import StoreFull
from mq.store.index.index import Index, IndexFile
from mq.store.native import check, ffi, lib

NAME = "20261121094500123"
T = 1700000000123
TRACE_ME, SINGLE_STEP = 0, 9

# Puts the keys of its arguments, one second apart: key number n at log offset 100 * n. A traced process stops
# when all but the puts is done: every instruction from there on takes the tracer a step.
PUTTER = """
import ctypes, os, signal, sys
from mq.store.native import ffi, lib

path, slot_count, unit_count, traced, first, last = sys.argv[1], *map(int, sys.argv[2:])
index = ffi.new("mq_index **")
assert lib.mq_index_open(path.encode(), slot_count, unit_count, 1, index) == 0
put = lib.mq_index_put
def arguments(number):
    key = b"key%d" % number
    hash_ = lib.mq_index_hash(b"A", 1, key, len(key))
    return index[0], hash_, 100 * number, 1700000000123 + 1000 * number
def put_all(puts):
    if traced:
        ctypes.CDLL(None).ptrace(0, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
    for each in puts:
        assert put(*each) == 1
    os._exit(0)
put_all([arguments(number) for number in range(first, last)])
"""


def putter(
    path: Path, slot_count: int, unit_count: int, *, traced: bool, first: int, last: int
) -> "subprocess.Popen[bytes]":
    arguments = [str(path), slot_count, unit_count, int(traced), first, last]
    return subprocess.Popen([sys.executable, "-c", PUTTER, *map(str, arguments)])


def make(path: Path, slot_count: int, unit_count: int) -> IndexFile:
    check(lib.mq_index_create(bytes(path), slot_count, unit_count))
    return IndexFile(path, slot_count, unit_count, writable=True)


def put(file: IndexFile, number: int, prefix: str = "key") -> int:
    key = f"{prefix}{number}".encode()
    hash_ = lib.mq_index_hash(b"A", 1, key, len(key))
    return check(lib.mq_index_put(file.handle, hash_, 100 * number, T + 1000 * number))


def find(file: IndexFile, number: int) -> list[int]:
    key = f"key{number}".encode()
    unit, log_offsets = ffi.new("int32_t *"), ffi.new("int64_t[]", 64)
    hash_ = lib.mq_index_hash(b"A", 1, key, len(key))
    count = check(lib.mq_index_find(file.handle, hash_, 0, 2**62, unit, 64, log_offsets))
    return list(dict.fromkeys(ffi.unpack(log_offsets, count)))


def states_of_puts(path: Path, slot_count: int, unit_count: int, first: int, last: int) -> list[bytes]:
    """What the file holds after each instruction of the puts, as far as it differs from the one before."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    trace.restype = ctypes.c_long
    states = [path.read_bytes()]
    process = putter(path, slot_count, unit_count, traced=True, first=first, last=last)
    with path.open("rb", buffering=0) as file:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        while os.WIFSTOPPED(status):
            signal_number = os.WSTOPSIG(status)
            assert signal_number in (signal.SIGSTOP, signal.SIGTRAP), signal_number
            state = os.pread(file.fileno(), len(states[0]), 0)
            if state != states[-1]:
                states.append(state)
            if trace(SINGLE_STEP, process.pid, None, None) != 0:
                raise OSError(ctypes.get_errno(), "ptrace")
            _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return states


@pytest.mark.timeout(1200)  # Thousands of steps, each of which waits for a processor twice.
@pytest.mark.parametrize(
    ("slot_count", "unit_count", "before", "last"),
    [(5, 12, 0, 2), (5, 12, 4, 6), (1, 12, 3, 4), (3, 6, 4, 5)],
    ids=["first", "some slots used", "one long chain", "the last unit"],
)
def test_a_kill_between_any_two_stores_loses_nothing(
    tmp_path: Path, slot_count: int, unit_count: int, before: int, last: int
) -> None:
    path = tmp_path / NAME
    file = make(path, slot_count, unit_count)
    for number in range(before):
        put(file, number)
    states = states_of_puts(path, slot_count, unit_count, before, last)
    # A put is a unit, three header words or five, the slot and the counts; never one store alone.
    assert len(states) > 5 * (last - before)
    assert {find(file, number)[0] for number in range(last)} == {100 * number for number in range(last)}

    left = tmp_path / "left by a kill"
    for state in states:
        left.write_bytes(state)
        file = IndexFile(left, slot_count, unit_count, writable=True)
        done = [number for number in range(last) if find(file, number)]
        assert done[:before] == list(range(before))
        assert all(find(file, number) == [100 * number] for number in done)
        assert lib.mq_index_check(file.handle) == 0
        # Another key comes first, then whatever was not told to be indexed comes again.
        extra = unit_count - 1 > last
        if extra:
            assert put(file, len(done), prefix="other") == 1
        for number in range(len(done), last):
            assert put(file, number) == 1
        if not extra:
            assert put(file, last) == 0
        for number in range(last):
            assert find(file, number) == [100 * number]
        assert lib.mq_index_check(file.handle) == 0
        assert file.state().units == last + extra
        assert file.state().full == (not extra)


def test_look_ups_beside_a_process_that_puts_miss_nothing_that_was_there(tmp_path: Path) -> None:
    path, slot_count, count = tmp_path / NAME, 50, 60_000
    file = make(path, slot_count, count + 2)
    reader = IndexFile(path, slot_count, count + 2, writable=False)
    process = putter(path, slot_count, count + 2, traced=False, first=0, last=count)
    looked = 0
    while process.poll() is None or looked == 0:
        units = reader.state().units
        for number in {0, units // 2, units - 1} if units else set():
            assert find(reader, number) == [100 * number]
            looked += 1
    assert process.wait() == 0
    assert reader.state().units == count
    assert lib.mq_index_check(file.handle) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.lists(st.tuples(st.integers(0, 40 + 4 * 7 + 20 * 40 - 1), st.integers(0, 255)), max_size=30),
    words=st.lists(
        st.tuples(st.integers(0, 206), st.sampled_from([-1, 0, 1, 39, 40, 41, 2**31 - 1, -(2**31)])),
        max_size=9,
    ),
)
def test_damaged_bytes_give_candidates_or_none_and_never_a_crash_or_an_endless_walk(
    tmp_path: Path, damage: list[tuple[int, int]], words: list[tuple[int, int]]
) -> None:
    path = tmp_path / NAME
    path.unlink(missing_ok=True)
    file = make(path, 7, 40)
    for number in range(30):
        put(file, number)
    content = bytearray(path.read_bytes())
    for word, value in words:
        content[4 * word : 4 * word + 4] = value.to_bytes(4, "big", signed=True)
    for at, value in damage:
        content[at] = value
    with path.open("r+b") as stream:
        stream.write(content)
    for number in range(30):
        assert len(find(file, number)) <= 40
    changed = lib.mq_index_check(file.handle)
    assert changed >= 0
    for number in range(40):
        if put(file, 100 + number):
            assert find(file, 100 + number)[:1] in ([100 * (100 + number)], [])
    assert len(list(Index(tmp_path, slot_count=7, unit_count=40).problems())) in (0, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system takes rights that this user lacks")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_full_disk_is_an_error_and_puts_go_on_once_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(180 << 10))
    path = small_disk / NAME
    with pytest.raises(StoreFull):
        make(path, 50_000, 50_000)
    assert not path.exists()

    file = make(path, 100, 50_000)
    with pytest.raises(StoreFull):  # Units come in steps of a MiB, and that is more than there is.
        put(file, 0)
    assert find(file, 0) == []
    assert lib.mq_index_check(file.handle) == 0
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    for number in range(1000):
        assert put(file, number) == 1
    assert all(find(file, number) == [100 * number] for number in range(1000))
    assert lib.mq_index_check(file.handle) == 0
