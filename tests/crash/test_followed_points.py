"""A replica dies at a chosen point while it appends what its master has, alone or while another process reads
it. The next one goes on where it was, with nothing lost, doubled, or half there."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path

import pytest

import mq
from mq.store.check import problems
from tests.crash.conftest import Crew
from tests.support.eventually import eventually
from tests.support.insides import was_recovered
from tests.support.processes.fail_build import fail_points
from tests.support.store.followed import log_of, mixed_log, units_of

pytestmark = [pytest.mark.crash, pytest.mark.rounds]

FILE_SIZE = 128 << 10
POINTS = ("LOCKED", "ARMED", "RECORD", "UNIT", "LOG_END", "PUBLISHED", "DISARMED")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a master, in one file."""
    directory = tmp_path_factory.mktemp("master")
    path = directory / "log"
    path.write_bytes(mixed_log(directory / "store", random.Random(1), FILE_SIZE, 400))
    return path


@pytest.fixture(scope="module")
def units(hired_to_fail: Crew, master: Path) -> dict[str, bytes]:
    """The queues of a replica that nobody disturbs."""
    root = master.parent / "whole"
    follow(hired_to_fail, root, master, 60_000)
    return units_of(root)


def follow(crew: Crew, root: Path, master: Path, step: int, fail: str = "", *, is_read: bool = False) -> None:
    """A replica until it ends, or dies; a process that reads it all the while, and sees what it has then."""
    ready, go = (root.with_name(f"{root.name}.{word}") for word in ("ready", "go"))
    for path in (ready, go):
        path.unlink(missing_ok=True)
    process = crew.nursery.start(
        "follower",
        environment={"MQ_FAIL": fail} if fail else {},
        root=root,
        master=master,
        file_size=FILE_SIZE,
        step=step,
        ready=ready,
        go=go,
    )
    eventually(ready.exists, crew.nursery.failures, 120)
    with mq.open(root) if is_read else nullcontext() as reader:
        go.touch()
        assert process.wait(120), "the replica hangs"
        crew.nursery.forget(process)
        if reader is not None:
            follow(crew, root, master, step)
            assert not was_recovered(reader)
            for topic in reader.topics():
                for queue in reader.topic(topic).queues:
                    assert len(queue.read(queue.min_offset, count_max=1000).messages) == min(
                        queue.max_offset, 1000
                    )


@pytest.mark.parametrize("is_read", [False, True], ids=["alone", "read"])
@pytest.mark.parametrize("step", [60_000, 700], ids=["large pieces", "small pieces"])
@pytest.mark.parametrize("passage", [1, 2, 5])
@pytest.mark.parametrize("point", POINTS)
def test_a_replica_dies_and_goes_on(
    failing_crew: Crew,
    tmp_path: Path,
    master: Path,
    units: dict[str, bytes],
    point: str,
    passage: int,
    step: int,
    is_read: bool,
) -> None:
    root, data = tmp_path / "replica", master.read_bytes()
    fail = f"{fail_points()[point]}:{passage}:kill"
    follow(failing_crew, root, master, step, fail, is_read=is_read)
    if not is_read:
        assert log_of(root)[: len(data)] != data
    follow(failing_crew, root, master, step)
    assert log_of(root)[: len(data)] == data
    assert list(problems(root)) == []
    assert units_of(root) == units
