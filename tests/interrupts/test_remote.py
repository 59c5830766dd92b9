"""A consumer of a cluster whose polls and commits are cut short, also inside of Python's threading module.

An Event of that module keeps its own lock, which an interrupt in one of its methods leaves taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import mq
from tests.interrupts.calls import SIZES
from tests.interrupts.consumer_calls import GROUP, PATIENCE
from tests.support.interrupting import interrupted_at

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
