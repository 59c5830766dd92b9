"""A read waits without working, and wakes when there is news: a message, a deletion, a close, a signal.

Times are bounds far from what is usual: 45 s stand for "at once", and a wait that nothing wakes takes 120 s.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from tests.support.appending import append_many
from tests.support.store.peer import Peer
from tests.support.store.sleeping import AT_ONCE, Waiting, asleep
from tests.support.store.small_store import open_small, send

FOUND, NO_NEW = mq.PullStatus.FOUND, mq.PullStatus.NO_NEW_MESSAGE
READ = "broker.topic('A').queues[{}].read({}, wait=120.0)"
READ_BODY = READ + ".messages[0].body"


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("A", 2)
        yield broker


def test_a_message_of_another_process_wakes_a_read(broker: LocalBroker, directory: Path) -> None:
    with Peer(directory) as peer:
        for number in range(20):
            peer.post("ask", READ_BODY.format(0, number))
            asleep(peer.pid)
            began = time.monotonic()
            send(broker, "A", 0, b"%d" % number)
            assert peer.answer() == b"%d" % number
            assert time.monotonic() - began < AT_ONCE


def test_a_message_of_the_same_process_wakes_a_read(broker: LocalBroker) -> None:
    queue = broker.topic("A").queues[0]
    waiting = Waiting(lambda: queue.read(0, wait=120.0))
    send(broker, "A", 0, b"news")
    assert waiting.end().messages[0].body == b"news"


def test_all_of_several_waiters_are_woken(broker: LocalBroker, directory: Path) -> None:
    peers = [Peer(directory) for _ in range(3)]
    for peer in peers:
        peer.post("ask", READ_BODY.format(0, 0))
    queue = broker.topic("A").queues[0]
    waiting = [Waiting(lambda: queue.read(0, wait=120.0)) for _ in range(3)]
    for peer in peers:
        asleep(peer.pid)
    send(broker, "A", 0, b"news")
    assert [one.end().messages[0].body for one in waiting] == [b"news"] * 3
    assert [peer.answer() for peer in peers] == [b"news"] * 3
    for peer in peers:
        peer.close()


def test_messages_of_other_queues_leave_a_wait_alone(broker: LocalBroker) -> None:
    queue = broker.topic("A").queues[0]
    waiting = Waiting(lambda: queue.read(0, wait=120.0))
    send(broker, "A", 1, b"for others")
    waiting.goes_on()
    send(broker, "A", 0, b"news")
    assert waiting.end().messages[0].body == b"news"


def test_messages_of_other_tags_do_not_end_a_wait(broker: LocalBroker) -> None:
    queue = broker.topic("A").queues[0]
    waiting = Waiting(lambda: queue.read(0, expression="wanted", wait=120.0))
    for number in range(5):
        send(broker, "A", 0, b"%d" % number, tags="other")
    waiting.goes_on()
    send(broker, "A", 0, b"news", tags="wanted")
    result = waiting.end()
    assert [message.body for message in result.messages] == [b"news"]
    assert result.next_offset == 6


def test_a_batch_wakes_a_read(broker: LocalBroker) -> None:
    queue = broker.topic("A").queues[0]
    waiting = Waiting(lambda: queue.read(0, wait=120.0))
    append_many(broker, "A", 0, [mq.Message("A", b"%d" % number) for number in range(5)])
    assert len(waiting.end().messages) == 5


def test_the_end_of_the_time_ends_a_wait(broker: LocalBroker) -> None:
    began = time.monotonic()
    assert broker.topic("A").queues[0].read(0, wait=0.2).status is NO_NEW
    assert time.monotonic() - began >= 0.2


def test_a_read_that_need_not_wait_does_not(broker: LocalBroker) -> None:
    send(broker, "A", 0, b"there")
    queue = broker.topic("A").queues[0]
    began = time.monotonic()
    assert queue.read(0, wait=120.0).status is FOUND
    assert queue.read(5, wait=120.0).status is mq.PullStatus.OFFSET_ILLEGAL
    assert queue.read(1).status is NO_NEW
    assert time.monotonic() - began < AT_ONCE


def test_waiting_costs_no_time_of_the_processor(broker: LocalBroker, directory: Path) -> None:
    with Peer(directory, read_only=True) as reader:
        reader.do("queue = broker.topic('A').queues[0]; queue.read(0, wait=0.1)")
        reader.do(
            "before = time.process_time(); queue.read(0, wait=2.0); used = time.process_time() - before"
        )
        assert reader.ask("used") < 0.2


def test_an_idle_broker_costs_next_to_no_time_of_the_processor(directory: Path) -> None:
    with Peer(directory) as peer:
        peer.do("time.sleep(0.5)")
        peer.do("before = time.process_time(); time.sleep(2.0); used = time.process_time() - before")
        assert peer.ask("used") < 0.2


def test_ctrl_c_interrupts_a_wait(broker: LocalBroker, directory: Path) -> None:
    with Peer(directory) as peer:
        peer.post("ask", READ.format(0, 0))
        asleep(peer.pid)
        began = time.monotonic()
        peer.interrupt()
        with pytest.raises(KeyboardInterrupt):
            peer.answer()
        assert time.monotonic() - began < AT_ONCE
        assert peer.send("A", 0, b"still well") == 0


@pytest.mark.parametrize("what", ["Wait(store_of(broker), []).sleep(120.0, spin_ns=10**9)", "read()"])
def test_ctrl_c_in_the_moment_before_a_wait_sleeps_is_not_slept_through(
    what: str, broker: LocalBroker, directory: Path
) -> None:
    """That moment is a second here, in which a wait looks for news before it sleeps."""
    with Peer(directory) as peer:
        peer.do("from mq.store.shared import waiting; from mq.store.shared.waiting import Wait")
        peer.do("from tests.support.insides import store_of")
        peer.do("waiting.Wait.sleep.__kwdefaults__['spin_ns'] = 10**9")
        peer.do(f"read = lambda: {READ.format(0, 0)}")
        peer.post("ask", what)
        time.sleep(0.3)
        began = time.monotonic()
        peer.interrupt()
        with pytest.raises(KeyboardInterrupt):
            peer.answer()
        assert time.monotonic() - began < AT_ONCE


def test_a_signal_that_is_handled_lets_the_wait_go_on(broker: LocalBroker, directory: Path) -> None:
    with Peer(directory) as peer:
        peer.do("import signal; got = []; signal.signal(signal.SIGINT, lambda *_: got.append(1))")
        peer.post("ask", READ_BODY.format(0, 0))
        asleep(peer.pid)
        peer.interrupt()
        asleep(peer.pid)
        send(broker, "A", 0, b"news")
        assert peer.answer() == b"news"
        assert peer.ask("got") == [1]


def test_a_deleted_topic_wakes_its_waiters(broker: LocalBroker, directory: Path) -> None:
    queue = broker.topic("A").queues[0]
    with Peer(directory) as peer:
        peer.post("ask", READ.format(1, 0))
        waiting = Waiting(lambda: queue.read(0, wait=120.0))
        asleep(peer.pid)
        began = time.monotonic()
        broker.delete_topic("A")
        with pytest.raises(mq.TopicNotFound):
            waiting.end()
        with pytest.raises(mq.TopicNotFound):
            peer.answer()
        assert time.monotonic() - began < AT_ONCE


def test_a_waiter_for_a_re_created_topic_gets_its_messages(broker: LocalBroker) -> None:
    queue = broker.topic("A").queues[0]
    send(broker, "A", 0, b"old")
    broker.delete_topic("A")
    broker.create_topic("A", 1)
    waiting = Waiting(lambda: queue.read(0, wait=120.0))
    send(broker, "A", 0, b"new")
    assert waiting.end().messages[0].body == b"new"


def test_a_topic_that_changes_does_not_end_a_wait(broker: LocalBroker) -> None:
    queue = broker.topic("A").queues[0]
    waiting = Waiting(lambda: queue.read(0, wait=120.0))
    broker.create_topic("B", 1)
    broker.create_topic("A", 5)
    waiting.goes_on()
    send(broker, "A", 0, b"news")
    assert waiting.end().messages[0].body == b"news"


def test_close_wakes_all_waiters(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        queue = broker.topic("A").queues[0]
        waiting = [Waiting(lambda: queue.read(0, wait=120.0)) for _ in range(3)]
    for one in waiting:
        with pytest.raises(mq.BrokerClosed):
            one.end()


def test_other_processes_that_close_or_die_do_not_end_a_wait(broker: LocalBroker, directory: Path) -> None:
    queue = broker.topic("A").queues[0]
    first, second, third = Peer(directory), Peer(directory), Peer(directory)
    waiting = Waiting(lambda: queue.read(0, wait=120.0))
    first.close()
    second.kill()
    third.send("A", 0, b"news")
    assert waiting.end().messages[0].body == b"news"
    third.close()


def test_a_sender_that_dies_leaves_no_one_asleep(broker: LocalBroker, directory: Path) -> None:
    """Messages sent, their sender killed at once: a waiter gets them, or the next message wakes it."""
    queue = broker.topic("A").queues[0]
    for offset in range(5):
        waiting = Waiting(functools.partial(queue.read, offset, wait=120.0))
        peer = Peer(directory)
        peer.send("A", 0, b"last words")
        peer.kill()
        assert waiting.end().messages[0].body == b"last words"


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_no_wake_up_is_lost_in_a_long_conversation(directory: Path, flush: Any) -> None:
    with open_small(directory, flush=flush) as broker:
        broker.create_topic("A", 2)
        count = 300
        with Peer(directory, flush=flush) as peer:
            peer.do("queue = broker.topic('A').queues[0]")
            peer.post(
                "do",
                f"for n in range({count}): send(broker, 'A', 1, queue.read(n, wait=120.0).messages[0].body)",
            )
            answers = broker.topic("A").queues[1]
            for number in range(count):
                began = time.monotonic()
                send(broker, "A", 0, b"%d" % number)
                assert answers.read(number, wait=120.0).messages[0].body == b"%d" % number
                assert time.monotonic() - began < AT_ONCE  # A wake-up that is lost takes longer.
            peer.answer()
