"""The peers of consumers do what they are timed for: all that was sent arrives, once, with a time.

One that cannot be had here is left out. RocketMQ is run by
test_cases.py, and often enough.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.speed.peers import process_queue, shared_lmdb
from tests.speed.peers.pipeline import Tally
from tests.speed.peers.queue import Peer
from tests.speed.processes import in_child, together

# Peers leave threads of their own behind in this process; what is forked here never touches them.
pytestmark = [
    pytest.mark.rounds,
    pytest.mark.usefixtures("peers"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

BODY = b"b" * 100
PIPELINES: list[Peer[Any]] = [
    process_queue.PIPELINE,
    *(shared_lmdb.peer(batch, writable_map=writable) for batch in (1, 10) for writable in (False, True)),
]


@pytest.mark.parametrize("peer", PIPELINES, ids=str)
def test_two_consumers_take_what_two_producers_send(peer: Peer[Any], tmp_path: Path) -> None:
    if not peer.installed():
        pytest.skip(f"{peer.module} cannot be installed here")
    pipeline = peer.open(tmp_path, BODY)

    def job(work: Callable[..., None], *arguments: int) -> Callable[[Callable[[], object]], None]:
        return lambda ready: work(*arguments, ready)

    producers = [job(pipeline.produce, 60)] * 2
    together([*producers, job(pipeline.consume, 0, 120), job(pipeline.consume, 1, 120)])
    # With nothing left, a second request for a taken message waits forever.
    assert pipeline.tally.total() == 120


def test_one_way_times_every_message(tmp_path: Path) -> None:
    pair = process_queue.ONE_WAY.open(tmp_path, BODY)

    def send(ready: Callable[[], object]) -> list[int]:
        pair.send(20, 0.0001, ready)
        return []

    def listen(ready: Callable[[], object]) -> list[int]:
        return pair.listen(20, ready)

    times, _ = together([listen, send])
    assert len(times) == 20
    assert min(times) > 0


def test_a_tally_is_shared() -> None:
    tally = Tally(3)
    tally.set(0, 4)
    in_child(lambda: tally.set(2, 5))
    assert tally.total() == 9
