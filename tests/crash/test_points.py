"""A process dies at a chosen point inside an append, a roll, a flush or the index, while another lives on.

Whatever was half done then is finished or undone by the next process that takes the lock. What was
acknowledged stays readable, nothing torn is delivered, offsets stay dense, the survivor is not held up; and
the same holds after the survivor is killed as well, and the next process attaches to what all of them left
behind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import Crew
from tests.crash.scene import Scene, Way

pytestmark = [pytest.mark.crash, pytest.mark.rounds]

WAYS = {
    "single": Way(),
    "batch": Way(count=7),
    "roll": Way(size=40_000),
    "new-file": Way(queue_file_units=3, count=7),
    "roll-and-file": Way(queue_file_units=2, count=3, size=16_000),
    "sync": Way(flush="sync"),
    "query": Way(query=True),
}
APPEND = ("LOCKED", "ARMED", "HALF_RECORD", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED")
CASES = [
    *((point, way, passage) for point in APPEND for way in WAYS if way != "query" for passage in (1, 4)),
    *(("HALF_RECORD", way, 12) for way in ("batch", "new-file")),
    *(("BLANK", way, passage) for way in ("single", "batch", "roll", "roll-and-file") for passage in (1, 3)),
    *(("NEW_LOG_FILE", way, passage) for way in ("single", "roll") for passage in (1, 2)),
    *(
        (point, way, passage)
        for point in ("NEW_QUEUE_FILE", "LINKED_QUEUE_FILE")
        for way in ("single", "new-file", "roll-and-file")
        for passage in (1, 2, 3)
    ),
    *(("FLUSHED", "sync", passage) for passage in (1, 3)),
    *(
        (point, "query", passage)
        for point in ("INDEX_ENTRY", "INDEX_SLOT", "INDEX_COUNT")
        for passage in (1, 9)
    ),
]
# Where the dead one had stated what it was about to write, and not yet taken that back.
HALF_DONE = {*APPEND[1:-1], "BLANK", "NEW_QUEUE_FILE", "LINKED_QUEUE_FILE"}


@pytest.mark.parametrize(("point", "way", "passage"), CASES, ids=str)
def test_death_at_a_point(failing_crew: Crew, tmp_path: Path, point: str, way: str, passage: int) -> None:
    scene = Scene(failing_crew, tmp_path, WAYS[way])
    scene.die_at(point, passage)
    scene.let_live(5)
    repairs = scene.check()
    if point == "NEW_LOG_FILE":  # Passed ahead of the end, beside a thread that may be in an append.
        assert repairs in (0, 1)
    else:
        assert repairs == (1 if point in HALF_DONE else 0)
