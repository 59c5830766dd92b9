"""CRC-32 and Java's string hash, against zlib and against their definitions.

mq_crc32 chooses among three ways by what the CPU has; a unit of its own that includes hash.c makes
all of them run on any one machine.
"""

import ctypes
import shutil
import subprocess
import sysconfig
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mq.store.native
from mq.store.native import ffi, lib

SOURCE = Path(mq.store.native.__file__).parent / "base" / "hash.c"
CHOOSE = """
#include "hash.c"

void choose(int carryless, int wide)
{
    (void)carryless;
    (void)wide;
#if WITH_CARRYLESS
    with_carryless &= carryless;
    with_wide &= carryless && wide;
#endif
}
"""
WORDS = st.integers(0, 2**32 - 1)
# Past 64 and 128 bytes other loops begin; all sizes around them matter, and some far beyond.
BYTES = st.one_of(st.binary(max_size=300), st.binary(max_size=5000))


class Ways:
    """One of the ways in which the same functions can be computed."""

    def __init__(self, compiled: Path, carryless: bool, wide: bool) -> None:
        library = ctypes.CDLL(str(compiled))
        library.choose(carryless, wide)
        self.crc32 = library.mq_crc32
        self.crc32.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64)
        self.crc32.restype = ctypes.c_uint32
        self.operator = library.mq_crc32_operator
        self.operator.argtypes = (ctypes.c_int64,)
        self.operator.restype = ctypes.c_uint32
        self.join = library.mq_crc32_join
        self.join.argtypes = (ctypes.c_uint32,) * 3
        self.join.restype = ctypes.c_uint32


@pytest.fixture(scope="module", params=["tables", "products", "wide products"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ways:
    directory = tmp_path_factory.mktemp("hash")
    source, compiled = directory / "choose.c", directory / "choose.so"
    source.write_text(CHOOSE)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [
        shutil.which(compiler) or "cc",
        "-O2",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
    ]
    places = ["-I", str(SOURCE.parent), "-I", str(SOURCE.parent.parent)]
    subprocess.run([*command, *places, "-o", str(compiled), str(source)], check=True)
    return Ways(compiled, request.param != "tables", request.param == "wide products")


@given(data=BYTES, start=WORDS)
def test_every_way_agrees_with_zlib(way: Ways, data: bytes, start: int) -> None:
    assert way.crc32(start, data, len(data)) == zlib.crc32(data, start)


def test_every_size_up_to_two_rounds_of_the_widest_loop_agrees(way: Ways) -> None:
    data = bytes(number * 37 % 251 for number in range(600))
    for size in range(len(data)):
        assert way.crc32(0, data, size) == zlib.crc32(data[:size])


@given(data=BYTES, split=st.integers(0, 5000))
def test_every_way_joins(way: Ways, data: bytes, split: int) -> None:
    a, b = data[:split], data[split:]
    assert way.join(zlib.crc32(a), zlib.crc32(b), way.operator(len(b))) == zlib.crc32(data)


@given(a=st.integers(0, 2**62), b=st.integers(0, 2**62))
@example(a=2**32 - 1, b=2**32 - 1)
@example(a=2**32 - 2, b=1)
def test_operators_of_any_size_multiply_as_sizes_add(way: Ways, a: int, b: int) -> None:
    # A join with the CRC of nothing is the bare product.
    assert way.join(way.operator(a), 0, way.operator(b)) == way.operator(a + b)


@given(data=BYTES, start=WORDS, skip=st.integers(0, 70))
def test_alignment_does_not_matter(data: bytes, start: int, skip: int) -> None:
    buffer = ffi.from_buffer(bytes(skip) + data)
    assert lib.mq_crc32(start, buffer + skip, len(data)) == zlib.crc32(data, start)
    assert lib.mq_crc32_by_tables(start, buffer + skip, len(data)) == zlib.crc32(data, start)


@given(parts=st.lists(BYTES, max_size=5))
def test_a_crc_goes_on_where_the_last_one_ended(parts: list[bytes]) -> None:
    crc = joined = 0
    for part in parts:
        crc = lib.mq_crc32(crc, part, len(part))
        joined = lib.mq_crc32_join(joined, zlib.crc32(part), lib.mq_crc32_operator(len(part)))
    assert crc == joined == zlib.crc32(b"".join(parts))


def test_a_megabyte_and_a_bit() -> None:
    data = bytes(number * number % 253 for number in range(1 << 10)) * 1024 + b"and a bit"
    assert lib.mq_crc32(0, data, len(data)) == zlib.crc32(data)
    assert lib.mq_crc32_by_tables(0, data, len(data)) == zlib.crc32(data)


@pytest.mark.parametrize(
    ("data", "masked"),
    [
        (b"hi", 1486039724),
        (b"Hello RocketMQ", 1774740973),
        (b"v6", 0x77065916),
        (b"delay", 0x329A809B),
        (b"", 0),
    ],
)
def test_body_crcs_of_the_references(data: bytes, masked: int) -> None:
    assert lib.mq_crc32(0, data, len(data)) & 0x7FFFFFFF == masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("标签", 857175),
        ("中文", 646394),
        ("😀", 1772899),
        ("order-created", -392709271),
        ("order-1001", 708180863),
        ("TopicTest", -1902610879),
        ("TopicTest#key1", -1655984460),
        ("TopicTest#order-1001", 1043804929),
        ("polygenelubricants", -2147483648),
        ("T#5eeedzu", -2147483648),
        ("TopicA#0A000005000118B4AAC2000000000000", -335049552),
        ("TopicA#k1", -1903240649),
        ("TopicA#k2", -1903240648),
    ],
)
def test_string_hashes_of_the_references(text: str, expected: int) -> None:
    assert string_hash(text.encode()) == expected


def string_hash(data: bytes, before: int = 0) -> int:
    return int(lib.mq_string_hash_from(before, data, len(data)))


def model_hash(text: str, before: int = 0) -> int:
    """Java's definition: 31 * h + unit over UTF-16 code units, in 32 bits with a sign."""
    units = memoryview(text.encode("utf-16-le")).cast("H")
    value = before
    for unit in units:
        value = 31 * value + unit
    return (value + 2**31) % 2**32 - 2**31


def decoded(data: bytes) -> str:
    """Each byte that starts no whole sequence, as U+FFFD."""
    text = ""
    while data:
        for size in range(1, 5):
            try:
                text += data[:size].decode()
                break
            except UnicodeDecodeError:
                continue
        else:
            size = 1
            text += "\ufffd"
        data = data[size:]
    return text


@given(text=st.text(), before=st.integers(-(2**31), 2**31 - 1))
def test_string_hash_is_javas(text: str, before: int) -> None:
    assert string_hash(text.encode(), before) == model_hash(text, before)


@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=6),
            st.text(max_size=4).map(str.encode),
            st.sampled_from(
                [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x80\x80\x80", b"\xff"]
            ),
        ),
        max_size=8,
    ).map(b"".join)
)
def test_malformed_text_hashes_as_replacement_characters(data: bytes) -> None:
    # As the exact end of a buffer: a sanitizer sees a read beyond it.
    assert string_hash(data) == model_hash(decoded(data))


@given(a=st.text(), b=st.text())
def test_a_string_hash_goes_on_where_the_last_one_ended(a: str, b: str) -> None:
    assert string_hash(b.encode(), string_hash(a.encode())) == model_hash(a + b)
