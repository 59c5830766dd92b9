"""A consumer dies between handing a message back and committing: it comes again, and once more as a retry."""

from __future__ import annotations

import struct

import pytest

import mq
from tests.groups.conftest import Troupe
from tests.groups.trace import Event, Kind, events
from tests.support.eventually import eventually
from tests.support.store.sizes import SIZES


@pytest.mark.timeout(600)
def test_a_death_between_hand_back_and_commit_loses_nothing(troupe: Troupe) -> None:
    with mq.open(troupe.root, **SIZES) as broker, mq.Producer(broker) as producer:
        broker.create_topic("events", 1)
        for number in range(3):
            producer.send(mq.Message("events", struct.pack(">II", 0, number)))
    victim = troupe.consumer("frail", "dies_after_hand_back")
    assert victim.process.wait(240), troupe.failures()
    troupe.forget(victim.process)
    heir = troupe.consumer("frail")

    def returned() -> list[Event]:
        return [event for event in events([heir.trace]) if event.kind == Kind.RETURNED]

    handed_back = {event.sequence for event in events([victim.trace])}
    assert handed_back
    # The group's offset says that none of them is done: all come, and what was handed back comes once more.
    eventually(
        lambda: (
            {event.sequence for event in returned() if not event.attempt} == {0, 1, 2}
            and any(event.attempt for event in returned())
        ),
        returned,
    )
    heir.leave()
    again = [event for event in returned() if event.attempt]
    first = [event for event in returned() if not event.attempt]
    assert sorted(event.sequence for event in first) == [0, 1, 2]
    assert {event.sequence for event in again} <= handed_back
    assert all(event.attempt == 1 and event.queue == -1 for event in again)
