"""Text for people is safe on a terminal, text for machines is ASCII; moments are read as they are typed."""

import json
import time

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.cli.printing import emit_json, moment, visible
from mq.cli.session import moment as typed_moment


@given(st.binary() | st.text())
def test_visible_text_is_printable(content: bytes | str) -> None:
    assert visible(content).isprintable()


@given(st.text().filter(str.isprintable))
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\u009b31m", "\\x9b31m"),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        ("two\nlines\ttab", "two\\nlines\\ttab"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_printed_is_escaped(content: bytes | str, expected: str) -> None:
    assert visible(content) == expected


@given(st.text())
def test_json_is_printable_ascii_and_says_the_same(text: str) -> None:
    out: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click, "echo", out.append)
        emit_json({"text": text})
    assert out[0].isascii()
    assert out[0].isprintable()
    assert json.loads(out[0]) == {"text": text}


@pytest.mark.parametrize("time_ms", [0, 1_700_000_000_123, 10**18, -(10**18)])
def test_a_moment_can_always_be_shown(time_ms: int) -> None:
    assert moment(time_ms)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20.500+01:00", 1_700_000_000_500),
    ],
)
def test_a_moment_is_read_as_typed(typed: str, expected: int) -> None:
    assert typed_moment(typed) == expected


@pytest.mark.parametrize(
    ("typed", "ago_ms"), [("90s", 90_000), ("10m", 600_000), ("1.5h", 5_400_000), ("2d", 172_800_000)]
)
def test_a_moment_may_be_so_long_ago(typed: str, ago_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    assert typed_moment(typed) == 1_700_000_000_000 - ago_ms


@pytest.mark.parametrize("typed", ["", "soon", "10", "-5m", "10 m", "2023-13-01", "٣", "9" * 400 + "d"])
def test_what_is_no_moment_is_refused(typed: str) -> None:
    if typed == "10":  # A bare number is milliseconds, however few.
        assert typed_moment(typed) == 10
        return
    with pytest.raises(click.BadParameter):
        typed_moment(typed)
