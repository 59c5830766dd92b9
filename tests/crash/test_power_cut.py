"""The power fails, over and over, at any moment of sending, flushing, opening and closing: see power.py.

After each cut holds:

    what was acknowledged with flush="sync", or before a broker.flush() that returned, is where it was
    what a reader of flush="sync" has seen is still there
    nothing torn is delivered, offsets are dense, no invariant is broken
    sending, reading, closing and opening go on

MQ_POWER_ROUNDS says how many rounds there are (24 if it says nothing); round n of MQ_POWER_SEED=s makes the
choices of round 0 of MQ_POWER_SEED=s+n. MQ_POWER_KEPT names the directory for what a failed round leaves.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.crash import power
from tests.crash.conftest import Answer, Crew
from tests.crash.rounds import Counts, Lost, Round

pytestmark = [pytest.mark.crash, pytest.mark.rounds]

ROUNDS = int(os.environ.get("MQ_POWER_ROUNDS", "24"))
SEED = int(os.environ.get("MQ_POWER_SEED", str(time.time_ns() % 1_000_000_000)))
IMAGES = 3  # opened of each life


@pytest.mark.timeout(120 + ROUNDS * 10)
@pytest.mark.parametrize("names", ["in order", "strict"])
def test_a_store_survives_power_cuts(recorded_crew: Crew, tmp_path: Path, names: str) -> None:
    strict, counts = names == "strict", Counts()
    for number in range(int(ROUNDS * (0.4 if strict else 0.6))):
        directory = tmp_path / str(number)
        Round(
            recorded_crew, directory, SEED + number, strict=strict, image_count=IMAGES, counts=counts
        ).play()
        shutil.rmtree(directory)
    print(f"  MQ_POWER_SEED={SEED}: {counts}")
    assert counts["promised"] > 0, "nothing was promised, so nothing was proved"
    assert counts["images"] > 0, "no image was opened"
    assert counts["amid"] > 0, "no process died in the middle of an append"


def test_syncs_that_do_nothing_are_noticed(
    recorded_crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk does forget: on one that lies, promises are broken, and all is left that tells how."""
    monkeypatch.setenv("MQ_POWER_KEPT", str(tmp_path))
    for number in range(100):
        directory = tmp_path / str(number)
        work = Round(recorded_crew, directory, SEED + number, syncs_lie=True, image_count=0)
        try:
            work.play()
        except Lost as lost:
            if "was acknowledged" not in str(lost):
                continue
            (kept,) = [path for path in tmp_path.glob("power-*/round") if str(path) in str(lost)]
            left = {path.name for path in kept.iterdir()}
            assert {"round.json", "state", f"life{work.cuts}"} <= left
            assert any(name.startswith("trace") for name in left)
            assert (kept / f"life{work.cuts}" / "journal").stat().st_size > 0
            return
    pytest.fail("nothing was lost, though nothing was synced")


def test_a_failed_round_is_replayed_by_its_directory(
    recorded_crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The judge of a sound round says that something is wrong: what the round leaves is looked into again."""
    monkeypatch.setenv("MQ_POWER_KEPT", str(tmp_path))

    def played(work: Round) -> Answer:
        work.cut()  # A life so short that it has few images.
        return Answer(wrong=["planted"], stored=0, promised=0, repairs=0, recovered=False)

    monkeypatch.setattr(Round, "lived", played)
    with pytest.raises(Lost, match="planted"):
        Round(recorded_crew, tmp_path / "work", 1, image_count=1).play()
    shutil.rmtree(tmp_path / "work")
    (kept,) = tmp_path.glob("power-1-*/round")
    monkeypatch.setattr("sys.argv", ["power", "--again", str(kept)])
    assert power.main() == 0
    told = capfd.readouterr().out
    for life in ("state", "life1"):
        (line,) = [line for line in told.splitlines() if line.startswith(f"{kept / life}: ")]
        assert re.fullmatch(r"[1-9]\d* images, 0 of them wrong", line.partition(": ")[2]), told
