"""A process in a frozen cgroup: what it owns passes on, and what it holds is named, with what it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.shared.process_state import ProcessKind, process_state
from tests.support.eventually import eventually
from tests.support.insides import leader_pid
from tests.support.processes.freezer import HIERARCHIES, frozen
from tests.support.store.peer import Peer
from tests.support.store.small_store import SMALL

LEASE = 6.0  # Far from what this process, which runs, may stand still for.
LEASES: dict[str, Any] = {"duties_lease": LEASE, "queue_lease": LEASE}
SAID = "which is stopped by the freezer of its cgroup: thaw its container, or end it"
WAYS = {
    **{name: (hierarchy, False) for name, hierarchy in HIERARCHIES.items()},
    "fake": (HIERARCHIES["v2"], True),
}


def owners(broker: LocalBroker) -> list[int]:
    return [state.owner.pid if state.owner else 0 for state in broker.group("readers").states("orders")]


def polled(consumer: mq.PullConsumer, count: int) -> bool:
    consumer.poll(0)
    return len(consumer.assignment()) == count


@pytest.mark.parametrize("way", WAYS)
def test_the_duties_and_queues_of_a_frozen_process_pass_on(
    way: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hierarchy, fake = WAYS[way]
    with Peer(directory, **LEASES) as peer:
        peer.do("broker.create_topic('orders', 2); consumer = mq.PullConsumer(broker, 'readers')")
        peer.do("consumer.subscribe('orders'); consumer.poll(0)")
        with mq.open(directory, **SMALL, **LEASES) as broker, mq.PullConsumer(broker, "readers") as successor:
            eventually(lambda: leader_pid(broker) == peer.pid, lambda: leader_pid(broker))
            assert owners(broker) == [peer.pid] * 2
            with frozen(peer.pid, hierarchy, tmp_path / "fake", monkeypatch, fake=fake):
                assert process_state(peer.pid).kind is ProcessKind.FROZEN
                for state in broker.group("readers").states("orders"):
                    assert SAID in state.reason
                successor.subscribe("orders")
                eventually(lambda: polled(successor, 2), lambda: owners(broker))
                eventually(lambda: leader_pid(broker) == os.getpid(), lambda: leader_pid(broker))
                broker.topic("orders").send(b"later", delay_ms=1)
                eventually(lambda: bool(successor.poll(0)), lambda: "it is not delivered")
            # It finds out that it has neither, and gets its share again.
            eventually(
                lambda: polled(successor, 1) & bool(peer.ask("consumer.poll(0) or consumer.assignment()")),
                lambda: owners(broker),
            )
            assert leader_pid(broker) == os.getpid()
            peer.do("consumer.close()")


@pytest.mark.parametrize("way", WAYS)
def test_an_error_for_a_lock_of_a_frozen_process_says_that_it_is_frozen(
    way: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hierarchy, fake = WAYS[way]
    with mq.open(directory, **SMALL) as broker, Peer(directory) as peer:
        topic = broker.create_topic("orders", 1)
        producer = mq.Producer(broker, timeout=0.1)
        peer.do("from mq.store.shared.lock_guards import file_lock")
        peer.do("assert lib.mq_control_lock(control_of(broker).handle, lib.MQ_LOCK_APPEND, 10000) >= 0")
        with frozen(peer.pid, hierarchy, tmp_path / "fake", monkeypatch, fake=fake):
            with pytest.raises(mq.StoreLocked, match=SAID) as caught:
                producer.send(mq.Message("orders", b"late"))
            assert caught.value.pid == peer.pid
        peer.do("lib.mq_control_unlock(control_of(broker).handle, lib.MQ_LOCK_APPEND)")
        topic.send(b"in time")
        assert topic.queues[0].max_offset == 1
