"""What is sent comes back field by field, in order, and in batches as a whole."""

from __future__ import annotations

import itertools
import threading
import time
import zlib

import pytest

import mq
from tests.contract.differences import EXACT_RECORDS, KEPT_WAIT, needs
from tests.support.appending import home_of
from tests.support.arrivals import read_all


@pytest.fixture
def queue(broker: mq.Broker) -> mq.Queue:
    return broker.create_topic("orders", 1).queues[0]


@pytest.fixture
def producer(broker: mq.Broker) -> mq.Producer:
    return mq.Producer(broker, timeout=60.0)


def bodies(queue: mq.Queue) -> list[bytes]:
    """All that is in a queue, read in pieces of three."""
    return [message.body for message in read_all(queue, queue.min_offset, count_max=3)]


def test_every_field_comes_back(broker: mq.Broker, producer: mq.Producer, queue: mq.Queue) -> None:
    before = time.time_ns() // 1_000_000
    sent = producer.send(
        mq.Message(
            "orders",
            b"body",
            tags="paid",
            keys=["k1", "k2"],
            properties={"price": "9", "größe": "groß"},
            flag=-7,
        )
    )
    after = time.time_ns() // 1_000_000
    (message,) = queue.read(0).messages
    assert (message.topic, message.body, message.tags) == ("orders", b"body", "paid")
    assert message.keys == ("k1", "k2")
    assert message.flag == -7
    assert {
        "price": "9",
        "größe": "groß",
        "TAGS": "paid",
        "KEYS": "k1 k2",
    }.items() <= message.properties.items()
    assert message.properties["UNIQ_KEY"] == message.msg_id == sent.msg_id
    assert "__CRC32#" not in message.properties
    assert (message.queue_id, message.queue_offset) == (0, 0)
    assert (sent.queue, sent.queue_offset) == (queue.message_queue, 0)
    assert sent.status is mq.SendStatus.SEND_OK
    assert sent.msg_ids == (sent.msg_id,)
    assert message.offset_msg_id == sent.offset_msg_id
    assert before <= message.born_time_ms <= message.store_time_ms <= after
    assert (message.sys_flag, message.reconsume_times, message.prepared_transaction_offset) == (0, 0, 0)
    assert message.body_crc == zlib.crc32(b"body") & 0x7FFFFFFF
    assert message.store_size == len(message.record)
    assert message.broker_name == home_of(broker) == queue.message_queue.broker_name
    assert (message.delay_level, message.delay_ms, message.deliver_at_ms) == (0, None, None)


@needs(EXACT_RECORDS)
def test_a_message_without_anything_comes_back_so(producer: mq.Producer, queue: mq.Queue) -> None:
    producer.send(mq.Message("orders", b"\x00"))
    (message,) = queue.read(0).messages
    assert (message.body, message.tags, message.keys, message.flag) == (b"\x00", None, (), 0)
    assert list(message.properties) == ["UNIQ_KEY"]


def test_every_byte_of_a_body_comes_back(producer: mq.Producer, queue: mq.Queue) -> None:
    body = bytes(range(256)) * 5
    producer.send(mq.Message("orders", body))
    assert queue.read(0).messages[0].body == body


@needs(EXACT_RECORDS)
def test_every_record_ends_with_the_checksum_of_what_is_before_it(
    producer: mq.Producer, queue: mq.Queue
) -> None:
    producer.send(mq.Message("orders", b"one", tags="t"))
    producer.send_batch([mq.Message("orders", b"two"), mq.Message("orders", b"three", properties={"a": "1"})])
    for message in queue.read(0).messages:
        content, checksum = message.record[:-20], message.record[-20:]
        digits = f"{zlib.crc32(content) & 0x7FFFFFFF:010}"[::-1]
        assert checksum == b"__CRC32#\x01" + digits.encode() + b"\x02"


def test_a_large_body_is_compressed_in_the_log_and_comes_back_whole(
    producer: mq.Producer, queue: mq.Queue
) -> None:
    body = b"compressible " * 1000
    producer.send(mq.Message("orders", body))
    (message,) = queue.read(0).messages
    assert message.sys_flag == 0x301
    assert len(message.stored_body) < len(body)
    assert message.body == body


def test_one_message_sent_twice_is_two_messages(producer: mq.Producer, queue: mq.Queue) -> None:
    message = mq.Message("orders", b"x")
    results = [producer.send(message), producer.send(message)]
    assert [result.queue_offset for result in results] == [0, 1]
    assert results[0].msg_id != results[1].msg_id
    assert bodies(queue) == [b"x", b"x"]


