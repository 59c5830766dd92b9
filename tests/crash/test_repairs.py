"""A process dies in an append, and the process that repairs that dies in the middle of the repair.

The intent stays armed until a repair is through, so the next one does it again, from the start, however
many die.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import Crew
from tests.crash.scene import Scene, Way

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("first", ["ARMED", "HALF_RECORD", "RECORD", "UNIT", "BLANK", "LINKED_QUEUE_FILE"])
@pytest.mark.parametrize(
    "way",
    [Way(size=40_000, queue_file_units=1), Way(count=3, size=16_000, queue_file_units=2)],
    ids=["roll", "files"],
)
def test_repairs_cut_short_are_done_again(failing_crew: Crew, tmp_path: Path, first: str, way: Way) -> None:
    scene = Scene(failing_crew, tmp_path, way)
    with scene.survivor_paused():
        scene.die_at(first, 1)
        for _ in range(3):
            scene.die_at("REPAIR", 1)
    scene.let_live(5)
    assert scene.check() == 1


def test_all_die_and_the_next_one_repairs(failing_crew: Crew, tmp_path: Path) -> None:
    """The last process dies while it holds the lock; only the next one to open the store can repair it."""
    scene = Scene(failing_crew, tmp_path, Way(count=7, queue_file_units=3))
    with scene.survivor_paused():
        scene.survivor.kill()
    for point in ("LOG_END", "UNIT", "REPAIR", "PUBLISHED"):
        scene.die_at(point, 1)
    assert scene.check() == 3
