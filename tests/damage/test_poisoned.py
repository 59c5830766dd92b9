"""A store whose flush has failed takes nothing more, and makes nothing for what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.native import lib
from tests.damage.filling import ways_to_send
from tests.support import assigned
from tests.support.insides import control_of, store_of


@pytest.mark.parametrize("sync", ["sync", "async"])
def test_a_first_send_to_a_poisoned_store_leaves_no_topic_behind(tmp_path: Path, sync: Any) -> None:
    with (
        mq.open(tmp_path / "store", duties=False, flush=sync) as broker,
        mq.Producer(broker, retries=0, dedup_window=60) as producer,
    ):
        ways = ways_to_send(broker, producer)
        # So that what belongs to no single topic is there.
        for way in ("send", "key", "prepare"):
            ways[way](mq.Message("older", b"x"))
        found = broker.query("older", "older", count_max=10)
        assigned.send_back(broker, found[0], "others", delay_level=-1)
        there = broker.topics()
        control_of(broker).set(lib.MQ_POISONED_WORD, 1)
        for way, send in ways.items():
            with pytest.raises(mq.StorePoisoned):
                send(mq.Message(f"fresh-{way}", b"x"))
            assert broker.topics() == there, way
        for level in (0, 1, -1):
            with pytest.raises(mq.StorePoisoned):
                assigned.send_back(broker, found[0], "readers", delay_level=level)
            assert broker.topics() == there
        with pytest.raises(mq.StorePoisoned):
            broker.redrive("others")
        assert broker.topics() == there
        with mq.open(broker.path, duties=False) as other:
            assert other.topics() == there == ["%DLQ%others", "older"]
        assert {topic for topic, _ in store_of(broker).queues()} == {*there, "RMQ_SYS_TRANS_HALF_TOPIC"}
