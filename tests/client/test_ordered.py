"""Ordered consumption: one listener at a time in each queue, a failure that blocks its queue alone, and an
order that survives hand-overs."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict

import pytest

import mq
from tests.support.memory.broker import MemoryBroker
from tests.support.recording_listener import (
    PATIENCE,
    Heard,
    committed,
    consuming,
    dead_letters,
    eventually,
    send,
)


def make(queues: int = 1) -> MemoryBroker:
    broker = MemoryBroker()
    broker.create_topic("orders", queues)
    return broker


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_a_queue_is_in_one_listener_at_a_time_and_in_order() -> None:
    broker = make(4)
    for queue_id in range(4):
        send(broker, *numbered(100), queue_id=queue_id)
    inside: defaultdict[int, int] = defaultdict(int)
    most = 0

    def act(message: mq.MessageExt) -> None:
        nonlocal most
        inside[message.queue_id] += 1
        most = max(most, inside[message.queue_id])
        time.sleep(0.0003)  # long enough for another thread to be let in, if one may be
        inside[message.queue_id] -= 1

    heard = Heard(act)
    with consuming(broker, heard, ordered=True, threads=8):
        heard.wait(400)
        eventually(lambda: broker.group("g").lag("orders") == 0)
    assert most == 1
    for queue_id in range(4):
        mine = [message.body for message in heard.messages if message.queue_id == queue_id]
        assert mine == [number.encode() for number in numbered(100)]
    assert heard.running_max > 1


def test_a_failure_blocks_its_queue_and_no_other() -> None:
    broker = make(2)
    send(broker, "a", "bad", "c", queue_id=0)
    send(broker, *numbered(50), queue_id=1)

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad" and message.reconsume_times < 3:
            raise mq.Retry(suspend_ms=20)

    heard = Heard(act)
    with consuming(broker, heard, ordered=True):
        heard.wait(56)
        eventually(lambda: committed(broker, 0) == 3)
    first = [message for message in heard.messages if message.queue_id == 0]
    assert [message.body for message in first] == [b"a", b"bad", b"bad", b"bad", b"bad", b"c"]
    assert [message.reconsume_times for message in first] == [0, 0, 1, 2, 3, 0]
    assert {message.topic for message in first} == {"orders"}


def test_while_it_is_blocked_the_queue_says_so() -> None:
    broker = make()
    send(broker, "bad", "next")
    fails = True

    def act(message: mq.MessageExt) -> None:
        if fails:
            raise ValueError("not now")

    heard = Heard(act)
    with consuming(broker, heard, ordered=True, suspend_ms=3000):
        eventually(lambda: broker.group("g").states("orders")[0].reason.startswith("suspended until "))
        said = re.search(r": attempt (\d+) failed$", broker.group("g").states("orders")[0].reason)
        # A slow machine may see a later attempt than the first.
        assert said is not None
        assert 1 <= int(said[1]) <= len(heard.messages)
        fails = False
        eventually(lambda: committed(broker) == 2)
        assert broker.group("g").states("orders")[0].reason == ""
    assert heard.bodies == [b"bad"] * (len(heard.messages) - 1) + [b"next"]
    assert len(heard.messages) > int(said[1]) + 1


def test_what_fails_too_often_goes_to_the_dead_letters_and_the_queue_goes_on() -> None:
    broker = make()
    send(broker, "a", "bad", "c", "d")

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad":
            raise ValueError("never")

    heard = Heard(act)
    with consuming(broker, heard, ordered=True, max_reconsume_times=3, suspend_ms=10):
        heard.wait(7)
        eventually(lambda: committed(broker) == 4)
    assert heard.bodies == [b"a", b"bad", b"bad", b"bad", b"bad", b"c", b"d"]
    assert [message.body for message in dead_letters(broker)] == [b"bad"]


def test_a_listener_may_send_a_message_to_the_dead_letters_at_once() -> None:
    broker = make()
    send(broker, "bad", "next")

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad":
            raise mq.Retry(delay_level=-1)

    heard = Heard(act)
    with consuming(broker, heard, ordered=True):
        heard.wait(2)
        eventually(lambda: committed(broker) == 2)
    assert heard.bodies == [b"bad", b"next"]
    assert [message.body for message in dead_letters(broker)] == [b"bad"]


def test_by_default_of_rocketmq_a_queue_is_blocked_without_end() -> None:
    broker = make()
    send(broker, "bad")

    def act(message: mq.MessageExt) -> None:
        raise mq.Retry(suspend_ms=10)

    heard = Heard(act)
    with consuming(broker, heard, ordered=True, max_reconsume_times=-1):
        heard.wait(20)
    assert dead_letters(broker) == []
    assert committed(broker) in (None, 0)


def test_of_a_list_the_rest_comes_again_in_order() -> None:
    broker = make()
    send(broker, *numbered(10))
    lists: list[list[bytes]] = []
    heard = Heard()

    def take(messages: list[mq.MessageExt]) -> None:
        lists.append([message.body for message in messages])
        for message in messages:
            heard(message)
        if len(lists) == 1:
            raise mq.Retry(from_index=3, suspend_ms=10)

    with consuming(broker, take, ordered=True, batch_size=5):
        heard.wait(12)
        eventually(lambda: committed(broker) == 10)
    assert lists[0] == [b"0", b"1", b"2", b"3", b"4"]
    assert [body for each in lists[1:] for body in each] == [b"%d" % number for number in range(3, 10)]


def test_a_list_of_which_all_is_consumed_blocks_nothing() -> None:
    broker = make()
    send(broker, *numbered(10))
    heard = Heard()

    def take(messages: list[mq.MessageExt]) -> None:
        for message in messages:
            heard(message)
        raise mq.Retry(from_index=len(messages))

    with consuming(broker, take, ordered=True, batch_size=5, suspend_ms=30_000):
        heard.wait(10)
        eventually(lambda: committed(broker) == 10)


def test_order_survives_members_that_come_and_go() -> None:
    broker = make(6)
    heard = Heard()
    stop = threading.Event()
    sent = 0

    def keep_sending() -> None:
        nonlocal sent
        while not stop.wait(0.0005):
            send(broker, str(sent), queue_id=sent % 6)
            sent += 1

    sending = threading.Thread(target=keep_sending)
    sending.start()
    with consuming(broker, heard, ordered=True, client_id="b"):
        for _ in range(6):
            with consuming(broker, heard, ordered=True, client_id="a") as second:
                eventually(lambda: len(second.assignment()) == 3)
                heard.wait(len(heard.messages) + 20)
            heard.wait(len(heard.messages) + 20)
        stop.set()
        sending.join()
        eventually(lambda: broker.group("g").lag("orders") == 0)
    assert len(heard.messages) == sent
    for queue_id in range(6):
        mine = [message.queue_offset for message in heard.messages if message.queue_id == queue_id]
        assert mine == list(range(len(mine)))


def test_the_next_owner_waits_for_the_listener_of_the_last_one() -> None:
    broker = make(2)
    send(broker, "a", "b", "c", queue_id=1)
    open_lock = threading.Event()
    first, other = Heard(lambda _message: open_lock.wait(PATIENCE)), Heard()
    with consuming(broker, first, ordered=True, client_id="a") as giver:
        first.wait(1)
        with consuming(broker, other, ordered=True, client_id="b"):
            eventually(lambda: len(giver.assignment()) == 1)
            assert other.messages == []
            open_lock.set()
            other.wait(2)
    assert (first.bodies, other.bodies) == ([b"a"], [b"b", b"c"])


def test_a_reset_waits_for_the_listener_and_begins_again() -> None:
    broker = make()
    send(broker, *numbered(5))
    open_lock = threading.Event()
    heard = Heard(lambda message: open_lock.wait(PATIENCE) if message.body == b"4" else None)
    with consuming(broker, heard, ordered=True):
        heard.wait(5)
        broker.group("g").reset("orders", to="earliest")
        assert not open_lock.wait(0.05)
        assert len(heard.messages) == 5
        open_lock.set()
        heard.wait(10)
        eventually(lambda: committed(broker) == 5)
    assert heard.bodies == [b"%d" % number for number in range(5)] * 2
    assert heard.running_max == 1


def test_ordered_and_concurrent_members_do_not_mix() -> None:
    broker = make()
    with consuming(broker, Heard(), ordered=True):
        other = mq.PushConsumer(broker, "g")
        other.subscribe("orders", listener=print)
        with pytest.raises(mq.GroupInvalid):
            other.start()
