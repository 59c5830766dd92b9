"""`create` on a topic that is there."""

from pathlib import Path

import mq
from tests.cli.conftest import Run
from tests.support.appending import append_one


def test_the_command_line_keeps_what_is_not_given(directory: Path, run: Run) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 8)
        for queue in topic.queues:
            for _ in range(10):
                append_one(broker, "orders", queue.queue_id, mq.Message("orders", b"x"), b"x", 0)
    assert run("create", "orders").out == "orders: 8 queues\n"
    refused = run("create", "orders", "--queues", "4")
    assert refused.status != 0
    assert "--shrink" in refused.err
    assert "4, 5, 6, 7 hold 40 messages" in refused.err
    assert "4 of them get no more messages" in run("create", "orders", "--queues", "4", "--shrink").out
    answer = run("verify")
    assert (answer.status, "note: topic orders is being shrunk" in answer.out) == (0, True)
