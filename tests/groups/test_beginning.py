"""Where a group that consumes from "last" begins: at the end of what there was when it appeared, and with the
first message of what was made later, whoever has closed, died or come anew in between."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.store import Store
from tests.support import assigned
from tests.support.insides import groups_of
from tests.support.joining import QUEUES, join
from tests.support.recording_listener import PATIENCE, Heard
from tests.support.store.peer import Peer
from tests.support.store.small_store import open_small, send

GROUP = "billing"
# What a peer runs: a consumer that starts, whether or not there is something to consume.
START = (
    "consumer = mq.PushConsumer(broker, 'billing', consume_from='last', **{})\n"
    "consumer.subscribe('orders', listener=print)\n"
    "consumer.start()\n"
)


BROADCASTING = {"model": "broadcasting", "client_id": "box"}


class Run:
    """A consumer of orders for a while: what it was given until it was closed, `until` so many."""

    def __init__(self, kind: str) -> None:
        self._take = getattr(self, f"_{kind}")

    def __call__(
        self, broker: LocalBroker, until: int = 0, meanwhile: Callable[[], object] = lambda: None, **more: Any
    ) -> list[bytes]:
        return list(self._take(broker, until, meanwhile, {"consume_from": "last", **more}))

    def _push(
        self, broker: LocalBroker, until: int, meanwhile: Callable[[], object], options: Any
    ) -> Sequence[bytes]:
        heard = Heard()
        with mq.PushConsumer(broker, GROUP, threads=1, **options) as consumer:
            consumer.subscribe("orders", listener=heard)
            consumer.start()
            meanwhile()
            heard.wait(until)
        return heard.bodies

    def _broadcasting(
        self, broker: LocalBroker, until: int, meanwhile: Callable[[], object], options: Any
    ) -> Sequence[bytes]:
        return self._push(broker, until, meanwhile, {**BROADCASTING, **options})

    def _pull(
        self, broker: LocalBroker, until: int, meanwhile: Callable[[], object], options: Any
    ) -> Sequence[bytes]:
        with mq.PullConsumer(broker, GROUP, **options) as consumer:
            consumer.subscribe("orders")
            found = consumer.poll(0)
            meanwhile()
            while len(found) < until:
                messages = consumer.poll(PATIENCE)
                assert messages
                found += messages
        return [message.body for message in found]

    def _aio(
        self, broker: LocalBroker, until: int, meanwhile: Callable[[], object], options: Any
    ) -> Sequence[bytes]:
        async def consume() -> list[bytes]:
            async with mq.aio.Consumer(broker, GROUP, **options) as consumer:
                consumer.subscribe("orders")
                found = await consumer.poll(0)
                meanwhile()
                while len(found) < until:
                    messages = await consumer.poll(PATIENCE)
                    assert messages
                    found += messages
            return [message.body for message in found]

        return asyncio.run(consume())


@pytest.fixture(params=["push", "pull", "aio", "broadcasting"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.param)


def filled(broker: LocalBroker, *words: bytes, queue_id: int = 0) -> None:
    for word in words:
        send(broker, "orders", queue_id, word)


def remake(broker: LocalBroker) -> None:
    broker.delete_topic("orders")
    broker.create_topic("orders", 1)


def test_a_topic_made_while_it_ran_and_filled_while_it_was_away(directory: Path, run: Run) -> None:
    with open_small(directory) as broker:
        assert run(broker, meanwhile=lambda: broker.create_topic("orders", 1)) == []
        filled(broker, b"a", b"b")
        assert run(broker, 2) == [b"a", b"b"]
        filled(broker, b"c")
        assert run(broker, 1) == [b"c"]


def test_a_topic_made_while_it_was_away(directory: Path, run: Run) -> None:
    with open_small(directory) as broker:
        assert run(broker) == []
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"a", b"b")
        assert run(broker, 2) == [b"a", b"b"]


def test_a_group_is_listed_once_there_is_a_topic_that_it_awaits(directory: Path) -> None:
    with open_small(directory) as broker:
        join(broker, consume_from="last").leave()
        assert broker.groups() == []
        broker.create_topic("orders", 1)
        filled(broker, b"a", b"b")
        assert broker.groups() == [GROUP]
        assert broker.group(GROUP).topics() == ["orders"]
        assert broker.group(GROUP).lag("orders") == 2


@pytest.mark.parametrize("when", ["live", "away"])
def test_a_topic_made_anew(directory: Path, run: Run, when: str) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        if when == "live":
            assert run(broker, meanwhile=lambda: remake(broker)) == []
        else:
            assert run(broker) == []
            remake(broker)
        filled(broker, b"a", b"b")
        assert broker.group(GROUP).offsets("orders") == {}
        assert run(broker, 2) == [b"a", b"b"]


def test_a_topic_that_is_deleted_while_offsets_are_saved(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader does that every 5 s."""
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert run(broker) == []
        usual = Store.delete_queues

        def saves_first(store: Store, topic: str) -> bool:
            groups_of(broker).save()
            return usual(store, topic)

        monkeypatch.setattr(Store, "delete_queues", saves_first)
        remake(broker)
        filled(broker, b"a", b"b")
        assert run(broker, 2) == [b"a", b"b"]


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_process_that_dies_while_it_deletes_a_topic(directory: Path, run: Run, step: str) -> None:
    with open_small(directory) as broker, Peer(directory) as peer:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert run(broker) == []
        peer.do(
            "import signal; from mq.store.store import Store\n"
            "usual = Store.delete_queues\n"
            "def dies(*given):\n"
            f"    {step!r} == 'before' or usual(*given)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "Store.delete_queues = dies"
        )
        with pytest.raises(EOFError):
            peer.do("broker.delete_topic('orders')")
        groups_of(broker).save()
        broker.create_topic("orders", 1)
        filled(broker, b"a", b"b")
        heard = run(broker, 2)
        assert heard[-2:] == [b"a", b"b"]


