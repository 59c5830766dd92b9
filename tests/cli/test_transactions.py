"""Transactions that are not decided, on the command line."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import mq
from tests.cli.conftest import Run
from tests.support.appending import prepare_one

GROUP = "payers"


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.LocalBroker]:
    """One that gives up soon."""
    with mq.open(
        directory, transaction_timeout=0.05, transaction_check_interval=0.05, transaction_check_max=2
    ) as broker:
        broker.create_topic("orders", 1)
        yield broker


def begin(broker: mq.LocalBroker, body: bytes = b"x") -> str:
    queue = broker.publishable("orders")[0]
    return prepare_one(broker, queue, GROUP, mq.Message("orders", body), body, 0).msg_id


def wait_until_given_up(broker: mq.LocalBroker) -> None:
    until = time.monotonic() + 60
    while not all(each.given_up for each in broker.transactions.undecided()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_nothing_undecided_is_said(run: Run, broker: mq.LocalBroker) -> None:
    answer = run("transactions")
    assert (answer.status, answer.out) == (0, "no transaction is undecided\n")
    assert run("transactions", "--json").out == ""


def test_what_is_undecided_is_listed(run: Run, directory: Path) -> None:
    with mq.open(directory, transaction_timeout=600.0) as broker:
        broker.create_topic("orders", 1)
        ids = [begin(broker), begin(broker)]
        answer = run("transactions")
        assert answer.status == 0
        heading, *lines = answer.out.splitlines()
        assert heading.split() == ["ID", "TOPIC", "GROUP", "AGE", "CHECKED", "STATE"]
        assert [line.split()[0] for line in lines] == ids
        assert all(line.split()[1:3] == ["orders", GROUP] for line in lines)
        assert all(line.endswith("0  undecided") for line in lines)
        first, second = run("transactions", "--json").objects
        assert (first["msg_id"], second["msg_id"]) == tuple(ids)
        assert (first["topic"], first["queue_id"], first["group"]) == ("orders", 0, GROUP)
        assert (first["times_checked"], first["given_up"]) == (0, False)


def test_what_was_given_up_is_resumed(run: Run, broker: mq.LocalBroker) -> None:
    msg_id = begin(broker)
    wait_until_given_up(broker)
    answer = run("transactions")
    assert "2  given up" in answer.out
    assert answer.out.endswith("1 transaction given up: --resume MSGID has one checked again\n")
    with mq.TransactionProducer(broker, GROUP, lambda _: mq.TransactionState.COMMIT):
        answer = run("transactions", "--resume", msg_id)
        assert (answer.status, answer.out) == (0, f"{msg_id} is checked again\n")
        (queue,) = broker.topic("orders").queues
        until = time.monotonic() + 60
        while not (found := queue.read(0, wait=0.5).messages):
            assert time.monotonic() < until
            with suppress(mq.NotPermitted):  # It is decided by now.
                # A slow machine may have given it up once more before it has asked.
                broker.transactions.resume(msg_id)
        assert [message.body for message in found] == [b"x"]
        while broker.transactions.undecided():  # It is in its topic before that is written down.
            assert time.monotonic() < until
            time.sleep(0.02)
    assert run("transactions").out == "no transaction is undecided\n"


def test_what_was_not_given_up_cannot_be_resumed(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
        for msg_id in (begin(broker), "0" * 32, "\x1b[31m"):
            answer = run("transactions", "--resume", msg_id)
            assert (answer.status, answer.out) == (1, "")
            assert answer.err.startswith("mq: no transaction with the id ")
            assert "\x1b" not in answer.err
        assert len(broker.transactions.undecided()) == 1
