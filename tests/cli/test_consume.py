"""`consume`: a member of a group on the command line. What was printed is committed, and nothing else is."""

import signal
from pathlib import Path

import pytest

import mq
from mq.api.group import Subscription
from tests.cli.conftest import Run, Start

COUNT = 20


@pytest.fixture(autouse=True)
def filled(directory: Path) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 4)
        for number in range(COUNT):
            tag = "even" if number % 2 == 0 else "odd"
            topic.send(f"order {number}".encode(), tags=tag, properties={"price": str(number)})


def numbers(out: str) -> list[int]:
    return sorted(int(line.rsplit(" ", 1)[1]) for line in out.splitlines())


def test_a_group_gets_each_message_once(run: Run) -> None:
    first = run("consume", "orders", "--group", "billing", "--wait", "0")
    assert (first.status, first.err) == (0, "")
    assert numbers(first.out) == list(range(COUNT))
    second = run("consume", "orders", "--group", "billing", "--wait", "0")
    assert (second.status, second.out) == (1, "")
    assert "nothing" in second.err
    assert numbers(run("consume", "orders", "--group", "audit", "--wait", "0").out) == list(range(COUNT))


def test_count_ends_it_and_the_rest_is_for_the_next_one(run: Run) -> None:
    first = run("consume", "orders", "--group", "billing", "--count", "7", "--json").objects
    assert len(first) == 7
    second = run("consume", "orders", "--group", "billing", "--wait", "0", "--json").objects
    assert sorted(int(message["body"].split()[1]) for message in first + second) == list(range(COUNT))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--tags", "odd"), list(range(1, COUNT, 2))),
        (("--sql", "price >= 15"), list(range(15, COUNT))),
        (("--from", "1h"), list(range(COUNT))),
        (("--from", "last"), []),
    ],
)
def test_what_a_group_consumes(run: Run, options: tuple[str, ...], expected: list[int]) -> None:
    answer = run("consume", "orders", "--group", "billing", "--wait", "0", *options)
    assert numbers(answer.out) == expected
    assert answer.status == (0 if expected else 1)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("nope", "--group", "billing"), 1),
        (("orders",), 2),
        (("orders", "--group", "a.b"), 2),
        (("orders", "--group", "billing", "--sql", "price >"), 2),
        (("orders", "--group", "billing", "--sql", "price > 1", "--tags", "odd"), 2),
        (("orders", "--group", "billing", "--wait", "-1"), 2),
    ],
)
def test_wrong_options_of_consume_are_rejected(run: Run, arguments: tuple[str, ...], status: int) -> None:
    answer = run("consume", *arguments)
    assert (answer.status, answer.out) == (status, "")
    assert answer.err


def test_other_members_of_the_group_subscribe_to_the_same(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker:
        member = broker.consumer_groups.join(
            "billing",
            client_id="me",
            model="clustering",
            consume_type="push",
            ordered=False,
            subscriptions=[Subscription("orders", "paid")],
        )
        answer = run("consume", "orders", "--group", "billing", "--wait", "0")
        member.leave()
    assert answer.status == 2
    assert "paid" in answer.err


def test_what_a_reader_did_not_take_is_not_committed(start: Start, directory: Path, run: Run) -> None:
    consumer = start("consume", "orders", "--group", "billing")
    assert consumer.stdout is not None
    assert consumer.stdout.readline()
    consumer.stdout.close()
    with mq.open(directory) as broker:
        broker.topic("orders").send(b"order 20")
    assert consumer.wait(60) == 141
    assert 20 in numbers(run("consume", "orders", "--group", "billing", "--wait", "0").out)


def test_an_interrupt_ends_it_quietly(start: Start) -> None:
    # Where the tests run in the background of a shell, SIGINT is ignored, and a child would inherit that.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        consumer = start("consume", "orders", "--group", "billing")
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert consumer.stdout is not None
    assert consumer.stdout.readline()
    consumer.send_signal(signal.SIGINT)
    _, err = consumer.communicate(timeout=60)
    assert (consumer.returncode, err) == (130, b"")
