"""A server that no longer relays replies leaves no pull held, whatever comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import mq
from mq.remoting.server.holding import Held
from mq.remoting.server.options import REPLY_TOPIC
from mq.remoting.server.reply_relay import ReplyRelay
from tests.support.memory.broker import MemoryBroker


class Later:
    """The loop and the workers, which do what they were given when they are told to."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        self._calls.append(lambda: call(*arguments))

    def submit(self, _: object, call: Callable[[], object]) -> None:
        self._calls.append(call)

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._calls.pop(0)()

    @property
    def is_empty(self) -> bool:
        return not self._calls


class HeldPulls:
    def __init__(self) -> None:
        self.held: list[Held] = []

    def hold(self, held: Held) -> None:
        held.holds.add(held)
        self.held.append(held)

    def drop_all(self, holds: set[object]) -> None:
        self.held = [each for each in self.held if each.holds is not holds]

    def wake(self) -> None:
        (held,) = self.held
        self.held.clear()
        held.again(False)


class Relay:
    def __init__(self, store: mq.Broker) -> None:
        self.loop, self.workers, self.pulls = Later(), Later(), HeldPulls()
        self.relay = ReplyRelay(
            store, cast(Any, self.loop), cast(Any, self.pulls), cast(Any, None), cast(Any, self.workers)
        )


@pytest.fixture
def store() -> Iterator[mq.Broker]:
    with MemoryBroker() as store:
        yield store


@pytest.fixture
def listening(store: mq.Broker) -> Relay:
    relay = Relay(store)
    relay.relay.listen()
    relay.loop.run(1)
    assert len(relay.pulls.held) == 1
    return relay


def test_queues_that_the_topic_gets_later_are_read_from_their_beginning(
    store: mq.Broker, listening: Relay
) -> None:
    store.create_topic(REPLY_TOPIC, 3)
    listening.relay.listen()
    listening.loop.run(2)
    assert sorted(held.position[0].queue_id for held in listening.pulls.held if held.position) == [0, 1, 2]
    listening.relay.listen()
    assert listening.loop.is_empty


def test_one_that_reads_again_holds_again(listening: Relay) -> None:
    listening.pulls.wake()
    listening.workers.run(1)
    listening.loop.run(1)
    assert len(listening.pulls.held) == 1


def test_one_closed_while_it_reads_holds_nothing(store: mq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic(REPLY_TOPIC, 1)
    (queue,) = store.readable(REPLY_TOPIC)
    relay, puller = Relay(store), store.puller(queue)

    def closing(*arguments: Any) -> mq.PullResult:
        relay.relay.close()
        return puller(*arguments)

    monkeypatch.setattr(store, "puller", lambda _: closing)
    relay.relay.listen()
    relay.loop.run(1)
    relay.pulls.wake()
    relay.workers.run(1)
    relay.loop.run(2)
    assert relay.loop.is_empty
    assert not relay.pulls.held


def test_one_closed_before_it_read_holds_nothing(listening: Relay) -> None:
    listening.pulls.wake()
    listening.relay.close()
    listening.workers.run(1)
    listening.loop.run(1)
    assert listening.loop.is_empty
    assert not listening.pulls.held


def test_a_queue_that_was_deleted_does_not_end_what_began_after_it(store: mq.Broker) -> None:
    """Of two queues, each finds out for itself that it was deleted, the second after a new request."""
    store.create_topic(REPLY_TOPIC, 2)
    relay = Relay(store)
    relay.relay.listen()
    relay.loop.run(2)
    first, second = relay.pulls.held
    store.delete_topic(REPLY_TOPIC)
    first.again(False)
    relay.workers.run(1)
    relay.loop.run(1)
    assert not relay.pulls.held
    relay.relay.listen()
    relay.loop.run(1)
    second.again(False)
    relay.workers.run(1)
    assert relay.loop.is_empty
    assert len(relay.pulls.held) == 1
    assert store.consumer_groups.members("CID_RMQ_SYS_SERVERS_OF_REPLIES")
