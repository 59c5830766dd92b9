"""Whatever is in the files that remember keys, it is looked at without an end of the looker, and told."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import xxhash
from hypothesis import given, settings

import mq
from mq.broker.check import problems
from mq.broker.once import handled_keys
from mq.broker.once.dedup_check import LISTED_MAX
from mq.broker.once.dedup_check import problems as of_keys
from mq.store.dedup.table import size_of
from tests.dedup.dedup_actors import SMALL
from tests.support.insides import set_dedup_buckets

SIZE = 50
FILES = {
    "mq/dedup": size_of(40),
    "mq/once/billing": handled_keys.MARKS_AT + SIZE * handled_keys.MARK_SIZE,
}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store in which 120 keys were sent, and handled."""
    root = tmp_path_factory.mktemp("keys") / "store"
    with mq.open(root, **SMALL) as broker:
        producer, handled = mq.Producer(broker, dedup_window=3600), mq.Once(broker, "billing", size=SIZE)
        set_dedup_buckets(broker, 40)
        for number in range(120):
            producer.send(mq.Message("orders", b"x"), dedup_key=f"key-{number}")
            with handled(f"key-{number}"):
                pass
    assert list(problems(root)) == []
    return root


def told(root: Path, name: str) -> list[str]:
    """What is told of a file; that names it, and says what it costs or what to do."""
    found = list(of_keys(root))
    for problem in found:
        assert problem.startswith(f"{root / name}"), problem
        assert re.search(
            r"removed?\b|again|made anew|is asked|marks tell|of these|cannot be read", problem
        ), problem
    assert len(found) <= LISTED_MAX + 1
    return found


damage = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1 << 14), st.binary(min_size=1, max_size=300)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 14), st.just(b"")),
    st.tuples(st.just("fill"), st.integers(0, 1 << 14), st.sampled_from([b"\xff", b"\0", b"\x01"])),
    st.tuples(
        st.just("word"),
        st.integers(0, 8).map(lambda word: word * 8) | st.integers(512, 700).map(lambda word: word * 8),
        st.sampled_from([-1, 0, 1, 1 << 62, (1 << 63) - 1, -(1 << 63)]).map(
            lambda value: struct.pack("=q", value)
        ),
    ),
)


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(FILES)), blows=st.lists(damage, min_size=1, max_size=3), fits=st.booleans()
)
def test_hostile_bytes_are_told(
    used: Path, name: str, blows: list[tuple[str, int, bytes]], fits: bool
) -> None:
    path = used / name
    whole = path.read_bytes()
    changed = bytearray(whole)
    for kind, at, data in blows:
        if kind == "cut":
            del changed[at:]
        elif kind == "fill":
            changed[at:] = data * (len(changed) - at)
        else:
            changed[at : at + len(data)] = data
    if fits:
        # Impossible numbers, under a valid checksum.
        head = slice(0, 56) if name == "mq/dedup" else slice(0, 16)
        changed[head.stop : head.stop + 8] = xxhash.xxh3_64_digest(changed[head])
    try:
        path.write_bytes(changed)
        found = told(used, name)
        if not any(changed):
            assert found == []
        elif not fits and any(kind == "write" for kind, _, _ in blows[-1:]):
            _, at, data = blows[-1]
            at_mark = (
                name != "mq/dedup"
                and handled_keys.MARKS_AT <= at < handled_keys.MARKS_AT + SIZE * handled_keys.MARK_SIZE - 300
            )
            if at_mark and changed[:4096] == whole[:4096] and len(changed) == len(whole):
                place = (
                    at - handled_keys.MARKS_AT
                ) // handled_keys.MARK_SIZE * handled_keys.MARK_SIZE + handled_keys.MARKS_AT
                piece = slice(place, place + handled_keys.MARK_SIZE)
                is_told = any(
                    f"the mark at {place} " in problem or "of these" in problem for problem in found
                )
                assert is_told == (changed[piece] != whole[piece] and any(changed[piece]))
    finally:
        path.write_bytes(whole)
    assert list(of_keys(used)) == []


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def as_huge(path: Path) -> None:
    """A terabyte of nothing, under a header that asks for it."""
    with path.open("r+b") as file:
        head = bytearray(file.read(64))
        if path.name == "dedup":
            head[32:40] = struct.pack("=q", 1 << 32)
            head[56:64] = xxhash.xxh3_64_digest(head[:56])
        else:
            head[8:16] = struct.pack("=q", 1 << 35)
            head[16:24] = xxhash.xxh3_64_digest(head[:16])
        file.seek(0)
        file.write(head)
    os.truncate(path, 1 << 41)


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("harm", [as_directory, as_pipe, as_link, as_huge])
def test_what_is_no_such_file_is_told(
    used: Path, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    root = tmp_path / "store"
    shutil.copytree(used, root)
    harm(root / name)
    found = told(root, name)
    # A bucket of zeros is one that was lost.
    assert len(found) == (LISTED_MAX + 1 if harm is as_huge and name == "mq/dedup" else 1)
    assert set(found) <= set(problems(root))


def test_foreign_files_among_the_groups(used: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(used, root)
    (root / "mq" / "once" / "new\nline").write_bytes(b"x")
    (foreign,) = of_keys(root)
    assert "a foreign file" in foreign
    shutil.rmtree(root / "mq" / "once")
    (root / "mq" / "once").write_bytes(b"x")
    (foreign,) = of_keys(root)
    assert foreign == f"{root}/mq/once: Not a directory: nobody can use mq.Once until it is removed"


def test_a_file_in_use_is_sound(tmp_path: Path) -> None:
    with mq.open(tmp_path / "store", **SMALL) as broker:
        producer, handled = mq.Producer(broker, dedup_window=3600), mq.Once(broker, "billing")
        for number in range(8):
            producer.send(mq.Message("orders", b"x"), dedup_key=f"key-{number}")
            with handled(f"key-{number}"):
                assert list(of_keys(broker.path)) == []
