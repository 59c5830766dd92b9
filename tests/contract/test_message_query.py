"""Messages by id and by key: everything that was sent before can be found, and nothing else."""

from __future__ import annotations

import time

import pytest

import mq


@pytest.fixture
def producer(broker: mq.Broker) -> mq.Producer:
    broker.create_topic("orders", 4)
    return mq.Producer(broker)


def test_a_message_is_found_by_both_of_its_ids(broker: mq.Broker, producer: mq.Producer) -> None:
    results = [producer.send(mq.Message("orders", b"%d" % number, keys="k")) for number in range(50)]
    batch = producer.send_batch([mq.Message("orders", b"%d" % number) for number in range(50, 60)])
    results += batch.split()
    for number, result in enumerate(results):
        for msg_id in (result.msg_id, result.offset_msg_id):
            message = broker.message(msg_id)
            assert message.body == b"%d" % number
            assert (message.msg_id, message.offset_msg_id) == (result.msg_id, result.offset_msg_id)


@pytest.mark.parametrize(
    "msg_id",
    [
        "0" * 32,
        "F" * 32,
        "0" * 56,
        "7F00000100002A9F00000000000030B7",
        "x",
        "",
        "not an id",
        "A" * 31,
        "é" * 32,
    ],
)
def test_an_id_of_nothing_is_not_found(broker: mq.Broker, producer: mq.Producer, msg_id: str) -> None:
    producer.send(mq.Message("orders", b"x"))
    with pytest.raises(mq.MessageNotFound):
        broker.message(msg_id)


def test_a_place_inside_of_a_record_is_no_message(broker: mq.Broker, producer: mq.Producer) -> None:
    producer.send(mq.Message("orders", b"x"))
    good = producer.send(mq.Message("orders", b"x" * 400)).offset_msg_id
    for shift in (1, 4, 20, 88, 100):
        wrong = good[:16] + f"{int(good[16:], 16) + shift:016X}"
        with pytest.raises(mq.MessageNotFound):
            broker.message(wrong)


def test_a_key_finds_its_messages_newest_first(broker: mq.Broker, producer: mq.Producer) -> None:
    for number in range(9):
        producer.send(mq.Message("orders", b"%d" % number, keys=["all", f"k{number % 3}"]))
    assert [message.body for message in broker.query("orders", "k1")] == [b"7", b"4", b"1"]
    assert [message.body for message in broker.query("orders", "all")] == [
        b"%d" % n for n in range(8, -1, -1)
    ]


def test_count_max_keeps_the_newest(broker: mq.Broker, producer: mq.Producer) -> None:
    for number in range(10):
        producer.send(mq.Message("orders", b"%d" % number, keys="k"))
    assert [message.body for message in broker.query("orders", "k", count_max=3)] == [b"9", b"8", b"7"]


def test_a_query_returns_32_messages_by_default(broker: mq.Broker, producer: mq.Producer) -> None:
    for _ in range(40):
        producer.send(mq.Message("orders", b"x", keys="k"))
    assert len(broker.query("orders", "k")) == 32
    assert len(broker.query("orders", "k", count_max=64)) == 40


def test_a_query_sees_every_message_sent_before_it(broker: mq.Broker, producer: mq.Producer) -> None:
    for number in range(150):
        result = producer.send(mq.Message("orders", b"x", keys=f"key-{number}"))
        assert [message.msg_id for message in broker.query("orders", f"key-{number}")] == [result.msg_id]


def test_a_unique_id_is_a_key_as_well(broker: mq.Broker, producer: mq.Producer) -> None:
    result = producer.send(mq.Message("orders", b"x"))
    assert [message.msg_id for message in broker.query("orders", result.msg_id)] == [result.msg_id]


def test_a_query_is_of_one_topic_and_of_whole_keys(broker: mq.Broker, producer: mq.Producer) -> None:
    producer.send(mq.Message("orders", b"here", keys="k"))
    producer.send(mq.Message("others", b"there", keys="k"))
    producer.send(mq.Message("orders", b"x", keys=["kk", "K"], tags="k", properties={"p": "k"}))
    assert [message.body for message in broker.query("orders", "k")] == [b"here"]
    assert [message.body for message in broker.query("others", "k")] == [b"there"]
    assert broker.query("orders", "nothing") == []


def test_keys_that_share_a_hash_are_told_apart(broker: mq.Broker, producer: mq.Producer) -> None:
    for key in ("Aa", "BB", "AaAa", "BBBB", "AaBB"):
        producer.send(mq.Message("orders", key.encode(), keys=key))
    for key in ("Aa", "BB", "AaAa", "BBBB", "AaBB"):
        assert [message.body for message in broker.query("orders", key)] == [key.encode()]
    assert broker.query("orders", "BBAa") == []


def test_keys_beyond_ascii_are_found(broker: mq.Broker, producer: mq.Producer) -> None:
    for key in ("größe", "标签", "😀"):
        producer.send(mq.Message("orders", key.encode(), keys=key))
        assert [message.body for message in broker.query("orders", key)] == [key.encode()]


def test_a_key_given_twice_finds_its_message_once(broker: mq.Broker, producer: mq.Producer) -> None:
    producer.send(mq.Message("orders", b"x", keys=["k", "k"]))
    assert [message.body for message in broker.query("orders", "k")] == [b"x"]


def test_a_window_of_time_bounds_a_query(broker: mq.Broker, producer: mq.Producer) -> None:
    times = []
    for number in range(3):
        result = producer.send(mq.Message("orders", b"%d" % number, keys="k"))
        times.append(broker.message(result.offset_msg_id).store_time_ms)
        while time.time_ns() // 1_000_000 <= times[-1] + 1:
            time.sleep(0.0005)

    def found(begin_ms: int = 0, end_ms: int | None = None) -> list[bytes]:
        return [message.body for message in broker.query("orders", "k", begin_ms=begin_ms, end_ms=end_ms)]

    assert found(times[0], times[2]) == [b"2", b"1", b"0"]
    assert found(times[0] + 1, times[2] - 1) == [b"1"]
    assert found(times[1], times[1]) == [b"1"]
    assert found(begin_ms=times[1]) == [b"2", b"1"]
    assert found(end_ms=times[1]) == [b"1", b"0"]
    assert found(end_ms=times[0] - 1) == found(begin_ms=times[2] + 1) == []


def test_a_batch_is_found_by_the_keys_of_its_members(broker: mq.Broker, producer: mq.Producer) -> None:
    producer.send_batch(
        [mq.Message("orders", b"%d" % number, keys=[f"k{number}", "all"]) for number in range(5)]
    )
    assert [message.body for message in broker.query("orders", "k3")] == [b"3"]
    assert len(broker.query("orders", "all")) == 5


@pytest.mark.parametrize("count_max", [0, -1])
def test_a_query_for_nothing_is_an_error(broker: mq.Broker, producer: mq.Producer, count_max: int) -> None:
    with pytest.raises(ValueError, match="count_max"):
        broker.query("orders", "k", count_max=count_max)
