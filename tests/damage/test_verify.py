"""`mq DIR verify` looks at a store any file of which is damaged, and tells; it never gives up itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.damage import verifying
from tests.support.processes.children import Child, call

ROUNDS = int(os.environ.get("MQ_DAMAGE_CASES", "600")) // 20


@pytest.mark.parametrize("kind", ["flip", "unmake"])
def test_every_damage_is_looked_at(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    call(verifying.make, str(root))
    last = "no seed yet"
    with Child(verifying.damage, str(root), kind, 0, ROUNDS, timeout=300.0) as child:
        try:
            for _ in range(ROUNDS):
                last = child.hear()
            child.result()
        except AssertionError as error:
            raise AssertionError(f"{last}\n{error}") from error


@pytest.mark.parametrize(
    ("name", "said"),
    [("mq/spark/app/1/b.arrow", "b.arrow"), ("mq/once/billing", "mq/once"), ("mq/dedup", "mq/dedup")],
)
def test_what_is_lost_for_good_is_told(tmp_path: Path, name: str, said: str) -> None:
    root = tmp_path / "store"
    call(verifying.make, str(root))
    before = verifying.look(root)
    (root / name).write_bytes(b"not what it was")
    told = [text for text in verifying.look(root) if text not in before]
    assert any(said in text for text in told), told
