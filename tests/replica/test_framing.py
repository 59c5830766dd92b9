"""The HA wire as bytes: reports and blocks, in whatever pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import RemotingError
from mq.remoting.replica.framing import BLOCK_SIZE_MAX, Blocks, Piece, Reports, encode_header, encode_report

OFFSETS = st.integers(0, (1 << 62) - 1)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The data in pieces of these sizes, the rest in one."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


def test_reports_and_headers_are_those_of_rocketmq() -> None:
    assert encode_report(4096).hex() == "0000000000001000"
    assert encode_header(4096, 198).hex() == "0000000000001000000000c6"
    assert encode_header(4294, 0).hex() == "00000000000010c600000000"


@given(offsets=st.lists(OFFSETS, max_size=20), sizes=st.lists(st.integers(0, 30), max_size=20))
def test_reports_come_in_any_pieces(offsets: list[int], sizes: list[int]) -> None:
    reports = Reports()
    data = b"".join(map(encode_report, offsets))
    assert [found for piece in cut(data, sizes) for found in reports.feed(piece)] == offsets


@given(
    blocks=st.lists(st.tuples(st.integers(0, 1 << 61), st.binary(max_size=60)), max_size=10),
    sizes=st.lists(st.integers(0, 40), max_size=30),
)
def test_blocks_come_in_any_pieces(blocks: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(encode_header(at, len(body)) + body for at, body in blocks)
    parser = Blocks()
    pieces = [piece for chunk in cut(data, sizes) for piece in map(copied, parser.feed(memoryview(chunk)))]
    expected = [(at + place, byte) for at, body in blocks for place, byte in enumerate(body)]
    assert [(at + place, byte) for at, body in pieces for place, byte in enumerate(body)] == expected
    assert [at for at, body in pieces if not body] == [at for at, body in blocks if not body]


def copied(piece: Piece) -> tuple[int, bytes]:
    return piece.log_offset, bytes(piece.data)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_pieces_or_an_error(data: bytes) -> None:
    parser = Blocks()
    try:
        pieces = list(parser.feed(memoryview(data)))
    except RemotingError:
        return
    assert sum(len(piece.data) for piece in pieces) <= len(data)


@pytest.mark.parametrize("size", [-1, BLOCK_SIZE_MAX + 1])
def test_a_block_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(RemotingError, match="is this its HA port"):
        list(Blocks().feed(memoryview(encode_header(0, size))))


def test_a_report_that_no_log_has_is_refused() -> None:
    with pytest.raises(RemotingError, match="which no log has"):
        Reports().feed(encode_report(-1))
