"""The power fails while the sink commits: afterwards every epoch is there once, whole, of one attempt.

First with the cut chosen, between any two records of the log; then at any moment, on a disk that forgets what
was not forced to it (tests/support/power). MQ_SINK_POWER_ROUNDS says how many rounds of that there are
(8 if it says nothing).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.spark.sink import commit, staging
from mq.spark.sink.ledger import TOPIC as LEDGER
from mq.store.check import problems
from tests.spark.committers import TOPIC as RESULTS
from tests.spark.committers import TXN, bodies_of, rows_of, stage_epoch, wrong_with
from tests.support.power.disk import Disk
from tests.support.power.recorder import build
from tests.support.processes.fail_build import TREE
from tests.support.processes.nursery import Nursery
from tests.support.store.sizes import SMALL
from tests.support.store.small_store import crash_of, open_small, zero_log_from

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("MQ_SINK_POWER_ROUNDS", "8"))
SEED = int(os.environ.get("MQ_POWER_SEED", str(time.time_ns() % 1_000_000_000)))


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 600], ids=["in one step", "in several"])
def test_wherever_the_log_is_cut_the_replay_makes_the_epoch_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """Epoch 0 is there; of epoch 1 what was written of the log. Its replay has other rows. What is not forced
    to disk is lost: all that is staged, unless there were several steps."""
    live, forced = tmp_path / "live", tmp_path / "forced"

    def sync_files(place: Path, files: Any) -> None:
        staging.sync_files(place, files)
        shutil.copytree(live / "mq" / "spark", forced)

    monkeypatch.setattr(commit, "sync_files", sync_files)
    with open_small(live) as broker:
        broker.create_topic(RESULTS, 2)
        commit.commit_epoch(broker, TXN, TXN, 0, stage_epoch(live, 0, rows_of(0, 0)))
        before = broker.max_offset(mq.MessageQueue(LEDGER, "mq", 0)), len(bodies_of(broker))
        staged = stage_epoch(live, 1, rows_of(1, 0))
        commit.commit_epoch(broker, TXN, TXN, 1, staged, chunk_bytes=chunk_bytes)
        places = sorted(
            message.log_offset
            for topic, first in ((LEDGER, before[0]), (RESULTS, 0))
            for queue in broker.topic(topic).queues
            for message in queue.read(first if topic == LEDGER else 0, count_max=100).messages
            if topic == LEDGER or message.body.startswith(b"1-")
        )
        crash_of(broker, tmp_path / "crashed")
    monkeypatch.undo()
    assert len(places) > 8
    assert forced.exists() == (chunk_bytes == 600)
    for number, place in enumerate([*places, None]):
        after = tmp_path / f"after{number}"
        shutil.copytree(tmp_path / "crashed", after)
        if place is not None:
            zero_log_from(after, place)
        if forced.exists():
            (after / "mq").mkdir()
            shutil.copytree(forced, after / "mq" / "spark")
        with open_small(after) as broker:
            if not forced.exists():
                assert wrong_with(bodies_of(broker), 1 if place is not None else 2) == []
            commit.commit_epoch(broker, TXN, TXN, 1, stage_epoch(after, 1, rows_of(1, 1)), chunk_bytes=100)
            commit.commit_epoch(broker, TXN, TXN, 2, stage_epoch(after, 2, rows_of(2, 2)))
            assert wrong_with(bodies_of(broker), 3) == []
        assert list(problems(after)) == []
        shutil.rmtree(after)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    directory = tmp_path_factory.mktemp("crew")
    assert mq.__file__ is not None
    with Nursery(
        TREE,
        directory / "report",
        Path(mq.__file__).parents[1],
        "tests.spark.committers",
        LD_PRELOAD=str(build(directory)),
    ) as nursery:
        yield nursery


@pytest.mark.timeout(240 + ROUNDS * 10)
def test_a_sink_survives_power_cuts(nursery: Nursery, tmp_path: Path) -> None:
    print(f"{ROUNDS} rounds, MQ_POWER_SEED={SEED}")
    epochs = 0
    for number in range(ROUNDS):
        epochs += _round(nursery, tmp_path / str(number), SEED + number)
        shutil.rmtree(tmp_path / str(number))
    assert epochs > ROUNDS // 2, "hardly anything was committed, so hardly anything was proved"


def _wait_for(trace: Path, more: int) -> None:
    """Until so many commits more were begun or done."""
    wanted = _lines(trace) + more
    until = time.monotonic() + 120
    while _lines(trace) < wanted:
        assert time.monotonic() < until, "the commit hangs"
        time.sleep(0.001)


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def _round(nursery: Nursery, directory: Path, seed: int) -> int:
    """Lives of committers, each ended by a power cut; how many epochs there were."""
    chance = random.Random(seed)
    directory.mkdir()
    disk = Disk(directory, chance)
    record = {
        "state": str(disk.state),
        "delay_max_us": chance.choice((0, 2000)),
        "syncs_lie": False,
        "clock_begin_ns": 0,
        "clock_factor": 1,
    }
    given: dict[str, Any] = {
        "root": disk.root,
        "record": record,
        "sizes": SMALL,
        "trace": directory / "trace",
    }
    for _ in range(chance.choice((1, 2, 3))):
        chunk_bytes = chance.choice((1, 700, 1 << 20))
        committer = nursery.start("commits", **given, seed=chance.getrandbits(32), chunk_bytes=chunk_bytes)
        _wait_for(directory / "trace", chance.randint(1, 6))
        time.sleep(chance.uniform(0.0, 0.03))
        if chance.random() < 0.5:
            disk.write_back()
            time.sleep(chance.uniform(0.0, 0.02))
        with disk.standstill():
            committer.kill()
        nursery.forget(committer)
        assert nursery.failures() == ""
        disk.cut(sector=chance.choice((4096, 512)), strict=chance.random() < 0.4)
    answer = directory / "answer"
    inspector = nursery.start("inspects", **given, chunk_bytes=700, answer=answer)
    until = time.monotonic() + 120
    while not answer.exists():
        assert not inspector.wait(0.002) or answer.exists(), nursery.failures()
        assert time.monotonic() < until, "opening the store after a power cut hangs"
    inspector.kill()
    nursery.forget(inspector)
    found = json.loads(answer.read_text())
    assert found["wrong"] == [], f"MQ_POWER_SEED={seed} MQ_SINK_POWER_ROUNDS=1"
    return int(found["epochs"])
