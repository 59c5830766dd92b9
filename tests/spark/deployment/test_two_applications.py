"""Two applications of Spark on one store at a time, one with executors of its own, one in the session of all
tests: what one writes the other reads, both write into one topic, and every message is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.spark.application import Application
from tests.spark.processes import CLUSTER, SECONDS_MAX, Process
from tests.spark.reading import send
from tests.spark.writing import staged_files, stored

pytestmark = [pytest.mark.spark, pytest.mark.rounds]

COUNT, STEP = 2000, 100


def end_of(broker: LocalBroker, topic: str) -> int:
    return sum(queue.max_offset for queue in broker.topic(topic).queues)


def is_near(broker: LocalBroker, sent: int) -> bool:
    return sent - end_of(broker, "paid") < 5 * STEP


@pytest.mark.timeout(6 * SECONDS_MAX)
def test_two_applications_on_one_store(spark: Any, directory: Path, tmp_path: Path) -> None:
    with mq.open(directory) as broker:
        for topic in ("orders", "paid", "results", "totals"):
            broker.create_topic(topic, 2)
        first = Process(
            "tests.spark.application",
            *(tmp_path / "first", directory, tmp_path / "first", CLUSTER),
            *("orders", "paid", "orders", "results"),
        )
        second = Application(spark, str(directory), tmp_path / "second", ("paid", "results"))

        def wait(condition: Callable[[], bool]) -> None:
            """As long as the first one lives; the second one goes on."""

            def holds() -> bool:
                second.go_on()
                return condition()

            first.wait(holds)

        try:
            assert first.line().startswith("runs on ")
            for at in range(0, COUNT, STEP):
                # Never far ahead, so that both applications work at the same time, batch after batch.
                wait(partial(is_near, broker, at))
                bodies = [b"%d" % number for number in range(at, at + STEP)]
                send(broker, "orders", at // STEP % 2, *bodies)
            wait(lambda: end_of(broker, "results") >= 2 * COUNT)
            first.end()
            second.end()
        finally:
            first.close()
            second.stop()
        each_once = {(b"%d" % number, way): 1 for number in range(COUNT) for way in ("orders", "paid")}
        assert Counter((message.body, message.tags) for message in stored(broker, "results")) == each_once
        totals = sorted((message.tags, message.body) for message in stored(broker, "totals"))
        assert totals == [("orders", b"%d" % COUNT), ("paid", b"%d" % COUNT)]
    assert staged_files(directory) == []
