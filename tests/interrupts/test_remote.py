"""Calls to a cluster that are cut short, also inside of Python's own modules.

An Event of the threading module keeps its own lock, which an interrupt in one of its methods leaves taken; so
does a Future.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import mq
from mq.remoting.client.broker import RemoteBroker
from tests.interrupts.calls import SIZES
from tests.interrupts.consumer_calls import GROUP, PATIENCE
from tests.support.interrupting import interrupted_at

REQUESTS = (
    "threading",
    "concurrent.futures",
    "mq.remoting.event_loop",
    "mq.remoting.client.connections.remoting",
    "mq.remoting.client.columns",
    "mq.remoting.client.queue_puller",
)
MODULES = "threading", "mq.remoting.client.arrivals", "mq.remoting.client.groups.offsets"

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("dropped_here"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.Broker]:
    with mq.open(directory, **SIZES) as local:
        local.create_topic("orders", 1)
        with (
            mq.remoting.serve(local, port=0, namesrv_port=0) as server,
            mq.open(f"rocketmq://{server.name_server}", timeout=PATIENCE) as remote,
        ):
            yield remote


def test_a_poll_that_is_interrupted_at_any_instruction_leaves_nothing_locked(broker: mq.Broker) -> None:
    producer = mq.Producer(broker, timeout=PATIENCE)
    with mq.PullConsumer(broker, GROUP, auto_commit=False) as consumer:
        consumer.subscribe("orders")
        consumer.poll(0.1)

        def poll() -> None:
            consumer.poll(0.01)  # There is nothing: it waits.
            consumer.commit()

        interrupted = 0
        for at in count():
            if interrupted_at(poll, at, MODULES) is None:
                interrupted += 1
            elif at > 50:  # With fewer its time was over at once, as on a busy machine.
                break
        assert interrupted
        producer.send(mq.Message("orders", b"the last"))
        while not any(message.body == b"the last" for message in consumer.poll(PATIENCE)):
            pass
        consumer.commit()
    assert broker.group(GROUP).lag("orders") == 0


def reads_names(remote: mq.Broker) -> object:
    return remote.topics()


def reads_a_queue(remote: mq.Broker) -> object:
    return remote.puller(remote.readable("orders")[0])(0, 1, 1 << 20, None, 1.0)


def reads_ends(remote: mq.Broker) -> object:
    assert isinstance(remote, RemoteBroker)
    return remote.scans().limits(remote.readable("orders"))


@pytest.mark.parametrize("call", [reads_names, reads_a_queue, reads_ends])
def test_after_a_request_that_is_interrupted_at_any_instruction_the_next_is_answered(
    directory: Path, call: Callable[[mq.Broker], object]
) -> None:
    with mq.open(directory, **SIZES) as local:
        local.create_topic("orders", 1)
        mq.Producer(local).send(mq.Message("orders", b"one"))
        with (
            mq.remoting.serve(local, port=0, namesrv_port=0) as server,
            mq.open(f"rocketmq://{server.name_server}", timeout=PATIENCE) as remote,
        ):
            call(remote)
            for at in count():
                if interrupted_at(partial(call, remote), at, REQUESTS) is not None:
                    break
                call(remote)
            assert at > 50