def test_unique_ids_are_unique_over_messages_and_batches(producer: mq.Producer, queue: mq.Queue) -> None:
    ids = [producer.send(mq.Message("orders", b"x")).msg_id for _ in range(100)]
    ids += producer.send_batch([mq.Message("orders", b"x")] * 100).msg_ids
    assert len(set(ids)) == 200
    assert {len(msg_id) for msg_id in ids} <= {32, 56}
    assert [message.msg_id for message in read_all(queue)] == ids


def test_queue_offsets_are_dense_and_in_the_order_of_sending(producer: mq.Producer, queue: mq.Queue) -> None:
    for number in range(100):
        assert producer.send(mq.Message("orders", b"%d" % number)).queue_offset == number
    assert bodies(queue) == [b"%d" % number for number in range(100)]
    assert (queue.min_offset, queue.max_offset) == (0, 100)


def test_log_offsets_grow_with_queue_offsets(broker: mq.Broker, producer: mq.Producer) -> None:
    topic = broker.create_topic("orders", 3)
    for number in range(60):
        producer.send(mq.Message("orders", b"x" * (number * 37 % 500 + 1)))
    for queue in topic.queues:
        messages = queue.read(0, count_max=60).messages
        assert [message.queue_offset for message in messages] == list(range(20))
        offsets = [message.log_offset for message in messages]
        assert offsets == sorted(set(offsets))


def test_messages_go_to_all_queues_in_turn(broker: mq.Broker, producer: mq.Producer) -> None:
    topic = broker.create_topic("orders", 4)
    used = [producer.send(mq.Message("orders", b"x")).queue.queue_id for _ in range(8)]
    assert sorted(used[:4]) == [0, 1, 2, 3]
    assert used[:4] == used[4:]
    assert [queue.max_offset for queue in topic.queues] == [2, 2, 2, 2]


def test_a_batch_lies_side_by_side_and_each_member_has_its_own_values(
    producer: mq.Producer, queue: mq.Queue
) -> None:
    producer.send(mq.Message("orders", b"before"))
    batch = [
        mq.Message("orders", b"a", tags="t1", keys="k1", flag=1),
        mq.Message("orders", b"bb", flag=-1),
        mq.Message("orders", b"ccc", tags="t3", properties={"p": "q"}),
    ]
    result = producer.send_batch(batch)
    producer.send(mq.Message("orders", b"after"))
    assert result.queue_offset == 1
    messages = queue.read(1, count_max=3).messages
    assert [message.queue_offset for message in messages] == [1, 2, 3]
    assert [message.msg_id for message in messages] == list(result.msg_ids)
    assert result.msg_id == ",".join(result.msg_ids)
    assert [message.offset_msg_id for message in messages] == result.offset_msg_id.split(",")
    assert [(m.body, m.tags, m.keys, m.flag) for m in messages] == [
        (m.body, m.tags, m.keys, m.flag) for m in batch
    ]
    assert messages[2].properties["p"] == "q"
    assert len({message.store_time_ms for message in messages}) == 1
    split = result.split()
    assert [each.msg_id for each in split] == list(result.msg_ids)
    assert [each.offset_msg_id for each in split] == [message.offset_msg_id for message in messages]
    assert [each.queue_offset for each in split] == [1, 2, 3]


@needs(EXACT_RECORDS)
def test_the_records_of_a_batch_follow_each_other(producer: mq.Producer, queue: mq.Queue) -> None:
    producer.send_batch([mq.Message("orders", b"a" * length) for length in (1, 100, 7)])
    messages = queue.read(0).messages
    for message, following in itertools.pairwise(messages):
        assert following.log_offset == message.log_offset + message.store_size


