"""The kernel refuses: no space for another file, or a page that it could not write.

No space is the trouble of one send: it raises StoreFull and leaves nothing behind, readers go on, and once
there is room the next send works. A failed write to disk poisons the store in every process, since the kernel
forgets what it could not write: sends raise, reads go on, and the next process that opens the store looks at
what the disk holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import Crew
from tests.crash.scene import Scene, Way
from tests.support.processes.fail_build import fail_points
from tests.support.processes.nursery import Process
from tests.support.processes.trace import acks
from tests.support.store.sizes import SMALL

pytestmark = [pytest.mark.crash, pytest.mark.rounds]
POINT = fail_points()


@pytest.mark.parametrize("passage", [1, 2, 3, 5])
def test_one_refused_allocation_is_made_up_for_by_a_smaller_one(
    failing_crew: Crew, tmp_path: Path, passage: int
) -> None:
    trace = tmp_path / "sender"
    sender = failing_crew.nursery.start(
        "full",
        environment={"MQ_FAIL": f"{POINT['ALLOCATE']}:{passage}:fail"},
        root=tmp_path / "store",
        trace=trace,
        run=1,
        sizes=SMALL,
        rounds=0,
        then=100,
    )
    assert sender.wait(120)
    assert failing_crew.inspect(tmp_path / "store", [trace]).wrong == []


def test_no_space_is_raised_and_leaves_nothing_behind(failing_crew: Crew, tmp_path: Path) -> None:
    scene = Scene(failing_crew, tmp_path, Way())
    with scene.survivor_paused():
        scene.traces.append(tmp_path / "full")
        full = failing_crew.nursery.start(
            "full", root=scene.root, trace=scene.traces[-1], run=2, sizes=SMALL, rounds=3, then=30
        )
        assert full.wait(120)
    scene.let_live(5)
    scene.check()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_failed_sync_poisons_the_store_for_all(failing_crew: Crew, tmp_path: Path, flush: Any) -> None:
    root = tmp_path / "store"
    traces = [tmp_path / "bystander", tmp_path / "poisoner"]

    def start(run: int, passage: int) -> Process:
        return failing_crew.nursery.start(
            "poisoned",
            environment={"MQ_FAIL": f"{POINT['SYNC']}:{passage}:fail"},
            root=root,
            trace=traces[run],
            run=run,
            sizes=SMALL,
            flush=flush,
        )

    bystander = start(0, 0)
    while not acks(traces[0]):
        assert not bystander.wait(0.002), failing_crew.nursery.failures()
    for process in (bystander, start(1, 20)):
        assert process.wait(240)
    answer = failing_crew.inspect(root, traces)
    assert answer.wrong == []
    assert answer.recovered, "the store was believed although a write to disk had failed"
    assert failing_crew.inspect(root, traces).wrong == []
