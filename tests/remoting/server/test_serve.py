"""mq's own client at one end of the wire, serve() at the other, a broker of each kind behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

import mq
from mq.errors import AddressInUse
from mq.remoting import serve
from mq.remoting.server.server import Server
from tests.support.eventually import eventually

LIMIT = 60.0


def count(consumer: mq.PushConsumer) -> int:
    """How many queues of orders it has."""
    return sum(queue.topic == "orders" for queue in consumer.assignment())


def until(what: object, seconds: float = LIMIT) -> None:
    eventually(what, lambda: "it did not come true", seconds)  # type: ignore[arg-type]  # a callable, as tests write it


def test_what_a_client_sends_is_in_the_store(store: mq.Broker, client: mq.Broker) -> None:
    store.create_topic("orders", 1)
    with mq.Producer(client, timeout=LIMIT) as producer:
        results = [
            producer.send(mq.Message("orders", b"%d" % n, tags="paid", keys=f"k{n}")) for n in range(5)
        ]
    (queue,) = store.topic("orders").queues
    found = queue.read(0).messages
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.msg_id for message in found] == [result.msg_id for result in results]
    assert [message.queue_offset for message in found] == [result.queue_offset for result in results]
    assert found[0].tags == "paid"
    assert found[0].keys == ("k0",)


def test_what_is_in_the_store_a_client_reads(store: mq.Broker, client: mq.Broker) -> None:
    topic = store.create_topic("orders", 1)
    for n in range(5):
        topic.send(b"%d" % n, tags="odd" if n % 2 else "even")
    (queue,) = client.topic("orders").queues
    assert [message.body for message in queue.read(0).messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.body for message in queue.read(0, expression="odd").messages] == [b"1", b"3"]
    assert (queue.min_offset, queue.max_offset) == (0, 5)


def test_the_first_message_makes_its_topic(store: mq.Broker, client: mq.Broker) -> None:
    with mq.Producer(client, timeout=LIMIT) as producer:
        producer.send(mq.Message("fresh", b"one"))
    assert "fresh" in store.topics()
    with pytest.raises(mq.TopicNotFound):
        client.topic("nothing")


def test_a_batch_lies_side_by_side(store: mq.Broker, client: mq.Broker) -> None:
    store.create_topic("orders", 1)
    with mq.Producer(client, timeout=LIMIT) as producer:
        result = producer.send_batch([mq.Message("orders", b"%d" % n) for n in range(10)])
    found = store.topic("orders").queues[0].read(0).messages
    assert [message.msg_id for message in found] == list(result.msg_ids)


def test_a_pull_is_held_until_there_is_a_message(store: mq.Broker, client: mq.Broker) -> None:
    topic = store.create_topic("orders", 1)
    (queue,) = client.topic("orders").queues
    assert queue.read(0, wait=0.1).status is mq.PullStatus.NO_NEW_MESSAGE
    came: list[mq.MessageExt] = []
    with mq.PushConsumer(client, "billing") as consumer:
        consumer.subscribe("orders", listener=came.append)
        consumer.start()
        until(lambda: count(consumer) == 1)
        topic.send(b"one")
        until(lambda: [message.body for message in came] == [b"one"])
    until(lambda: store.group("billing").lag("orders") == 0)
    until(lambda: store.group("billing").members() == [])


def test_local_and_remote_members_share_the_queues(store: mq.Broker, client: mq.Broker) -> None:
    topic = store.create_topic("orders", 4)
    came: list[bytes] = []
    with mq.PushConsumer(store, "billing") as local, mq.PushConsumer(client, "billing") as remote:
        for consumer in (local, remote):
            consumer.subscribe("orders", listener=lambda message: came.append(message.body))
            consumer.start()
        until(lambda: count(local) == count(remote) == 2)
        owners = {state.owner.client_id for state in store.group("billing").states("orders") if state.owner}
        assert local.client_id in owners
        for n in range(100):
            topic.send(b"%d" % n)
        until(lambda: len(came) >= 100)
        assert sorted(came, key=int) == [b"%d" % n for n in range(100)]
        assert {member.client_id for member in store.group("billing").members()} == {
            local.client_id,
            remote.client_id,
        }
    until(lambda: store.group("billing").lag("orders") == 0)


def test_a_port_in_use_has_an_error_of_its_own(server: Server, store: mq.Broker) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(AddressInUse, match=rf"^127.0.0.1:{port} is in use: give another port"):
        serve(store, port=port, namesrv_port=0)


def test_messages_are_found_by_id_and_by_key(store: mq.Broker, client: mq.Broker) -> None:
    store.create_topic("orders", 1)
    with mq.Producer(client, timeout=LIMIT) as producer:
        result = producer.send(mq.Message("orders", b"one", keys="k"))
    assert client.message(result.offset_msg_id).body == b"one"
    assert client.message(result.msg_id).offset_msg_id == result.offset_msg_id
    assert [message.body for message in client.query("orders", "k")] == [b"one"]
    with pytest.raises(mq.MessageNotFound):
        client.message("0" * 32)


def test_topics_are_made_and_deleted(store: mq.Broker, client: mq.Broker) -> None:
    client.create_topic("orders", 2, ordered=True)
    assert len(store.topic("orders").queues) == 2
    client.create_topic("orders", 3)  # And changed.
    assert len(store.topic("orders").queues) == 3
    client.delete_topic("orders")
    assert store.topics() == []


def test_what_fails_comes_again(store: mq.Broker, client: mq.Broker) -> None:
    topic = store.create_topic("orders", 1)
    came: list[tuple[bytes, int]] = []

    def bill(message: mq.MessageExt) -> None:
        came.append((message.body, message.reconsume_times))
        if message.reconsume_times == 0:
            raise mq.Retry(delay_level=1)

    with mq.PushConsumer(client, "billing") as consumer:
        consumer.subscribe("orders", listener=bill)
        consumer.start()
        topic.send(b"one")
        until(lambda: came == [(b"one", 0), (b"one", 1)])


def test_one_that_always_fails_becomes_a_dead_letter(store: mq.Broker, client: mq.Broker) -> None:
    topic = store.create_topic("orders", 1)

    def bill(_: mq.MessageExt) -> None:
        raise mq.Retry(delay_level=1)

    with mq.PushConsumer(client, "billing", max_reconsume_times=0) as consumer:
        consumer.subscribe("orders", listener=bill)
        consumer.start()
        topic.send(b"one")
        until(lambda: "%DLQ%billing" in store.topics())
    assert [message.body for message in store.topic("%DLQ%billing").queues[0].read(0).messages] == [b"one"]


@pytest.mark.parametrize("state", [mq.TransactionState.COMMIT, mq.TransactionState.ROLLBACK])
def test_a_transaction_ends_as_its_producer_says(
    store: mq.Broker, client: mq.Broker, state: mq.TransactionState
) -> None:
    topic = store.create_topic("orders", 1)
    (queue,) = topic.queues
    with mq.TransactionProducer(client, "banking", lambda _: mq.TransactionState.UNKNOWN) as producer:
        producer.send(mq.Message("orders", b"one"), lambda *_: state)
        producer.send(mq.Message("orders", b"two"), lambda *_: mq.TransactionState.COMMIT)
        wanted = [b"one", b"two"] if state is mq.TransactionState.COMMIT else [b"two"]
        # Ends are told without an answer, and nothing keeps their order.
        until(lambda: queue.max_offset == len(wanted))
    assert sorted(message.body for message in queue.read(0).messages) == wanted


def test_an_undecided_transaction_is_asked_about(directory: Path) -> None:
    asked: list[bytes] = []

    def check(message: mq.MessageExt) -> mq.TransactionState:
        asked.append(message.body)
        return mq.TransactionState.COMMIT

    with (
        mq.open(directory, transaction_timeout=0.5, transaction_check_interval=1.0) as store,
        serve(store, port=0, namesrv_port=0) as server,
        mq.open("rocketmq://" + server.name_server, timeout=30.0) as client,
    ):
        (queue,) = store.create_topic("orders", 1).queues
        with mq.TransactionProducer(client, "banking", check) as producer:
            producer.send(mq.Message("orders", b"one"), lambda *_: mq.TransactionState.UNKNOWN)
            until(lambda: [message.body for message in queue.read(0).messages] == [b"one"])
    assert asked[0] == b"one"


def test_ordered_members_have_a_queue_one_after_the_other(store: mq.Broker, client: mq.Broker) -> None:
    topic = store.create_topic("orders", 2)
    came: list[bytes] = []
    with mq.PushConsumer(client, "billing", ordered=True) as consumer:
        consumer.subscribe("orders", listener=lambda message: came.append(message.body))
        consumer.start()
        until(lambda: count(consumer) == 2)
        for n in range(20):
            topic.send(b"%d" % n, shard_key="same")
        until(lambda: came == [b"%d" % n for n in range(20)])
