"""Consumers that wait cost next to nothing, and are there at once when a message comes."""

from __future__ import annotations

import ctypes
import os
import struct
import time

import pytest

import mq
from tests.groups.conftest import Member, Troupe
from tests.groups.trace import Kind, events, percentile
from tests.support.eventually import eventually
from tests.support.store.sizes import SIZES

PROCESSES = 20
PER_PROCESS = 5
SECONDS = 5.0
SHARE_MAX = 0.01  # of one core, all together
WAKE_SECONDS_MAX = 0.1  # p50; it is milliseconds on a machine at rest


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have had of the processors, those that ended too."""
    clock = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if failed:
        raise OSError(failed, os.strerror(failed), pid)
    return time.clock_gettime(clock.value)


@pytest.mark.timeout(400)
def test_a_hundred_waiting_consumers(troupe: Troupe) -> None:
    with mq.open(troupe.root, **SIZES) as broker:
        broker.create_topic("events", PROCESSES)
    members: list[Member] = []
    for number in range(PROCESSES):
        ready = troupe.trace(f"ready{number}")
        members.append(troupe.consumer("waiters", "waiters", count=PER_PROCESS, ready=ready))
    eventually(lambda: len(list(troupe.trace("").glob("ready*"))) == PROCESSES, troupe.failures)
    # What starting left behind is done.
    eventually(lambda: _share(members, 1.0) < SHARE_MAX, lambda: "an idle consumer uses the processor")
    share = _share(members, SECONDS)

    sent: dict[int, int] = {}
    with mq.open(troupe.root, **SIZES) as broker, mq.Producer(broker) as producer:
        for number in range(PROCESSES):
            body = struct.pack(">II", 0, number).ljust(100)
            queue = mq.MessageQueue("events", broker.name, number)
            sent[number] = time.monotonic_ns()
            producer.send(mq.Message("events", body), queue=queue)
            time.sleep(0.02)
        total = PROCESSES * PER_PROCESS
        eventually(lambda: _entered(members) >= total, lambda: f"{_entered(members)} of {total} arrived")
    happened = [event for event in events([member.trace for member in members]) if event.kind == Kind.ENTERED]
    took = [(event.time_ns - sent[event.sequence]) / 1e9 for event in happened]
    assert len(took) == total
    print(
        f"{total} waiting consumers of {PROCESSES} processes: {share * 100:.2f} % of a core; woken after"
        f" p50 {percentile(took, 0.5) * 1e3:.2f} ms, max {max(took) * 1e3:.1f} ms"
    )
    assert share < SHARE_MAX
    assert percentile(took, 0.5) < WAKE_SECONDS_MAX


def _share(members: list[Member], seconds: float) -> float:
    """Of one core, all together, in so many seconds or a few more."""
    begin, before = time.monotonic(), sum(cpu_seconds(member.process.pid) for member in members)
    time.sleep(seconds)
    after = sum(cpu_seconds(member.process.pid) for member in members)
    return (after - before) / (time.monotonic() - begin)


def _entered(members: list[Member]) -> int:
    return sum(event.kind == Kind.ENTERED for event in events([member.trace for member in members]))