def test_a_topic_that_may_not_be_read_yet_begins_at_its_end(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1, perm="w")
        filled(broker, b"before")
        join(broker, consume_from="last").leave()
        broker.create_topic("orders", 1, perm="rw")
        member = join(broker, consume_from="last")
        assert assigned.committed(broker, GROUP, QUEUES[0]) == 1
        member.leave()


def test_a_topic_that_was_there_begins_at_its_end(directory: Path, run: Run) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert run(broker) == []
        filled(broker, b"a")
        assert run(broker, 1) == [b"a"]


@pytest.mark.parametrize("kind", ["push", "broadcasting"])
def test_a_killed_consumer_of_a_topic_that_was_made_meanwhile(directory: Path, kind: str) -> None:
    with open_small(directory) as broker, Peer(directory) as peer:
        peer.do(START.format(BROADCASTING if kind == "broadcasting" else {}))
        broker.create_topic("orders", 1)
        peer.kill()
        filled(broker, b"a", b"b")
        assert Run(kind)(broker, 2) == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["push", "broadcasting"])
def test_a_consumer_that_is_killed_right_after_its_start(directory: Path, kind: str) -> None:
    with open_small(directory) as broker, Peer(directory) as peer:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        peer.do(START.format(BROADCASTING if kind == "broadcasting" else {}))
        peer.kill()
        filled(broker, b"a", b"b")
        assert Run(kind)(broker, 2) == [b"a", b"b"]


def test_a_topic_that_a_broadcasting_consumer_adds_begins_once(directory: Path) -> None:
    add = "consumer.subscribe('events', listener=print)\n"
    with open_small(directory) as broker, Peer(directory) as peer:
        broker.create_topic("orders", 1)
        broker.create_topic("events", 1)
        peer.do(START.format(BROADCASTING).replace("orders", "events") + add.replace("events", "orders"))
        peer.kill()
        filled(broker, b"a", b"b")
        assert Run("broadcasting")(broker, 2) == [b"a", b"b"]


