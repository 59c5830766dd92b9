"""Dead letters sent back to their group, or their topic: each once, whatever was selected before and
whichever process died meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.api.local import Redriven
from mq.broker.local import LocalBroker
from mq.filter.selection import Selection
from mq.names import REDRIVE_GROUP
from mq.store.shared.lock_guards import file_lock
from tests.broker.fake_delay_store import bodies
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import groups_of


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
        assigned.send_back(broker, message, "billing", max_reconsume_times=0)
    return messages


def sent_again(broker: LocalBroker, offset: int) -> list[mq.MessageExt]:
    """What is in the topic from an offset on."""
    return list(broker.topic("orders").queues[0].read(offset, count_max=100).messages)


def retried(broker: LocalBroker) -> list[mq.MessageExt]:
    """What was sent to the group alone."""
    if "%RETRY%billing" not in broker.topics():
        return []
    [queue] = broker.topic("%RETRY%billing").queues
    return list(queue.read(0, count_max=100).messages)


@pytest.mark.parametrize("all_groups", [False, True])
def test_all_come_again_as_if_never_consumed(broker: LocalBroker, all_groups: bool) -> None:
    messages = die(broker, 5)
    assert broker.redrive("billing", all_groups=all_groups) == Redriven(sent=5, left=0, known=0, stuck=0)
    again = sent_again(broker, 5) if all_groups else retried(broker)
    assert (sent_again(broker, 5) == []) is not all_groups
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
        assert copy.properties.get("RETRY_TOPIC") == (None if all_groups else "orders")
        assert not {"DELAY", "REAL_TOPIC", "REAL_QID", "WAIT"} & set(copy.properties)


def test_a_second_time_sends_nothing(broker: LocalBroker) -> None:
    die(broker, 3)
    broker.redrive("billing")
    assert broker.redrive("billing") == Redriven(0, 0, 0, 0)
    die(broker, 1)
    assert broker.redrive("billing").sent == 1


def test_what_was_left_out_is_sent_later_and_what_was_sent_is_not(broker: LocalBroker) -> None:
    die(broker, 6)
    assert broker.redrive("billing", selection=Selection.of("b")) == Redriven(2, 4, 0, 0)
    assert broker.redrive("billing", selection=Selection.of("b")) == Redriven(0, 4, 2, 0)
    assert broker.redrive("billing", selection=Selection.of(sql="TAGS = 'a'")) == Redriven(2, 4, 0, 0)
    assert broker.redrive("billing").sent == 2
    assert sorted(bodies(retried(broker))) == [b"%d" % number for number in range(6)]


def test_no_more_than_asked_for(broker: LocalBroker) -> None:
    die(broker, 5)
    with pytest.raises(ValueError, match="count_max is -1"):
        broker.redrive("billing", count_max=-1)
    assert broker.redrive("billing", count_max=0).sent == 0
    assert broker.redrive("billing", count_max=2).sent == 2
    assert broker.redrive("billing", count_max=2).sent == 2
    assert broker.redrive("billing", count_max=2).sent == 1
    assert bodies(retried(broker)) == [b"%d" % number for number in range(5)]


def test_a_dry_run_only_counts(broker: LocalBroker) -> None:
    die(broker, 3)
    for _ in range(2):
        assert broker.redrive("billing", dry_run=True) == Redriven(3, 0, 0, 0)
    assert sent_again(broker, 3) == retried(broker) == []
    assert broker.redrive("billing").sent == 3


def test_a_death_between_send_and_bookkeeping_redrives_nothing_twice(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(broker, 3)
    commit = groups_of(broker).commit
    commits = []

    def dies(group: str, queue: mq.MessageQueue, offset: int) -> None:
        commits.append(offset)
        if len(commits) == 2:
            raise KeyboardInterrupt
        commit(group, queue, offset)

    monkeypatch.setattr(groups_of(broker), "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        broker.redrive("billing")
    assert broker.redrive("billing") == Redriven(sent=1, left=0, known=1, stuck=0)
    assert len(retried(broker)) == 3


def test_a_message_that_dies_again_is_sent_again(broker: LocalBroker) -> None:
    (message,) = die(broker, 1)
    for times in range(1, 4):
        assert broker.redrive("billing").sent == 1
        copy = retried(broker)[times - 1]
        assert copy.msg_id == message.msg_id
        assigned.send_back(broker, copy, "billing", delay_level=-1)


def test_groups_do_not_know_of_each_other(broker: LocalBroker) -> None:
    (message,) = die(broker, 1)
    assigned.send_back(broker, message, "shipping", delay_level=-1)
    assert broker.redrive("billing").sent == 1
    assert broker.redrive("shipping").sent == 1


def test_a_group_without_dead_letters(broker: LocalBroker) -> None:
    assert broker.redrive("billing") == Redriven(0, 0, 0, 0)
    with pytest.raises(mq.GroupInvalid):
        broker.redrive("no group")


def test_dead_letters_whose_topic_is_read_only_stay_until_it_is_writable(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    die(broker, 2)
    broker.create_topic("orders", perm="r")
    assert broker.redrive("billing", all_groups=True) == Redriven(0, 0, 0, 2)
    assert "orders" in caplog.text
    broker.create_topic("orders", perm="rw")
    assert broker.redrive("billing", all_groups=True).sent == 2


def test_dead_letters_of_a_deleted_topic_stay(directory: Path) -> None:
    with mq.open(directory, auto_create_topics=False) as broker:
        broker.create_topic("orders", 1)
        die(broker, 2)
        broker.delete_topic("orders")
        for all_groups in (False, True):
            assert broker.redrive("billing", all_groups=all_groups) == Redriven(0, 0, 0, 2)


def consumed(broker: LocalBroker, group: str, count: int, **options: Any) -> list[mq.MessageExt]:
    """What a push consumer of a group gets, until these are as many."""
    got: list[mq.MessageExt] = []
    enough = threading.Event()

    def listener(message: mq.MessageExt) -> None:
        got.append(message)
        if len(got) >= count:
            enough.set()

    with mq.PushConsumer(broker, group, **options) as consumer:
        consumer.subscribe("orders", listener=listener)
        consumer.start()
        assert enough.wait(60.0)
    return got


@pytest.mark.parametrize("ordered", [False, True])
def test_the_group_that_failed_gets_them_and_no_other(broker: LocalBroker, ordered: bool) -> None:
    die(broker, 5)
    for group in ("billing", "shipping"):
        assert len(consumed(broker, group, 5, ordered=ordered)) == 5
    broker.redrive("billing")
    broker.topic("orders").send(b"marker")
    assert bodies(consumed(broker, "shipping", 1, ordered=ordered)) == [b"marker"]
    got = consumed(broker, "billing", 6, ordered=ordered)
    again = [message for message in got if message.body != b"marker"]
    assert {message.topic for message in got} == {"orders"}
    assert {message.reconsume_times for message in got} == {0}
    if ordered:
        assert bodies(again) == [b"%d" % number for number in range(5)]
    assert sorted(bodies(got)) == [*(b"%d" % number for number in range(5)), b"marker"]


def test_in_the_topic_each_goes_to_the_queue_that_it_was_in(broker: LocalBroker) -> None:
    topic = broker.create_topic("orders", 8)
    for number in range(24):
        queue_id = number % 8
        append_one(broker, "orders", queue_id, mq.Message("orders", b"x"), b"%d" % queue_id, 0)
    for queue in topic.queues:
        for message in queue.read(0).messages:
            assigned.send_back(broker, message, "billing", delay_level=-1)
    assert broker.redrive("billing", count_max=8, all_groups=True).sent == 8
    topic = broker.create_topic("orders", 4, shrink=True)
    assert broker.redrive("billing", all_groups=True).sent == 16
    got = [bodies(list(queue.read(3).messages)) for queue in topic.queues]
    assert [set(each) for each in got[:4]] == [{b"0", b"4"}, {b"1", b"5"}, {b"2", b"6"}, {b"3", b"7"}]
    assert sum(map(len, got)) == 24


def test_what_one_way_sent_the_other_does_not(broker: LocalBroker) -> None:
    die(broker, 4)
    assert broker.redrive("billing", selection=Selection.of("a")).sent == 2
    assert broker.redrive("billing", all_groups=True) == Redriven(2, 0, 1, 0)


def test_two_at_a_time_are_refused(broker: LocalBroker) -> None:
    die(broker, 1)
    with (
        file_lock(broker.path / "mq" / "redrive", 0, "sending dead letters back", 0.0),
        pytest.raises(mq.NotPermitted, match="another process"),
    ):
        broker.redrive("billing")
    assert broker.redrive("billing").sent == 1
    (queue,) = broker.readable("%DLQ%billing")
    assert assigned.committed(broker, REDRIVE_GROUP, queue) == 1
