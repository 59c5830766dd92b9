"""Files of another version of mq: refused by name while that has the store open, else made anew."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

import mq
from mq.broker.check import problems
from mq.broker.once import handled_keys
from mq.store.directory import layouts
from mq.store.native import lib
from tests.support.insides import was_recovered
from tests.support.store.peer import Peer
from tests.support.store.small_store import bodies, fill, numbered, open_small

LAYOUT_AT = 8


def write_layout(directory: Path, layout: int) -> None:
    with (directory / "mq" / "control").open("r+b") as file:
        file.seek(LAYOUT_AT)
        file.write(struct.pack("@q", layout))


OPENINGS: list[Callable[[Path], Any]] = [open_small, lambda path: mq.open(path, read_only=True)]


@pytest.mark.parametrize("opening", OPENINGS, ids=["to-write", "to-read"])
@pytest.mark.parametrize(("difference", "which"), [(-1, "an earlier one"), (1, "a later one")])
def test_a_control_file_of_another_version_that_is_in_use_is_named(
    directory: Path, opening: Callable[[Path], Any], difference: int, which: str
) -> None:
    ours = lib.MQ_CONTROL_LAYOUT
    with Peer(directory) as peer:
        peer.do("broker.create_topic('A', 1); fill(broker, 'A', 3)")
        write_layout(directory, ours + difference)
        with pytest.raises(mq.VersionMismatch, match=f"another version of mq, {which}.*in all") as raised:
            opening(directory)
        assert (raised.value.found, raised.value.needed) == (ours + difference, ours)
        assert raised.value.path == f"{directory}/mq/control"
        assert any("another version of mq" in problem for problem in problems(directory))
        assert peer.ask("len(contents(broker)['A', 0][2])") == 3  # It goes on undisturbed.
        write_layout(directory, ours)
        opening(directory).close()


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_any_file_of_another_layout_is_named(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer(directory):
        monkeypatch.setitem(layouts.LAYOUTS, name, layouts.LAYOUTS[name] + 1)
        with pytest.raises(mq.VersionMismatch, match=f"an earlier one: {name} has layout"):
            open_small(directory)
    if name != "mq/control":  # With no process attached, a file of another version is rebuilt.
        with open_small(directory) as broker:
            fill(broker, "A", 1)
        open_small(directory).close()


def test_a_store_without_attached_processes_is_recovered(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 30)
    write_layout(directory, 1)
    with open_small(directory) as broker:
        assert was_recovered(broker)
        assert bodies(broker) == numbered(30)


def test_damage_is_not_taken_for_another_version(directory: Path) -> None:
    with Peer(directory):
        path = directory / "mq" / "control"
        with path.open("r+b") as file:
            before = file.read(8)
            file.seek(0)
            file.write(b"\xff" * 8)
        with pytest.raises(mq.StoreCorrupted, match="was deleted or changed"):
            open_small(directory)
        with path.open("r+b") as file:
            file.write(before)


def test_keys_that_another_version_keeps_are_left_alone(directory: Path) -> None:
    with open_small(directory) as broker, mq.Once(broker, "g", size=64)("key") as is_fresh:
        assert is_fresh
    path = directory / "mq" / "once" / "g"
    whole = path.read_bytes()
    head = handled_keys.HEAD.pack(b"mqonce07", 64)
    path.write_bytes(head + xxhash.xxh3_64_digest(head) + whole[handled_keys.HEAD_SIZE :])
    with open_small(directory) as broker, pytest.raises(mq.VersionMismatch, match="layout 7, and 1 in this"):
        broker.handled_keys.of("g")
    assert path.read_bytes()[handled_keys.HEAD_SIZE :] == whole[handled_keys.HEAD_SIZE :]
    path.write_bytes(whole)
    with open_small(directory) as broker, mq.Once(broker, "g")("key") as is_fresh:
        assert not is_fresh


def test_every_layout_fits_into_the_word() -> None:
    assert len(layouts.LAYOUTS) <= 8
    assert all(0 < layout < 256 for layout in layouts.LAYOUTS.values())
    layouts.check_layouts(Path("/nowhere"), layouts.packed())
