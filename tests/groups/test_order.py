"""Messages of a key arrive in the order in which they were sent, through joins and kills."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.groups.conftest import Member, Troupe, eventually
from tests.groups.trace import Kind, acks, events, missing, overlaps, unordered

KEYS = 1000
PER_KEY = 100
QUEUES = 8
MEMBERS = 4
SEED = int(os.environ.get("MQ_CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(32)


@pytest.mark.timeout(240)
def test_the_messages_of_a_key_keep_their_order(troupe: Troupe) -> None:
    chance = random.Random(SEED)
    trace = troupe.trace("sender")
    sender = troupe.start("key_sender", trace=trace, queues=QUEUES, keys=KEYS, count=PER_KEY)
    eventually(lambda: len(acks([trace])) > 0, troupe.failures)

    def join() -> Member:
        return troupe.consumer("ordered", ordered=True, work=0.0005, seed=chance.getrandbits(32))

    members = [join() for _ in range(MEMBERS)]
    until = time.monotonic() + 120

    def consumed() -> int:
        return sum(path.stat().st_size for path in troupe.traces("ordered"))

    while len(acks([trace])) < KEYS * PER_KEY or missing(acks([trace]), events(troupe.traces("ordered"))):
        assert time.monotonic() < until, f"{consumed():,} bytes of trace, and not done"
        for _ in range(5):
            time.sleep(chance.expovariate(1 / 0.15))
            place = chance.randrange(MEMBERS)
            members[place].kill()
            members[place] = join()
    assert sender.wait(30)
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
