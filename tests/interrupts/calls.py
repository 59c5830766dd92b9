"""The calls that are cut short: each of the library, as a user makes it.

A kind is a function of a broker that returns a call; the call gets a number, another one each time, and the
same one again when it was cut short.
"""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import mq
from mq.broker.local import LocalBroker
from mq.errors import MQError
from mq.store.check import problems
from tests.interrupts.consumer_calls import (
    GROUP,
    PATIENCE,
    Call,
    administrated,
    asynchronous,
    broadcast,
    once,
    once_cleared,
    polled,
    pushed,
    sought,
    states,
    worked,
)
from tests.support import assigned
from tests.support.store.small_store import SMALL

SIZES: dict[str, Any] = {**SMALL, "commitlog_file_size": 1 << 20, "queue_file_units": 1000}


def plain(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")
    return lambda number: topic.send(b"plain", keys=f"plain-{number}")


def produced(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker)
    message = mq.Message("orders", b"produced")
    return lambda number: producer.send(message, shard_key=number)


def sent_async(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker, timeout=PATIENCE)
    message = mq.Message("orders", b"sent by another thread")

    def send(_number: int) -> None:
        future = producer.send_async(message)
        # An interrupt in Future.result() would leave a lock of concurrent.futures behind.
        if threading.current_thread() is not threading.main_thread():
            future.result(PATIENCE)

    return send


def sent_oneway(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker)
    return lambda number: producer.send_oneway(mq.Message("orders", b"one way"), shard_key=number)


def producers(broker: LocalBroker) -> Call:
    """A producer that has a thread, and is closed."""

    def use(_number: int) -> None:
        with mq.Producer(broker, timeout=PATIENCE) as producer:
            producer.send_async(mq.Message("orders", b"before the end"))

    return use


def batch(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker)
    return lambda number: producer.send_batch([mq.Message("orders", b"%d" % number)] * 3)


def keyed(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker, dedup_window=600)
    return lambda number: producer.send(mq.Message("orders", b"keyed"), dedup_key=f"keyed-{number}")


def keyed_anew(broker: LocalBroker) -> Call:
    """The first of a broker, which opens the table."""

    def send(number: int) -> None:
        with mq.open(broker.path, duties=False, **SIZES) as another:
            keyed(another)(number)

    return send


def delayed(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")
    return lambda number: topic.send(b"delayed", delay_ms=3_600_000 + number)


def queried(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")

    def query(number: int) -> None:
        topic.send(b"queried", keys=f"queried-{number}")
        assert broker.query("orders", f"queried-{number}")

    return query


def created(broker: LocalBroker) -> Call:
    return lambda number: broker.create_topic(f"made-{number}", 2)


def changed(broker: LocalBroker) -> Call:
    return lambda number: broker.create_topic("orders", 2, perm="rw", ordered=bool(number % 2))


def sent_anew(broker: LocalBroker) -> Call:
    """To a topic that is made by sending to it."""
    return lambda number: mq.Producer(broker).send(mq.Message(f"new-{number}", b"first"))


def deleted(broker: LocalBroker) -> Call:
    def make_and_delete(number: int) -> None:
        name = f"short-{number}"
        if name not in broker.topics():
            broker.create_topic(name, 1).send(b"short")
        # An interrupted call may have deleted the topic without having published that.
        with suppress(mq.TopicNotFound):
            broker.delete_topic(name)

    return make_and_delete


def committed(broker: LocalBroker) -> Call:
    queue = broker.topic("orders").queues[0].message_queue
    return lambda number: assigned.commit(broker, GROUP, queue, number)


def reset(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"reset")
    queue = broker.topic("orders").queues[0].message_queue
    return lambda _number: broker.consumer_groups.reset(GROUP, {queue: 0})


def read(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"read")
    return lambda _number: broker.topic("orders").queues[0].read(0)


def flushed(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")

    def flush(_number: int) -> None:
        topic.send(b"flushed")
        broker.flush()
        broker.expire()

    return flush


def closed_and_opened(broker: LocalBroker) -> Call:
    path = broker.path.with_name("another")
    return lambda _number: mq.open(path, **SIZES).close()


def beside_itself(broker: LocalBroker) -> Call:
    """A second broker of this process, in a with statement, that sends."""

    def use(number: int) -> None:
        with mq.open(broker.path, **SIZES) as other:
            other.topic("orders").send(b"%d" % number)

    return use


def recalled(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")
    handles: dict[int, str] = {}

    def recall(number: int) -> None:
        if number not in handles:
            handle = topic.send(b"recalled", delay_ms=3_600_000).recall_handle
            assert handle is not None
            handles[number] = handle
        with suppress(mq.MessageNotFound):  # when it was recalled before
            broker.recall(handles[number])

    return recall


def transacted(broker: LocalBroker) -> Call:
    producer = mq.TransactionProducer(broker, "bank", lambda _message: mq.TransactionState.ROLLBACK)
    ends = mq.TransactionState.COMMIT, mq.TransactionState.ROLLBACK

    def send(number: int) -> None:
        message = mq.Message("orders", b"of a transaction")
        producer.send(message, lambda _message, _arg: ends[number % 2])
        with producer.begin(message):
            pass

    return send


def unlisted(broker: LocalBroker) -> Call:
    """Transactions whose end takes the long way."""
    producer = mq.TransactionProducer(broker, "bank", lambda _message: mq.TransactionState.UNKNOWN)
    message = mq.Message("orders", b"decided later")
    begun: dict[int, mq.SendResult] = {}

    def end(number: int) -> None:
        if number not in begun:
            begun[number] = producer.send(message, lambda _message, _arg: mq.TransactionState.UNKNOWN)
        place = int(begun[number].offset_msg_id[-16:], 16), begun[number].queue_offset
        broker.transactions.ender("bank")(*place, mq.TransactionState.COMMIT, True)
        broker.transactions.undecided()

    return end


def transaction_producers(broker: LocalBroker) -> Call:
    def use(_number: int) -> None:
        with mq.TransactionProducer(broker, "bank", lambda _message: mq.TransactionState.UNKNOWN):
            pass

    return use


def retention(broker: LocalBroker) -> Call:
    return lambda number: broker.retention.change(hours=72 + number % 5)


def bulk(broker: LocalBroker) -> Call:
    queues = [mq.MessageQueue("orders", broker.name, number) for number in range(2)]
    places, no_properties = array("i", [0, 1] * 5), array("i", [0] * 10)

    def append(number: int) -> None:
        body = b"bulk %d" % number
        broker.bulk.append(queues, places, [body * 10], array("i", [len(body)] * 10), [], no_properties)

    return append


def verified(broker: LocalBroker) -> Call:
    return lambda _number: list(problems(broker.path))


def configured(broker: LocalBroker) -> Call:
    def change(number: int) -> None:
        broker.change_settings(retention_hours=100 + number % 7)
        assert 100 <= broker.kept_settings()["retention_hours"] < 107

    return change


def redriven(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")

    def die_and_redrive(number: int) -> None:
        topic.send(b"dead", keys=f"dead-{number}")
        (message,) = broker.query("orders", f"dead-{number}", count_max=1)
        assigned.send_back(broker, message, GROUP, max_reconsume_times=0)
        broker.redrive(GROUP)

    return die_and_redrive


def looked_up(broker: LocalBroker) -> Call:
    topic = broker.topic("orders")
    result = topic.send(b"found", delay_ms=3_600_000)
    result = topic.send(b"found")

    def look(_number: int) -> None:
        assert broker.message(result.msg_id).body == b"found"
        assert broker.message(result.offset_msg_id).body == b"found"
        assert list(broker.delayed())
        assert topic.queues[0].offset_at(0) == 0
        with suppress(MQError):
            broker.topic("missing")

    return look


def served(broker: LocalBroker) -> Call:
    def serve(_number: int) -> None:
        with mq.remoting.serve(broker, port=0, namesrv_port=0) as server:
            host, _, port = server.address.rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE).close()

    return serve


def replicated(broker: LocalBroker) -> Call:
    def follow(number: int) -> None:
        path = broker.path.with_name(f"replica-{number}")
        with mq.remoting.serve(broker, port=0, namesrv_port=0, ha_port=0) as server:
            assert server.ha_address is not None
            with mq.remoting.replicate(server.ha_address, path, broker=server.address) as replica:
                assert replica.error is None

    def follow_in_time(number: int) -> None:
        # Those that were cut short serve and follow until they have closed.
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return follow(number)
            except mq.StoreLocked:
                assert time.monotonic() < deadline

    return follow_in_time


# With how many instructions of each are interrupted in a usual run.
CALLS: dict[Callable[[LocalBroker], Call], int] = {
    **dict.fromkeys(
        (
            plain,
            produced,
            sent_async,
            sent_oneway,
            batch,
            keyed,
            keyed_anew,
            delayed,
            queried,
            created,
            changed,
        ),
        20,
    ),
    **dict.fromkeys((sent_anew, deleted, committed, reset, read, flushed, once, once_cleared), 20),
    **dict.fromkeys((transacted, unlisted, administrated, configured, redriven, looked_up, sought), 15),
    **dict.fromkeys((retention, bulk, states), 15),
    **dict.fromkeys((verified, worked), 8),
    **dict.fromkeys((producers, closed_and_opened, beside_itself, pushed, polled, broadcast, recalled), 8),
    **dict.fromkeys((transaction_producers, asynchronous, served, replicated), 8),
}
