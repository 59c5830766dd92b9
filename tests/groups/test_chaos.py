"""Consumers of several groups come, leave and are killed, over and over, while messages are sent.

What counts is what they wrote down, not a counter: every message that was acknowledged is consumed
by every group; what came twice was in the hands of a process that was killed, and not committed; and no two
are ever at the same thing. MQ_CHAOS_SECONDS, MQ_CHAOS_SEED; MQ_HALTS=1 has them stopped and interrupted, too.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from tests.groups.conftest import Member, Troupe
from tests.groups.trace import Kind, acks, events, looks, missing, overlaps, repeats
from tests.support.eventually import eventually
from tests.support.processes.halts import halts

SECONDS = float(os.environ.get("MQ_CHAOS_SECONDS", "40"))
SEED = int(os.environ.get("MQ_CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(32)
INTERVAL = 0.15  # s, on average, between two events
QUEUES = 8
MEMBERS = 4
Groups = dict[str, dict[str, Any]]
PUSH: Groups = {
    "ordered": {"ordered": True, "work": 0.004},
    "single": {"work": 0.02, "fails": 97},
    "batches": {"batch_size": 16, "work": 0.02},
}
PULL: Groups = {
    "itself": {"actor": "puller", "work": 0.02},
    "told": {"actor": "puller", "auto_commit": False, "work": 0.02},
}


@pytest.mark.rounds
@pytest.mark.timeout(600 + SECONDS * 4)
def test_members_come_leave_and_are_killed(troupe: Troupe) -> None:
    chaos(troupe, PUSH, SECONDS)


@pytest.mark.rounds
@pytest.mark.timeout(600 + SECONDS * 2)
def test_pull_consumers_come_leave_and_are_killed(troupe: Troupe) -> None:
    chaos(troupe, PULL, SECONDS / 6)


def chaos(troupe: Troupe, groups: Groups, seconds: float) -> None:
    chance = random.Random(SEED)
    print(f"{seconds:g} s of chaos, MQ_CHAOS_SEED={SEED}")
    promised = [troupe.trace(f"sender{run}") for run in range(2)]
    senders = [
        troupe.start("sender", trace=trace, run=run, queues=QUEUES, pause=0.01, seed=SEED + run)
        for run, trace in enumerate(promised)
    ]
    eventually(lambda: all(acks([trace]) for trace in promised), troupe.failures)
    observed = troupe.trace("observed")
    observer = troupe.start("observer", trace=observed, groups=list(groups))

    def join(group: str) -> Member:
        return troupe.consumer(group, **groups[group], seed=chance.getrandbits(32))

    places: dict[tuple[str, int], Member | None] = {
        (group, place): join(group) for group in groups for place in range(MEMBERS)
    }
    leaves = 0
    until = time.monotonic() + seconds
    with halts(troupe.living, SEED):
        while time.monotonic() < until:
            time.sleep(chance.expovariate(1 / INTERVAL))
            place = chance.choice(list(places))
            member = places[place]
            if member is None:
                places[place] = join(place[0])
                continue
            if chance.random() < 0.6:
                member.kill()
            else:
                member.leave()
                leaves += 1
            places[place] = join(place[0]) if chance.random() < 0.5 else None
    for place, member in places.items():
        if member is None:
            places[place] = join(place[0])
    for sender in senders:
        troupe.end(sender)
    sent = acks(promised)

    def unconsumed() -> list[str]:
        return [text for group in groups for text in missing(sent, events(troupe.traces(group)))]

    eventually(lambda: not unconsumed(), unconsumed, 300.0, pause=0.5)
    for member in places.values():
        assert member is not None
        member.leave()
    troupe.end(observer)

    print(f"  {len(sent):,} messages, {len(troupe.deaths)} kills, {leaves} leaves")
    seen = looks(observed)
    for number, group in enumerate(groups):
        happened = events(troupe.traces(group))
        again, wrong = repeats(happened, troupe.deaths, [look for look in seen if look.group == number])
        entered = sum(event.kind == Kind.ENTERED for event in happened)
        failed = sum(event.kind == Kind.RAISED for event in happened)
        print(f"  {group}: {entered:,} deliveries, {again} of them again, {failed} failed")
        assert wrong == []
        assert overlaps(happened, troupe.deaths, by_queue=group == "ordered") == []
        assert missing(sent, happened) == []
        assert failed > 0 or "fails" not in groups[group]
