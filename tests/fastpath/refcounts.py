"""Whether calls into C leave objects behind, or take references that they never had."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from itertools import repeat

ROUNDS_MAX = 3  # other threads may have more in hand once or twice


def keeps_nothing(each: Callable[[], object], shared: Sequence[object], count: int) -> bool:
    """Whether so many calls, after some that fill what is kept for later ones, leave the numbers of
    allocated blocks and of references to these objects as they were, about."""
    for _ in repeat(None, 200):
        each()
    gc.collect()
    return any(_is_as_before(each, shared, count) for _ in range(ROUNDS_MAX))


def _is_as_before(each: Callable[[], object], shared: Sequence[object], count: int) -> bool:
    before = sys.getallocatedblocks(), [sys.getrefcount(value) for value in shared]
    for _ in repeat(None, count):
        each()
    gc.collect()
    after = sys.getallocatedblocks(), [sys.getrefcount(value) for value in shared]
    fits = all(now - was < 20 for was, now in zip(before[1], after[1], strict=True))
    return fits and after[0] - before[0] < 500
