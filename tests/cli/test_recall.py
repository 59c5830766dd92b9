"""`recall`: a message that waits is taken back, once and for all."""

from __future__ import annotations

from pathlib import Path

import mq
from tests.cli.conftest import Run


def test_a_message_is_recalled(run: Run) -> None:
    sent = run("send", "orders", "x", "--delay-ms", "5000000").out.split()
    assert run("send", "orders", "y", "--delay-ms", "5000000").status == 0
    answer = run("recall", sent[3])
    assert (answer.status, answer.out) == (0, f"{sent[0]} is recalled\n")
    assert run("recall", sent[3], "--json").objects == [{"msg_id": sent[0], "recalled": True}]
    assert run("timers", "--json").objects[0]["waiting"] == 1


def test_a_message_that_does_not_wait_is_not_recalled(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        handle = topic.send(b"x", delay_ms=30).recall_handle
        assert topic.queues[0].read(0, wait=60.0).messages
    assert handle is not None
    answer = run("recall", handle)
    assert (answer.status, answer.out) == (1, "")
    assert "delivered already" in answer.err
