"""The log is older than what says how far transactions have ended: what is undecided in it is asked about."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.support.eventually import eventually
from tests.support.store.restored import DERIVED, put_log_back
from tests.txn.half_messages import COMMIT, OFTEN, SIZES, answer_all, prepared, records, stored

OPTIONS: dict[str, Any] = {**SIZES, **OFTEN}
HALVES, OPS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def is_all_done(broker: LocalBroker) -> bool:
    """Whether all half messages, and the op records, are counted as handled."""
    offsets = broker.group("CID_RMQ_SYS_TRANS").offsets
    ends = {topic: broker.topic(topic).queues[0].max_offset for topic in (HALVES, OPS)}
    return all(list(offsets(topic).values()) == [end] for topic, end in ends.items())


@pytest.mark.parametrize("deleted", DERIVED.values(), ids=DERIVED)
def test_a_half_message_in_a_log_that_was_restored_is_asked_about(
    tmp_path: Path, directory: Path, deleted: tuple[str, ...]
) -> None:
    with mq.open(directory, **OPTIONS) as broker:
        broker.create_topic("orders", 1)
        _, place = prepared(broker, mq.Message("orders", b"ended before"))
        # Op records tell of the first and the newest of these copies, and of none between.
        eventually(lambda: len(records(broker, HALVES)) > place + 3, lambda: "it is not asked about")
        answer_all(broker, COMMIT)
    with mq.open(directory, **OPTIONS) as broker:
        eventually(lambda: len(records(broker, OPS)) > 0, lambda: "no op record")
        told = len(records(broker, OPS))
        prepared(broker, mq.Message("orders", b"undecided"))
    shutil.copytree(directory, tmp_path / "backup")
    with mq.open(directory, **OPTIONS) as broker:
        answer_all(broker, COMMIT)
        assert stored(broker) == [b"ended before", b"undecided"]
        eventually(lambda: len(records(broker, OPS)) > told, lambda: "no op record")
        eventually(lambda: is_all_done(broker), lambda: "not all is handled")
    put_log_back(directory, tmp_path / "backup", deleted)
    with mq.open(directory, **OPTIONS) as broker:
        assert [each.message.body for each in broker.transactions.undecided()] == [b"undecided"]
        answer_all(broker, COMMIT)
        assert stored(broker) == [b"ended before", b"undecided"]
    shutil.rmtree(directory)  # Its checkpoint knows of later messages.
