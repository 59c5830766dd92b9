"""Consumers that wait cost next to nothing, and are there at once when a message comes."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

import mq
from tests.groups.conftest import Member, Troupe
from tests.groups.trace import Kind, events, percentile
from tests.support.eventually import eventually
from tests.support.processes.cpu_time import cpu_seconds
from tests.support.store.sizes import SIZES

PROCESSES = 20
PER_PROCESS = 5
SECONDS = 5.0
TRIES = 5
SHARE_MAX = 0.01  # of one core, all together
WAKE_SECONDS_MAX = 0.1  # p50; it is milliseconds on a machine at rest


@pytest.mark.timeout(400)
def test_a_hundred_waiting_consumers(troupe: Troupe) -> None:
    with mq.open(troupe.root, **SIZES) as broker:
        broker.create_topic("events", PROCESSES)
    members: list[Member] = []
    for number in range(PROCESSES):
        ready = troupe.trace(f"ready{number}")
        members.append(troupe.consumer("waiters", "waiters", count=PER_PROCESS, ready=ready))
    eventually(lambda: len(list(troupe.trace("").glob("ready*"))) == PROCESSES, troupe.failures)
    # What starting left behind is done. Beside others the same work takes twice the time: so one of several.
    eventually(lambda: _share(members, 1.0) < SHARE_MAX, lambda: "an idle consumer uses the processor")
    share = _first_below(SHARE_MAX, lambda: _share(members, SECONDS))

    total = PROCESSES * PER_PROCESS
    with mq.open(troupe.root, **SIZES) as broker, mq.Producer(broker) as producer:

        def woken() -> float:
            """The median of the seconds from a send to the listener."""
            before, sent = _entered(members), dict[int, int]()
            for number in range(before, before + PROCESSES):
                body = struct.pack(">II", 0, number).ljust(100)
                queue = mq.MessageQueue("events", broker.name, number % PROCESSES)
                sent[number] = time.monotonic_ns()
                producer.send(mq.Message("events", body), queue=queue)
                time.sleep(0.02)
            eventually(
                lambda: _entered(members) >= before + total,
                lambda: f"{_entered(members) - before} of {total} arrived",
            )
            took = [(at - sent[number]) / 1e9 for number, at in _entries(members) if number in sent]
            assert len(took) == total
            return percentile(took, 0.5)

        p50 = _first_below(WAKE_SECONDS_MAX, woken)
    print(
        f"{total} waiting consumers of {PROCESSES} processes: {share * 100:.2f} % of a core; woken after"
        f" p50 {p50 * 1e3:.2f} ms"
    )
    assert share < SHARE_MAX
    assert p50 < WAKE_SECONDS_MAX


def _first_below(limit: float, measured: Callable[[], float]) -> float:
    """The first of some figures that is below a limit, or the last one."""
    for _ in range(TRIES):
        figure = measured()
        if figure < limit:
            break
    return figure


def _share(members: list[Member], seconds: float) -> float:
    """Of one core, all together, in so many seconds or a few more."""
    begin, before = time.monotonic(), sum(cpu_seconds(member.process.pid) for member in members)
    time.sleep(seconds)
    after = sum(cpu_seconds(member.process.pid) for member in members)
    return (after - before) / (time.monotonic() - begin)


def _entries(members: list[Member]) -> list[tuple[int, int]]:
    """The number of each message that a listener was given, and when, in ns."""
    happened = events([member.trace for member in members])
    return [(event.sequence, event.time_ns) for event in happened if event.kind == Kind.ENTERED]


def _entered(members: list[Member]) -> int:
    return len(_entries(members))
