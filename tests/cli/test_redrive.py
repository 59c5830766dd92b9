"""`redrive`: dead letters on the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from tests.cli.conftest import Run
from tests.support import assigned


@pytest.fixture
def broker(directory: Path) -> Iterator[mq.LocalBroker]:
    """Three messages that the group billing gave up."""
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        for number in range(3):
            topic.send(b"order", tags="ab"[number % 2], properties={"price": str(number)})
        for message in topic.queues[0].read(0).messages:
            assigned.send_back(broker, message, "billing", delay_level=-1)
        yield broker


def sent_back(broker: mq.LocalBroker) -> int:
    """To the group; nothing to the topic, which would be for all groups."""
    assert broker.topic("orders").queues[0].max_offset == 3
    if "%RETRY%billing" not in broker.topics():
        return 0
    return broker.topic("%RETRY%billing").queues[0].max_offset


def test_dead_letters_go_back_once(run: Run, broker: mq.LocalBroker) -> None:
    answer = run("redrive", "billing")
    assert (answer.status, answer.out) == (0, "3 messages sent back\n")
    assert sent_back(broker) == 3
    answer = run("redrive", "billing")
    assert (answer.status, answer.out) == (0, "0 messages sent back\n")
    assert sent_back(broker) == 3


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (("--tags", "a"), 2),
        (("--tags", "b || c"), 1),
        (("--sql", "price > 0"), 2),
        (("--limit", "1"), 1),
        (("--limit", "7"), 3),
    ],
)
def test_which_of_them_can_be_chosen(
    run: Run, broker: mq.LocalBroker, options: tuple[str, ...], sent: int
) -> None:
    [trial] = run("redrive", "billing", "--dry-run", "--json", *options).objects
    assert (trial["sent"], trial["dry_run"], sent_back(broker)) == (sent, True, 0)
    [done] = run("redrive", "billing", "--json", *options).objects
    assert (done["sent"], sent_back(broker)) == (sent, sent)
    rest = run("redrive", "billing").out.splitlines()[0]
    assert rest.startswith(f"{3 - sent} message")


def test_all_groups_can_be_meant(run: Run, broker: mq.LocalBroker) -> None:
    assert run("redrive", "billing", "--all-groups").out == "3 messages sent back\n"
    assert broker.topic("orders").queues[0].max_offset == 6
    assert run("redrive", "billing").out == "0 messages sent back\n"


def test_a_topic_that_is_closed_is_said(run: Run, broker: mq.LocalBroker) -> None:
    broker.create_topic("orders", 1, perm="r")
    answer = run("redrive", "billing", "--all-groups")
    assert answer.status == 1
    assert "3 messages whose topic is gone" in answer.out


def test_groups_count_what_was_not_sent_back(run: Run, broker: mq.LocalBroker) -> None:
    assigned.commit(broker, "billing", broker.readable("orders")[0], 3)
    [billing] = run("groups", "--json").objects
    assert (billing["group"], billing["dead_letters"]) == ("billing", 3)
    assert "3 dead letters" in run("groups", "billing").out
    run("redrive", "billing", "--limit", "2")
    [billing] = run("groups", "--json").objects
    assert billing["dead_letters"] == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("nobody",), 1),
        (("a.b",), 2),
        (("billing", "--sql", "price >"), 2),
        (("billing", "--sql", "price > 1", "--tags", "a"), 2),
        (("billing", "--limit", "0"), 2),
    ],
)
def test_wrong_options_of_redrive_are_rejected(
    run: Run, broker: mq.LocalBroker, arguments: tuple[str, ...], status: int
) -> None:
    assert run("redrive", *arguments).status == status
    assert sent_back(broker) == 0
