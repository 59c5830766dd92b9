"""Reading a queue: what each position gives, how a read waits, and what a tag expression lets through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import mq
from mq.filter.tags import tag_hash
from tests.contract.differences import COUNTED_MATCHES, EXACT_TIMES, needs
from tests.support.appending import queue_named

FOUND = mq.PullStatus.FOUND
NO_NEW_MESSAGE = mq.PullStatus.NO_NEW_MESSAGE
NO_MATCHED_MESSAGE = mq.PullStatus.NO_MATCHED_MESSAGE
OFFSET_ILLEGAL = mq.PullStatus.OFFSET_ILLEGAL


@pytest.fixture
def topic(broker: mq.Broker) -> mq.Topic:
    return broker.create_topic("orders", 1)


@pytest.fixture
def queue(topic: mq.Topic) -> mq.Queue:
    return topic.queues[0]


def summary(result: mq.PullResult) -> tuple[mq.PullStatus, list[bytes], int]:
    return result.status, [message.body for message in result.messages], result.next_offset


def bounds(result: mq.PullResult) -> tuple[int, int]:
    return result.min_offset, result.max_offset


def test_an_empty_queue_has_no_new_message(queue: mq.Queue) -> None:
    assert summary(queue.read(0)) == (NO_NEW_MESSAGE, [], 0)
    assert bounds(queue.read(0)) == (queue.min_offset, queue.max_offset) == (0, 0)


def test_past_the_end_of_an_empty_queue_is_illegal(queue: mq.Queue) -> None:
    assert summary(queue.read(5)) == (OFFSET_ILLEGAL, [], 0)


def test_the_end_of_a_queue_has_no_new_message(topic: mq.Topic, queue: mq.Queue) -> None:
    topic.send(b"a")
    assert summary(queue.read(1)) == (NO_NEW_MESSAGE, [], 1)
    assert bounds(queue.read(1)) == (0, 1)


@pytest.mark.parametrize("offset", [2, 3, 1000, (1 << 62)])
def test_past_the_end_is_illegal_and_says_where_the_end_is(
    topic: mq.Topic, queue: mq.Queue, offset: int
) -> None:
    topic.send(b"a")
    assert summary(queue.read(offset)) == (OFFSET_ILLEGAL, [], 1)


def test_before_the_beginning_is_illegal_and_says_where_that_is(topic: mq.Topic, queue: mq.Queue) -> None:
    topic.send(b"a")
    assert summary(queue.read(-1)) == (OFFSET_ILLEGAL, [], 0)


def test_a_read_goes_on_after_what_it_found(topic: mq.Topic, queue: mq.Queue) -> None:
    for body in (b"a", b"b", b"c"):
        topic.send(body)
    assert summary(queue.read(0)) == (FOUND, [b"a", b"b", b"c"], 3)
    assert summary(queue.read(0, count_max=2)) == (FOUND, [b"a", b"b"], 2)
    assert summary(queue.read(2, count_max=2)) == (FOUND, [b"c"], 3)
    assert bounds(queue.read(1, count_max=1)) == (0, 3)


def test_a_read_is_of_32_messages_by_default(topic: mq.Topic, queue: mq.Queue) -> None:
    for _ in range(40):
        topic.send(b"x")
    assert queue.read(0).next_offset == 32


@pytest.mark.parametrize("count_max", [0, -1])
def test_a_read_of_nothing_is_an_error(queue: mq.Queue, count_max: int) -> None:
    with pytest.raises(ValueError, match="count_max"):
        queue.read(0, count_max=count_max)


def test_at_least_one_message_comes_however_few_bytes_are_asked_for(
    broker: mq.Broker, topic: mq.Topic, queue: mq.Queue
) -> None:
    topic.send(b"a" * 3000)
    topic.send(b"b")
    result = broker.puller(queue.message_queue)(0, 10, 1, None, 0.0)
    assert summary(result) == (FOUND, [b"a" * 3000], 1)


def test_bytes_bound_a_read(broker: mq.Broker, topic: mq.Topic, queue: mq.Queue) -> None:
    for _ in range(10):
        topic.send(b"a" * 1000)
    size = queue.read(0).messages[0].store_size
    assert broker.puller(queue.message_queue)(0, 10, 3 * size, None, 0.0).next_offset == 3
    assert broker.puller(queue.message_queue)(0, 10, 3 * size + size // 2, None, 0.0).next_offset == 3


def test_a_topic_that_does_not_exist_cannot_be_read(broker: mq.Broker) -> None:
    queue = queue_named(broker, "nowhere", 0)
    for ask in (broker.min_offset, broker.max_offset, lambda q: broker.puller(q)(0, 1, 1 << 20, None, 0.0)):
        with pytest.raises(mq.TopicNotFound):
            ask(queue)
    assert "nowhere" not in broker.topics()


@contextmanager
def in_the_background(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_waiting_read_is_woken_by_a_message_of_another_thread(topic: mq.Topic, queue: mq.Queue) -> None:
    found: list[mq.PullResult] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        found.append(queue.read(0, wait=30.0))

    begun = time.monotonic()
    with in_the_background(wait):
        started.wait()
        time.sleep(0.05)  # so that the other thread is likely to be asleep; it must be woken in any case
        topic.send(b"a")
    assert summary(found[0]) == (FOUND, [b"a"], 1)
    assert time.monotonic() - begun < 15


def test_a_message_that_came_before_needs_no_waiting(topic: mq.Topic, queue: mq.Queue) -> None:
    topic.send(b"a")
    begun = time.monotonic()
    assert summary(queue.read(0, wait=30.0)) == (FOUND, [b"a"], 1)
    assert queue.read(7, wait=30.0).status is OFFSET_ILLEGAL
    assert time.monotonic() - begun < 15


def test_a_wait_ends_when_its_time_is_up(queue: mq.Queue) -> None:
    begun = time.monotonic()
    assert summary(queue.read(0, wait=0.05)) == (NO_NEW_MESSAGE, [], 0)
    assert time.monotonic() - begun >= 0.05


def test_a_message_of_another_queue_does_not_end_a_wait(broker: mq.Broker) -> None:
    first, second = broker.create_topic("orders", 2).queues
    with mq.Producer(broker) as producer:
        timer = threading.Timer(0.02, producer.send, (mq.Message("orders", b"x"),), {"queue": second})
        timer.start()
        assert first.read(0, wait=0.1).status is NO_NEW_MESSAGE
        timer.join()
    assert second.max_offset == 1


def test_every_waiting_reader_gets_the_message(topic: mq.Topic, queue: mq.Queue) -> None:
    found: list[list[bytes]] = []
    ready = threading.Barrier(4)

    def wait() -> None:
        ready.wait()
        found.append([message.body for message in queue.read(0, wait=30.0).messages])

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()
    topic.send(b"a")
    for thread in threads:
        thread.join()
    assert found == [[b"a"]] * 3


def test_two_threads_hand_a_message_to_and_fro(broker: mq.Broker) -> None:
    here, there = (broker.create_topic(name, 1) for name in ("here", "there"))

    def answer() -> None:
        queue = here.queues[0]
        for offset in range(200):
            there.send(queue.read(offset, count_max=1, wait=30.0).messages[0].body)

    with in_the_background(answer):
        queue = there.queues[0]
        for offset in range(200):
            here.send(b"%d" % offset)
            assert queue.read(offset, count_max=1, wait=30.0).messages[0].body == b"%d" % offset


def send_tagged(topic: mq.Topic, *tags: str | None) -> None:
    for number, tag in enumerate(tags):
        topic.send(b"%d" % number, tags=tag)


def test_a_tag_lets_through_its_own_messages(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, "paid", "open", None, "paid", "refunded")
    assert summary(queue.read(0, expression="paid")) == (FOUND, [b"0", b"3"], 5)
    assert summary(queue.read(0, expression=" paid || refunded ")) == (FOUND, [b"0", b"3", b"4"], 5)
    assert summary(queue.read(1, expression="open", count_max=1)) == (FOUND, [b"1"], 2)


@pytest.mark.parametrize("expression", ["*", "", None])
def test_the_star_lets_all_messages_through(topic: mq.Topic, queue: mq.Queue, expression: str | None) -> None:
    send_tagged(topic, "paid", None, "open")
    assert summary(queue.read(0, expression=expression)) == (FOUND, [b"0", b"1", b"2"], 3)


def test_other_tags_are_passed_over(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, "paid", None, "open")
    assert summary(queue.read(0, expression="refunded")) == (NO_MATCHED_MESSAGE, [], 3)
    assert summary(queue.read(3, expression="refunded")) == (NO_NEW_MESSAGE, [], 3)


def test_a_tag_matches_as_a_whole(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, "paid", "paid,open", "PAID", "paid-")
    assert summary(queue.read(0, expression="paid")) == (FOUND, [b"0"], 4)


def test_tags_that_share_a_hash_are_told_apart(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, "Aa", "BB", "Aa")
    assert summary(queue.read(0, expression="Aa")) == (FOUND, [b"0", b"2"], 3)
    assert summary(queue.read(0, expression="BB")) == (FOUND, [b"1"], 3)
    assert summary(queue.read(2, expression="BB")) == (NO_MATCHED_MESSAGE, [], 3)
    assert summary(queue.read(0, expression="AaBB || BBAa")) == (NO_MATCHED_MESSAGE, [], 3)


def test_no_tag_is_told_from_a_tag_whose_hash_is_zero(topic: mq.Topic, queue: mq.Queue) -> None:
    assert tag_hash("f5a5a608") == 0
    send_tagged(topic, None, "f5a5a608")
    assert summary(queue.read(0, expression="f5a5a608")) == (FOUND, [b"1"], 2)


def test_tags_beyond_ascii_match(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, "标签", "😀", "größe")
    for number, tag in enumerate(("标签", "😀", "größe")):
        assert summary(queue.read(0, expression=tag)) == (FOUND, [b"%d" % number], 3)


@needs(COUNTED_MATCHES)
def test_the_count_is_of_matching_messages(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, *["a", "b"] * 20)
    result = queue.read(0, expression="b", count_max=3)
    assert summary(result) == (FOUND, [b"1", b"3", b"5"], 6)


def test_a_rare_tag_is_found_behind_thousands_of_others(
    topic: mq.Topic, broker: mq.Broker, queue: mq.Queue
) -> None:
    with mq.Producer(broker) as producer:
        for _ in range(4):
            producer.send_batch([mq.Message("orders", b"x", tags="common")] * 500)
        producer.send(mq.Message("orders", b"here", tags="rare"))
    offset, reads = 0, 0
    while (result := queue.read(offset, expression="rare")).status is NO_MATCHED_MESSAGE:
        assert result.next_offset > offset
        offset = result.next_offset
        reads += 1
    assert summary(result) == (FOUND, [b"here"], 2001)
    assert reads <= 4


def test_a_wait_goes_on_past_messages_of_other_tags(topic: mq.Topic, queue: mq.Queue) -> None:
    found: list[mq.PullResult] = []
    with in_the_background(lambda: found.append(queue.read(0, expression="paid", wait=30.0))):
        topic.send(b"no", tags="open")
        topic.send(b"yes", tags="paid")
    (result,) = found
    assert [message.body for message in result.messages] == [b"yes"]
    assert result.next_offset == 2


def test_a_wait_that_saw_other_tags_only_ends_behind_them(topic: mq.Topic, queue: mq.Queue) -> None:
    send_tagged(topic, "open", "open")
    result = queue.read(0, expression="paid", wait=0.05)
    assert result.status in {NO_MATCHED_MESSAGE, NO_NEW_MESSAGE}
    assert (list(result.messages), result.next_offset) == ([], 2)


@pytest.mark.parametrize("expression", ["||", " ", " || ||"])
def test_an_expression_without_a_tag_is_a_syntax_error(queue: mq.Queue, expression: str) -> None:
    with pytest.raises(mq.FilterSyntaxError) as caught:
        queue.read(0, expression=expression)
    assert caught.value.position == 0


def send_at_different_times(topic: mq.Topic, count: int) -> list[int]:
    """Send messages that have each another store time, which are returned."""
    times: list[int] = []
    queue = topic.queues[0]
    while len(times) < count:
        offset = topic.send(b"x").queue_offset
        times.append(queue.read(offset).messages[0].store_time_ms)
        while time.time_ns() // 1_000_000 <= times[-1] + 1:
            time.sleep(0.0005)
    assert times == sorted(set(times))
    return times


@needs(EXACT_TIMES)
def test_offset_at_is_the_first_message_stored_then_or_later(topic: mq.Topic, queue: mq.Queue) -> None:
    times = send_at_different_times(topic, 8)
    for offset, stored in enumerate(times):
        assert queue.offset_at(stored) == offset
        assert queue.offset_at(stored - 1) == offset
        assert queue.offset_at(stored + 1) == offset + 1


@needs(EXACT_TIMES)
def test_offset_at_is_within_the_queue_whatever_the_time(topic: mq.Topic, queue: mq.Queue) -> None:
    assert queue.offset_at(0) == queue.offset_at(1 << 60) == 0
    times = send_at_different_times(topic, 3)
    assert queue.offset_at(0) == queue.offset_at(-5) == 0
    assert queue.offset_at(times[-1] + 1) == queue.offset_at(1 << 60) == 3


@needs(EXACT_TIMES)
def test_offset_at_of_equal_times_is_the_first(topic: mq.Topic, broker: mq.Broker, queue: mq.Queue) -> None:
    with mq.Producer(broker) as producer:
        producer.send(mq.Message("orders", b"before"))
        time.sleep(0.005)
        producer.send_batch([mq.Message("orders", b"x")] * 70)
        time.sleep(0.005)
        producer.send(mq.Message("orders", b"after"))
    stored = queue.read(30).messages[0].store_time_ms
    assert queue.offset_at(stored) == 1
    assert queue.offset_at(stored + 1) == 71
