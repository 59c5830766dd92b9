"""Round trip of 1 KiB between two processes: send, wake, read, send back.

The figure is the median of a turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.speed import ours
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import Goal, at_most
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.peers import iceoryx, simple_queue
from tests.speed.peers.channel import ChannelPair
from tests.speed.peers.queue import Peer
from tests.speed.processes import together
from tests.speed.spread import percentile
from tests.speed.workspace import fresh, settle

BLOCKING_WAIT = 5.0
WARM_UP_COUNT = 100


def _turn(bench: Bench, open_pair: Callable[[Path, bytes], ChannelPair]) -> Turn:
    count = bench.plan.round_trip_count
    with fresh(bench.data) as parent:
        settle(bench.plan.memory_size)
        pair = open_pair(parent / "pair", os.urandom(KIB))

        def echo(ready: Callable[[], object]) -> list[int]:
            pair.echo(count, ready)
            return []

        times, _ = together([lambda ready: pair.ping(count, ready), echo])
    warm = [time / 1e3 for time in times[min(WARM_UP_COUNT, count // 10) :]]
    return Turn(percentile(warm, 0.5), {"p99 µs": percentile(warm, 0.99), "max µs": max(warm)})


def _against(peer: Peer[ChannelPair], wait: float) -> Callable[[Bench], Measurement]:
    open_ours = partial(ours.RoundTripPair, wait=wait)

    def measure(bench: Bench) -> Measurement:
        return paired(
            "µs",
            lambda: _turn(bench, open_ours),
            lambda: _turn(bench, peer.open),
            bench.plan.rounds,
            bench.say,
        )

    return measure


def _case(name: str, peer: Peer[ChannelPair], goal: Goal, wait: float) -> Case:
    return Case(
        f"round-trip/{name}",
        f"round trip, 1 KiB, {name}",
        str(peer),
        goal,
        _against(peer, wait),
        (peer.module,),
    )


CASES = (
    _case("spinning", iceoryx.PUBLISH_SUBSCRIBE, at_most(1), 0.0),
    _case("blocking", simple_queue.SIMPLE_QUEUE, at_most(1), BLOCKING_WAIT),
)
