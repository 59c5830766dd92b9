"""Dead letters sent back to their topic: each once, whatever was selected before and whoever died
meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker import retry
from mq.broker.local import LocalBroker
from mq.broker.retry import REDRIVE_GROUP, Redriven, redrive
from mq.filter.selection import Selection
from tests.broker.shelf import bodies


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1)
        yield broker


def die(broker: LocalBroker, count: int) -> list[mq.MessageExt]:
    """Messages that the group billing cannot consume, of tags a, b and c in turn."""
    topic = broker.topic("orders")
    begin = topic.queues[0].max_offset
    for number in range(count):
        topic.send(b"%d" % number, tags="abc"[number % 3], keys=f"k{number}", properties={"p": "v"})
    messages = sent_again(broker, begin)
    for message in messages:
        broker.send_back(message, "billing", max_reconsume_times=0)
    return messages


def sent_again(broker: LocalBroker, offset: int) -> list[mq.MessageExt]:
    return list(broker.topic("orders").queues[0].read(offset, count_max=100).messages)


def test_all_come_again_as_if_never_consumed(broker: LocalBroker) -> None:
    messages = die(broker, 5)
    assert redrive(broker, "billing") == Redriven(sent=5, left=0, known=0, stuck=0)
    again = sent_again(broker, 5)
    for message, copy in zip(messages, again, strict=True):
        assert (copy.body, copy.tags, copy.keys, copy.msg_id, copy.reconsume_times) == (
            message.body,
            message.tags,
            message.keys,
            message.msg_id,
            0,
        )
        assert copy.properties["p"] == "v"
        assert copy.properties["ORIGIN_MESSAGE_ID"] == message.offset_msg_id
        assert copy.properties["DLQ_ORIGIN_TOPIC"] == "orders"
        assert not {"RETRY_TOPIC", "DELAY", "REAL_TOPIC", "REAL_QID", "WAIT"} & set(copy.properties)


def test_a_second_time_sends_nothing(broker: LocalBroker) -> None:
    die(broker, 3)
    redrive(broker, "billing")
    assert redrive(broker, "billing") == Redriven(0, 0, 0, 0)
    die(broker, 1)
    assert redrive(broker, "billing").sent == 1


def test_what_was_left_out_is_sent_later_and_what_was_sent_is_not(broker: LocalBroker) -> None:
    die(broker, 6)
    assert redrive(broker, "billing", selection=Selection.of("b")) == Redriven(2, 4, 0, 0)
    assert redrive(broker, "billing", selection=Selection.of("b")) == Redriven(0, 4, 2, 0)
    assert redrive(broker, "billing", selection=Selection.of(sql="TAGS = 'a'")) == Redriven(2, 4, 0, 0)
    assert redrive(broker, "billing").sent == 2
    assert sorted(bodies(sent_again(broker, 6))) == [b"%d" % number for number in range(6)]


def test_no_more_than_asked_for(broker: LocalBroker) -> None:
    die(broker, 5)
    assert redrive(broker, "billing", count_max=2).sent == 2
    assert redrive(broker, "billing", count_max=2).sent == 2
    assert redrive(broker, "billing", count_max=2).sent == 1
    assert bodies(sent_again(broker, 5)) == [b"%d" % number for number in range(5)]


def test_a_dry_run_only_counts(broker: LocalBroker) -> None:
    die(broker, 3)
    for _ in range(2):
        assert redrive(broker, "billing", dry_run=True) == Redriven(3, 0, 0, 0)
    assert sent_again(broker, 3) == []
    assert redrive(broker, "billing").sent == 3


def test_who_dies_between_sending_and_remembering_sends_nothing_twice(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(broker, 3)
    commit = broker.commit
    commits = []

    def dies(group: str, queue: mq.MessageQueue, offset: int) -> None:
        commits.append(offset)
        if len(commits) == 2:
            raise KeyboardInterrupt
        commit(group, queue, offset)

    monkeypatch.setattr(broker, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        redrive(broker, "billing")
    assert redrive(broker, "billing") == Redriven(sent=1, left=0, known=1, stuck=0)
    assert len(sent_again(broker, 3)) == 3


def test_a_message_that_dies_again_is_sent_again(broker: LocalBroker) -> None:
    (message,) = die(broker, 1)
    for times in range(1, 4):
        assert redrive(broker, "billing").sent == 1
        (copy,) = sent_again(broker, times)
        assert copy.msg_id == message.msg_id
        broker.send_back(copy, "billing", delay_level=-1)


def test_groups_do_not_know_of_each_other(broker: LocalBroker) -> None:
    (message,) = die(broker, 1)
    broker.send_back(message, "shipping", delay_level=-1)
    assert redrive(broker, "billing").sent == 1
    assert redrive(broker, "shipping").sent == 1


def test_a_group_without_dead_letters(broker: LocalBroker) -> None:
    assert redrive(broker, "billing") == Redriven(0, 0, 0, 0)
    with pytest.raises(mq.GroupInvalid):
        redrive(broker, "no group")


def test_those_whose_topic_refuses_stay_until_it_does_not(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    die(broker, 2)
    broker.create_topic("orders", 1, perm="r")
    assert redrive(broker, "billing") == Redriven(0, 0, 0, 2)
    assert "orders" in caplog.text
    broker.create_topic("orders", 1)
    assert redrive(broker, "billing").sent == 2


def test_two_at_a_time_are_refused(broker: LocalBroker) -> None:
    die(broker, 1)
    with retry._alone(broker, "billing"), pytest.raises(mq.NotPermitted, match="another process"):
        redrive(broker, "billing")
    assert redrive(broker, "billing").sent == 1
    (queue,) = broker.readable("%DLQ%billing")
    assert broker.committed(REDRIVE_GROUP, queue) == 1
