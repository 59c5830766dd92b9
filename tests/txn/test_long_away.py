"""A directory that no process opened for longer than messages are kept, with a transaction that is undecided.

The process that opens it then deletes expired messages, but must not do that first.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.transactions import TransactionState, Undecided
from mq.broker.local import LocalBroker
from mq.store.log.commitlog import segment_files
from tests.support.eventually import eventually

KEPT_SECONDS = 1.5
PATIENCE = 60.0
# No round comes by itself while this lasts.
OPTIONS: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 64,
    "index_slot_count": 64,
    "index_unit_count": 1024,
    "transaction_timeout": 0.001,
    "transaction_check_interval": 3600.0,
    "retention_hours": KEPT_SECONDS / 3600,
}


def undecided(broker: LocalBroker) -> Undecided:
    (found,) = broker.transactions.undecided()
    return found


def left_behind(directory: Path, later: float) -> mq.SendResult:
    """A half message, in a file of the log after which others came; and the machine was off."""
    with mq.open(directory, duties=False, **OPTIONS) as broker:  # They would delete the first file, if late.
        producer = mq.TransactionProducer(broker, "writers", lambda _message: TransactionState.UNKNOWN)
        half = producer.begin(mq.Message("orders", b"undecided")).result
        producer.close()
        topic = broker.create_topic("noise", 1)
        for _ in range(4):
            topic.send(os.urandom(1 << 19))  # Which cannot be compressed.
    time.sleep(later)
    tomorrow = time.time() + 86_400
    for path in segment_files(directory / "commitlog"):
        os.utime(path, (tomorrow, tomorrow))  # Only the test decides when they are old.
    for name in ("control", "transactions"):
        (directory / "mq" / name).unlink()
    return half


def delete_what_is_old(broker: LocalBroker) -> None:
    """Every file of the log but those of the last while."""
    first, *_ = files = segment_files(broker.path / "commitlog")
    end = int(undecided(broker).message.offset_msg_id[16:], 16)
    for path in files:
        if int(path.name) + OPTIONS["commitlog_file_size"] <= end:
            os.utime(path, (0, 0))
    broker.expire(retention_hours=1)
    assert not first.exists()


@pytest.mark.parametrize("later", [0.6, 1.0], ids=["soon", "already"])
def test_what_retention_comes_to_is_stored_again_before_that(tmp_path: Path, later: float) -> None:
    directory, asked = tmp_path / "store", threading.Event()
    first = left_behind(directory, KEPT_SECONDS * later)
    with mq.open(directory, **OPTIONS) as broker:
        eventually(
            lambda: undecided(broker).message.offset_msg_id != first.offset_msg_id,
            lambda: "it was not checked",
        )
        delete_what_is_old(broker)
        assert undecided(broker).message.body == b"undecided"
        assert not undecided(broker).given_up
    with mq.open(
        directory,
        **{**OPTIONS, "retention_hours": 72, "transaction_check_interval": 0.1},
        transaction_check_max=1000,  # The usual fifteen may be over before a slow machine has answered.
        change_settings=True,
    ) as broker:

        def check(_message: mq.MessageExt) -> TransactionState:
            asked.set()
            return TransactionState.COMMIT

        with mq.TransactionProducer(broker, "writers", check):
            assert asked.wait(PATIENCE)
            eventually(lambda: not broker.transactions.undecided(), lambda: "it was not committed")
        queues = broker.topic("orders").queues
        assert [message.body for queue in queues for message in queue.read(0).messages] == [b"undecided"]


def test_one_that_is_older_than_messages_are_kept_is_checked_as_often_when_it_is_resumed(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Rounds go on whether a producer answers or not: the interval is what it has for it.
    options = {**OPTIONS, "transaction_timeout": 0.05, "transaction_check_interval": 1.0}
    with mq.open(directory, transaction_check_max=3, **options) as broker:
        broker.create_topic("orders", 1)
        with mq.TransactionProducer(broker, "payers", lambda _: mq.TransactionState.UNKNOWN) as producer:
            sent = producer.send(mq.Message("orders", b"x"), lambda *_: mq.TransactionState.UNKNOWN)
            eventually(lambda: [each.given_up for each in broker.transactions.undecided()] == [True], str)
        assert f"transaction {sent.msg_id} of group payers, for topic orders, is given up" in caplog.text
        time.sleep(KEPT_SECONDS)
        states = iter([mq.TransactionState.UNKNOWN] * 2)
        with mq.TransactionProducer(broker, "payers", lambda _: next(states, mq.TransactionState.COMMIT)):
            broker.transactions.resume(sent.msg_id)
            (queue,) = broker.topic("orders").queues
            eventually(lambda: queue.max_offset == 1, broker.transactions.undecided)
