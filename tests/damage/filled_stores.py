"""A store that was closed, and one that was left by a process that was killed."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.damage import known
from tests.damage.known import Known
from tests.support.processes.children import Child, call


def killed_store(root: Path, seed: int) -> Known:
    """A store all of whose processes were killed."""
    with Child(known.make_and_wait, str(root), seed) as child:
        stored = pickle.loads(bytes.fromhex(child.hear()))
        child.kill()
    assert isinstance(stored, Known)
    return stored


def closed_store(root: Path, seed: int) -> Known:
    stored = call(known.make, str(root), seed)
    assert isinstance(stored, Known)
    return stored
