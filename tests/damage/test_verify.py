"""`mq DIR verify` looks at a store any file of which is damaged, and tells; it never gives up itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.damage import verifying
from tests.damage.children import Child, call

ROUNDS = int(os.environ.get("MQ_DAMAGE_CASES", "1200")) // 40


@pytest.mark.parametrize("kind", ["flip", "unmake"])
def test_damage_is_told(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    call(verifying.make, str(root))
    last = "no seed yet"
    with Child(verifying.damage, str(root), kind, 0, ROUNDS, timeout=300.0) as child:
        try:
            for _ in range(ROUNDS):
                last = child.hear()
            told = child.result()
        except AssertionError as error:
            raise AssertionError(f"{last}\n{error}") from error
    # Much of what is under mq/ is made anew whatever it says, but by no means all.
    assert told > ROUNDS // 30
