"""Rounds of damage in one child process. Each says its seed first, so that the last one said is to blame."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from tests.damage import harm
from tests.damage.known import Known, Wrong, look
from tests.support.processes.children import say

OUTSIDE = b"a foreign file that is part of no store\n" * 400


def copied(known: Known) -> Known:
    return Known(
        dict(known.records), dict(known.ids), {key: set(places) for key, places in known.keys.items()}
    )


def damage(root: str, known: Known, kind: str, first_seed: int, count: int) -> dict[str, int]:
    """Damage the store `count` times, look at all of it, put it back. How often each error was met."""
    aside = Path(tempfile.mkdtemp(prefix="mq-aside-", dir=Path(root).parent))
    snapshot = harm.Snapshot(Path(root), aside / "links")
    outside = aside / "outside"
    total: dict[str, int] = {}
    for seed in range(first_seed, first_seed + count):
        outside.write_bytes(OUTSIDE)
        random_ = random.Random(seed)
        name = harm.choose(random_, snapshot)
        file = snapshot.files[name]
        if kind == "flip":
            done = harm.flip(random_, snapshot.root / name, len(file.data), file.size)
        else:
            done = harm.unmake(random_, snapshot.root, name, outside)
        say(f"seed {seed}: {name}: {done}")
        delivered, errors = look(root, copied(known))
        if outside.read_bytes() != OUTSIDE:
            raise Wrong("a file outside of the store was written to")
        for error, times in errors.items():
            total[error] = total.get(error, 0) + times
        total["delivered"] = total.get("delivered", 0) + delivered
        snapshot.restore()
    delivered, errors = look(root, copied(known))
    if errors or delivered < len(known.records):
        raise Wrong(f"put back, the store is not what it was: {delivered} messages, {errors}")
    shutil.rmtree(aside)
    return total
