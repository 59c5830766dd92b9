"""Where stores of the tests of damage lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.forked import load_before

MEMORY = Path("/dev/shm")
ROOM = 256 << 20
load_before("tests.damage.using", "tests.damage.crafting")


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """For stores that are opened a thousand times: in memory where it has room, since each time they are
    flushed. What is damaged, and how that is met, does not depend on it."""
    if not (os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="mq-damage-", dir=MEMORY))
    yield path
    shutil.rmtree(path)
