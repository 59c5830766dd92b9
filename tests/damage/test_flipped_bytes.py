"""Bytes of a store change, files of it change, while no process has it open.

Whatever is then read is either what was sent, or an error that names what is wrong, or it is missing: never a
signal, a hang, or something else. Each seed is one damage to one file. MQ_DAMAGE_CASES=20000 looks longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.damage import known, rounds
from tests.damage.filled_stores import closed_store, killed_store
from tests.damage.known import Known
from tests.support.processes.children import Child, call

CASES = int(os.environ.get("MQ_DAMAGE_CASES", "600"))
BATCH = max(1, min(100, CASES // 4))  # of each of four sorts
SECONDS_EACH = 6.0


def run_batch(root: Path, stored: Known, kind: str, first_seed: int, count: int) -> dict[str, int]:
    last = "no seed yet"
    patience = count * SECONDS_EACH
    with Child(rounds.damage, str(root), stored, kind, first_seed, count, timeout=patience) as child:
        try:
            for _ in range(count):
                last = child.hear()
            result = child.result()
        except AssertionError as error:
            raise AssertionError(f"{last}\n{error}") from error
    assert isinstance(result, dict)
    return result


@pytest.mark.rounds
@pytest.mark.timeout(BATCH * SECONDS_EACH + 120)
@pytest.mark.parametrize("kind", ["flip", "unmake"])
@pytest.mark.parametrize("store", [closed_store, killed_store], ids=["closed", "killed"])
@pytest.mark.parametrize("batch", range(max(1, CASES // BATCH // 4)))
def test_damage_is_an_error_or_a_gap(quick_path: Path, store: object, kind: str, batch: int) -> None:
    assert callable(store)
    stored = store(quick_path / "store", batch)
    found = run_batch(quick_path / "store", stored, kind, batch * BATCH, BATCH)
    # The damage was felt, and by no means all was lost.
    assert found.keys() - {"delivered"}
    assert found["delivered"] > BATCH * len(stored.records) // 2


def test_undamaged_stores_are_believed(tmp_path: Path) -> None:
    """Otherwise every round above would only have looked at recoveries."""
    for name, store in (("closed", closed_store), ("killed", killed_store)):
        stored = store(tmp_path / name, 5)
        assert call(known.is_believed, str(tmp_path / name)) is True
        delivered, errors = call(known.look, str(tmp_path / name), stored)
        assert errors == {}
        assert delivered > len(stored.records)