def test_a_batch_that_is_refused_leaves_nothing(
    broker: mq.Broker, producer: mq.Producer, queue: mq.Queue
) -> None:
    good = mq.Message("orders", b"x")
    half = mq.Message("orders", b"x" * (broker.message_size_max // 2))
    for batch, error in (
        ([], mq.MessageInvalid),
        ([good, mq.Message("other", b"x")], mq.MessageInvalid),
        ([good, mq.Message("orders", b"x", delay_level=1)], mq.MessageInvalid),
        ([good, mq.Message("orders", b"x", delay_ms=5)], mq.MessageInvalid),
        ([good, mq.Message("orders", b"x", wait=False)], mq.MessageInvalid),
        ([half, half], mq.MessageTooLarge),
    ):
        with pytest.raises(error):
            producer.send_batch(batch)
    with pytest.raises(mq.MessageTooLarge, match=r"a batch of 2 messages, .* in several parts"):
        producer.send_batch([half, half])
    assert queue.max_offset == 0
    assert queue.read(0).status is mq.PullStatus.NO_NEW_MESSAGE


def test_a_batch_of_messages_that_do_not_wait_is_stored(
    broker: mq.Broker, producer: mq.Producer, queue: mq.Queue
) -> None:
    producer.send_batch([mq.Message("orders", b"x", wait=False), mq.Message("orders", b"y", wait=False)])
    broker.flush()
    assert bodies(queue) == [b"x", b"y"]
    assert queue.read(0).messages[0].properties["WAIT"] == "false"


def test_a_large_batch_crosses_many_files(producer: mq.Producer, queue: mq.Queue) -> None:
    batch = [mq.Message("orders", b"%d" % number) for number in range(500)]
    for _ in range(3):
        producer.send_batch(batch)
    assert bodies(queue) == [b"%d" % number for number in range(500)] * 3


def test_bodies_larger_than_what_is_left_of_a_file_come_back(broker: mq.Broker, queue: mq.Queue) -> None:
    noise = [bytes([number]) * 200_000 for number in range(1, 20)]
    with mq.Producer(broker, compress_over=1 << 30) as raw:
        for body in noise:
            raw.send(mq.Message("orders", body))
    assert bodies(queue) == noise


def test_the_same_shard_key_goes_to_the_same_queue(broker: mq.Broker, producer: mq.Producer) -> None:
    topic = broker.create_topic("orders", 4)
    keys = [f"customer-{number}" for number in range(40)]
    first = {key: producer.send(mq.Message("orders", b"x"), shard_key=key).queue for key in keys}
    assert {key: topic.send(b"x", shard_key=key).queue for key in keys} == first
    with mq.Producer(broker, "another") as other:
        assert {key: other.send(mq.Message("orders", b"x"), shard_key=key).queue for key in keys} == first
        batches = {key: other.send_batch([mq.Message("orders", b"x")], shard_key=key).queue for key in keys}
        assert batches == first
    assert len(set(first.values())) == 4


def test_topic_send_takes_what_a_message_takes(broker: mq.Broker) -> None:
    topic = broker.create_topic("orders", 1)
    result = topic.send(b"body", tags="t", keys=["a", "b"], properties={"p": "q"})
    (message,) = topic.queues[0].read(0).messages
    assert (message.msg_id, message.tags, message.keys) == (result.msg_id, "t", ("a", "b"))
    assert message.properties["p"] == "q"


def test_what_send_async_takes_is_stored_in_the_order_of_the_calls(
    producer: mq.Producer, queue: mq.Queue
) -> None:
    with producer:
        futures = [producer.send_async(mq.Message("orders", b"%d" % number)) for number in range(300)]
    results = [future.result(timeout=60) for future in futures]
    assert [result.queue_offset for result in results] == list(range(300))
    messages = read_all(queue)
    assert [message.body for message in messages] == [b"%d" % number for number in range(300)]
    assert [message.msg_id for message in messages] == [result.msg_id for result in results]
    assert [message.offset_msg_id for message in messages] == [result.offset_msg_id for result in results]


@needs(KEPT_WAIT)
def test_a_oneway_send_is_stored_without_a_result(producer: mq.Producer, queue: mq.Queue) -> None:
    producer.send_oneway(mq.Message("orders", b"x", tags="t"))
    (message,) = queue.read(0, wait=60.0).messages
    assert (message.body, message.tags, message.wait) == (b"x", "t", False)


def test_threads_together_leave_no_gap_and_keep_their_own_order(broker: mq.Broker, queue: mq.Queue) -> None:
    def work(name: int) -> None:
        with mq.Producer(broker) as producer:
            for number in range(50):
                if number % 10 == 9:
                    producer.send_batch([mq.Message("orders", b"%d:%d" % (name, number))])
                else:
                    producer.send(mq.Message("orders", b"%d:%d" % (name, number)))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = bodies(queue)
    assert len(found) == 200
    for name in range(4):
        mine = [body for body in found if body.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, number) for number in range(50)]


def test_flush_returns_after_a_send(broker: mq.Broker, producer: mq.Producer, queue: mq.Queue) -> None:
    producer.send(mq.Message("orders", b"x"))
    broker.flush()
    assert bodies(queue) == [b"x"]
