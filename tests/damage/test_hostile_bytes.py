"""Crafted bytes: extreme values in shared memory, queue units, records with checksums that fit.

The C code takes none at its word: no signal, no hang, no path out of the directory. (Records that are
whole by every checksum are delivered; nothing can tell them from others.) Each place of shared memory meets a
third of the values, the next one another third, and of arrays one place in seventeen does; MQ_HOSTILE=all has
every value in every place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.damage import crafting
from tests.damage.filled_stores import closed_store, killed_store
from tests.support.processes.children import Child

PARTS = 6
SECONDS_MAX = 900.0


@pytest.mark.rounds
@pytest.mark.timeout(SECONDS_MAX + 60)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["control", "units", "records"])
def test_hostile_bytes_are_an_error_or_a_gap(quick_path: Path, kind: str, part: int) -> None:
    outside = quick_path / "outside"
    outside.mkdir()
    # Control files are looked at after a clean close; what is behind the log's end after a crash.
    stored = (killed_store if kind == "records" else closed_store)(outside / "store", 7)
    last = ""
    with Child(
        crafting.look_at_each, str(outside / "store"), stored, kind, part, PARTS, timeout=SECONDS_MAX
    ) as child:
        try:
            while line := child.hear():
                last = line
            assert child.result() > 20
        except AssertionError as error:
            raise AssertionError(f"{last}\n{error}") from error
    assert sorted(path.name for path in quick_path.iterdir()) == ["outside"]
    assert {path.name for path in outside.iterdir() if not path.name.startswith("mq-aside-")} == {"store"}
