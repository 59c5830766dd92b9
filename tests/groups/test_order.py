"""Messages of a key arrive in the order in which they were sent, through joins and kills."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.groups.conftest import Member, Troupe
from tests.groups.trace import Kind, acks, events, missing, overlaps, unordered
from tests.support.eventually import eventually

KEYS = 1000
PER_KEY = 100
QUEUES = 8
MEMBERS = 4
STEP = 1000  # messages, at least, from five kills to the next
SEED = int(os.environ.get("MQ_CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(32)


@pytest.mark.timeout(900)
def test_the_messages_of_a_key_keep_their_order(troupe: Troupe) -> None:
    chance = random.Random(SEED)
    trace = troupe.trace("sender")
    sender = troupe.start("key_sender", trace=trace, queues=QUEUES, keys=KEYS, count=PER_KEY)
    eventually(lambda: len(acks([trace])) > 0, troupe.failures)

    def join() -> Member:
        return troupe.consumer("ordered", ordered=True, work=0.0005, seed=chance.getrandbits(32))

    members = [join() for _ in range(MEMBERS)]

    def left() -> int:
        happened = events(troupe.traces("ordered"))
        return KEYS * PER_KEY - len({event.name for event in happened if event.kind == Kind.RETURNED})

    until = time.monotonic() + 600
    to_do = left()
    while to_do:
        for _ in range(5):
            time.sleep(chance.expovariate(1 / 0.15))
            place = chance.randrange(MEMBERS)
            members[place].kill()
            members[place] = join()
        # Where the machine is slow, all would die before they came to anything.
        before, to_do = to_do, left()
        while to_do > max(0, before - STEP):
            time.sleep(0.2)
            to_do = left()
            assert time.monotonic() < until, f"{to_do:,} messages are left"
    assert sender.wait(120)
    for member in members:
        member.leave()

    happened = events(troupe.traces("ordered"))
    entered = sum(event.kind == Kind.ENTERED for event in happened)
    print(
        f"{KEYS * PER_KEY:,} messages, {entered:,} deliveries, {len(troupe.deaths)} kills,"
        f" MQ_CHAOS_SEED={SEED}"
    )
    assert len(troupe.deaths) >= 5
    assert missing(acks([trace]), happened) == []
    assert unordered(happened) == []
    assert overlaps(happened, troupe.deaths, by_queue=True) == []