def test_a_second_member_does_not_move_the_beginning(directory: Path) -> None:
    with open_small(directory) as broker:
        first = join(broker, "first", consume_from="last")
        broker.create_topic("orders", 1)
        filled(broker, b"a", b"b")
        join(broker, "second", consume_from="last").leave()
        assert assigned.committed(broker, GROUP, QUEUES[0]) == 0
        first.leave()


def test_what_it_awaits_is_on_disk_as_rocketmq_keeps_it(directory: Path) -> None:
    offsets = directory / "config" / "consumerOffset.json"
    with open_small(directory) as broker:
        join(broker, consume_from="last")
        assert json.loads(offsets.read_text())["offsetTable"] == {"orders@billing": {}}
        join(broker, "another", consume_from="last")
    shutil.rmtree(directory / "mq" / "groups")
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"a", b"b")
        assert Run("push")(broker, 2) == [b"a", b"b"]
    assert json.loads(offsets.read_text())["offsetTable"]["orders@billing"] == {"0": 2}


@pytest.mark.parametrize("consume_from", ["first", 0])
def test_what_begins_elsewhere_awaits_nothing(directory: Path, consume_from: str | int) -> None:
    with open_small(directory) as broker:
        join(broker, consume_from=consume_from).leave()
    assert not (directory / "config" / "consumerOffset.json").exists()


def test_a_deleted_group_awaits_nothing(directory: Path, run: Run) -> None:
    with open_small(directory) as broker:
        assert run(broker) == []
        broker.group(GROUP).delete()
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert run(broker) == []
        filled(broker, b"a")
        assert run(broker, 1) == [b"a"]


def test_a_topic_that_it_awaits_is_not_shrunk(directory: Path) -> None:
    with open_small(directory) as broker:
        join(broker, consume_from="last").leave()
        broker.create_topic("orders", 2)
        filled(broker, b"a", queue_id=1)
        with pytest.raises(mq.NotPermitted, match="the group billing"):
            broker.create_topic("orders", 1)


# Queues that a consumer is told to have.


def consume_assigned(broker: LocalBroker, *queue_ids: int, **options: Any) -> list[bytes]:
    with mq.PullConsumer(broker, GROUP, consume_from="last", **options) as consumer:
        consumer.assign([QUEUES[queue_id] for queue_id in queue_ids])
        found = []
        while messages := consumer.poll(0):
            found += [message.body for message in messages]
        return found


@pytest.mark.parametrize("auto_commit", [True, False])
def test_assigned_queues_begin_once(directory: Path, auto_commit: bool) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert consume_assigned(broker, 0, auto_commit=auto_commit) == []
        filled(broker, b"a", b"b")
        assert consume_assigned(broker, 0, auto_commit=auto_commit) == [b"a", b"b"]


def test_assigned_queues_of_asyncio_begin_once(directory: Path) -> None:
    async def consume(broker: LocalBroker) -> list[bytes]:
        async with mq.aio.Consumer(broker, GROUP, consume_from="last") as consumer:
            consumer.assign([QUEUES[0]])
            return [message.body for message in await consumer.poll(0)]

    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert asyncio.run(consume(broker)) == []
        filled(broker, b"a", b"b")
        assert asyncio.run(consume(broker)) == [b"a", b"b"]


def test_an_assigned_queue_that_was_made_later_begins_with_its_first_message(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert consume_assigned(broker, 0) == []
        broker.create_topic("orders", 2)
        filled(broker, b"a", queue_id=1)
        assert consume_assigned(broker, 0, 1) == [b"a"]


def test_an_assigned_queue_of_a_topic_made_anew(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
        assert consume_assigned(broker, 0) == []
        remake(broker)
        filled(broker, b"a", b"b")
        assert consume_assigned(broker, 0) == [b"a", b"b"]


def test_who_may_only_read_begins_at_the_end_each_time(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        filled(broker, b"before")
    for _ in range(2):
        with open_small(directory, read_only=True) as broker:
            assert consume_assigned(broker, 0, auto_commit=False) == []
    assert not (directory / "mq" / "groups").exists()
