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
    assert "mq DIR create orders --queues 4 --shrink" in refused.err
    refused = run("create", "orders", "--read-queues", "4")
    assert "mq DIR create orders --read-queues 4 --shrink" in refused.err
    assert "4 of them get no more messages" in run("create", "orders", "--queues", "4", "--shrink").out
    answer = run("verify")
    assert (answer.status, "note: topic orders is being shrunk" in answer.out) == (0, True)


def test_messages_in_queues_that_nobody_reads_are_counted_and_named(directory: Path, run: Run) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", read_queue_count=4, write_queue_count=8)
        for queue in broker.publishable("orders"):
            for _ in range(10):
                append_one(broker, "orders", queue.queue_id, mq.Message("orders", b"x"), b"x", 0)
    [facts] = run("topics", "--json").objects
    unread = {"4": 10, "5": 10, "6": 10, "7": 10}
    assert facts == {"topic": "orders", "queues": 4, "messages": 80, "unread_queues": unread}
    out = run("topics").out
    assert out.splitlines()[1].split() == ["orders", "4", "80"]
    assert "orders: 40 messages of queues 4, 5, 6, 7 may not be read" in out
    assert "--read-queues 8" in out
    run("create", "orders", "--read-queues", "8")
    assert run("topics", "--json").objects == [{"topic": "orders", "queues": 8, "messages": 80}]


def test_a_topic_that_may_not_be_read_is_listed(directory: Path, run: Run) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 2)
        broker.topic("orders").send(b"x")
    assert run("create", "orders", "--perm", "w").out == "orders: 2 queues\n"
    [facts] = run("topics", "--json").objects
    assert (facts["queues"], facts["messages"], list(facts["unread_queues"].values())) == (2, 1, [1])
    assert "1 message of queue " in run("topics").out
