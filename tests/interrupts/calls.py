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
    asynchronous_batch,
    asynchronous_loop,
    asynchronous_run,
    begun,
    broadcast,
    evicted,
    forgotten,
    iterated,
    managed,
    once,
    once_cleared,
    polled,
    pushed,
    ran,
    sought,
    states,
    subscribed_anew,
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


def batch_taken_apart(broker: LocalBroker) -> Call:
    producer = mq.Producer(broker)
    producer.before_send.append(lambda _message, _queue: None)
    producer.after_send.append(lambda *_: None)

    def send(number: int) -> None:
        message = mq.Message("orders", b"%d" % number)
        assert not producer.has_dedup_window
        assert producer.send(message.without_wait()).msg_id
        assert len(producer.send_batch([message] * 3).split()) == 3

    return send


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


def read_as_columns(broker: LocalBroker) -> Call:
    broker.topic("orders").send(b"read", shard_key=0)
    (queue,) = [queue for queue in broker.topic("orders").queues if queue.max_offset]
    return lambda _number: queue.read_arrow(0)


def scanned(broker: LocalBroker) -> Call:
    """What Spark does with a topic."""
    broker.topic("orders").send(b"read", shard_key=0)
    (end, queue) = max((queue.max_offset, queue.message_queue) for queue in broker.topic("orders").queues)
    scan, bulk = broker.bulk.scan(queue, ("body", "keys")), broker.bulk

    def read(_number: int) -> None:
        assert scan.read(0, end, 10, 1 << 20).next_offset
        assert bulk.scan(queue, ("body",)).read(0, end, 10, 1 << 20).next_offset
        assert bulk.limits([queue])[1][0]
        bulk.wait({queue: 0}, PATIENCE)
        assert bulk.fit(queue, 0, end, bulk.size_max)[0]
        assert bulk.first_not_indexed(queue, 0, end) <= end
        assert bulk.topic_begin("orders") >= 0
        assert len(bulk.queues_to_write("orders")) == 2
        delays = bulk.delay_queues
        assert delays.delay_max_ms > delays.precision_ms
        assert delays.level(delays.levels) != delays.timed
        bulk.release()

    return read


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


def decided(broker: LocalBroker) -> Call:
    """Transactions that are decided within their with statement."""
    producer = mq.TransactionProducer(broker, "bank", lambda _message: mq.TransactionState.ROLLBACK)
    ways = mq.Transaction.commit, mq.Transaction.rollback, mq.Transaction.unknown

    def decide(_number: int) -> None:
        for way in ways:
            with producer.begin(mq.Message("orders", b"of a transaction")) as transaction:
                way(transaction)
        with suppress(mq.MessageNotFound):
            broker.transactions.resume(transaction.message_id)  # It was not given up.

    return decide


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
        with mq.TransactionProducer(broker, "bank", lambda _message: mq.TransactionState.UNKNOWN) as producer:
            producer.close()

    return use


def retention(broker: LocalBroker) -> Call:
    return lambda number: broker.retention.change(hours=72 + number % 5)


def retained(broker: LocalBroker) -> Call:
    """What retention tells, and deletes."""

    def look(_number: int) -> None:
        retention = broker.retention
        assert retention.hours > retention.warned_hours
        assert retention.disk_ratio_max
        assert not retention.held
        retention.away  # noqa: B018 - which reads
        retention.warned()
        assert not retention.expiring(within_hours=1).file_count
        retention.confirm()
        retention.expire()

    return look


def bulk(broker: LocalBroker) -> Call:
    queues = [mq.MessageQueue("orders", broker.name, number) for number in range(2)]
    places, no_properties = array("i", [0, 1] * 5), array("i", [0] * 10)

    def append(number: int) -> None:
        body = b"bulk %d" % number
        stored = broker.bulk.append(
            queues, places, [body * 10], array("i", [len(body)] * 10), [], no_properties
        )
        broker.bulk.sync(stored)
        broker.bulk.flush_unattended()

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
        queue = topic.queues[0]
        assert (queue.topic, queue.queue_id) == ("orders", 0)
        assert queue.offset_at(0) == queue.min_offset == 0
        assert broker.queue_offsets("orders")
        assert broker.settings("orders").read_queue_count == 2
        broker.when_reachable(queue.message_queue, list)()
        with suppress(MQError):
            broker.topic("missing")

    return look


def served(broker: LocalBroker) -> Call:
    def serve(_number: int) -> None:
        with mq.remoting.serve(broker, port=0, namesrv_port=0) as server:
            host, _, port = server.address.rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE).close()
            assert server.host == host
            assert server.name_server
            assert server.connections >= 0
            assert len(server.clients()) >= 0  # One connects between the two looks.
            assert server.traffic is not None

    return serve


def replicated(broker: LocalBroker) -> Call:
    def follow(number: int) -> None:
        path = broker.path.with_name(f"replica-{number}")
        with mq.remoting.serve(broker, port=0, namesrv_port=0, ha_port=0) as server:
            assert server.ha_address is not None
            # One that is cut short may have lost its server by then: it waits for so long, and then closes.
            with mq.remoting.replicate(
                server.ha_address, path, broker=server.address, timeout=PATIENCE / 6
            ) as replica:
                assert replica.error is None
                assert not replica.is_over
                assert not replica.cuts
                assert (replica.address, replica.path) == (server.ha_address, path)
                assert replica.offset >= 0
                replica.lag, replica.is_connected  # noqa: B018 - which look

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
            batch_taken_apart,
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
    **dict.fromkeys((retention, bulk, states, decided, managed, iterated, evicted, begun, forgotten), 15),
    **dict.fromkeys((retained, scanned, read_as_columns), 10),
    **dict.fromkeys((verified, worked, subscribed_anew, ran), 8),
    **dict.fromkeys((asynchronous_batch, asynchronous_loop), 8),
    **dict.fromkeys((asynchronous_run,), 4),
    **dict.fromkeys((producers, closed_and_opened, beside_itself, pushed, polled, broadcast, recalled), 8),
    **dict.fromkeys((transaction_producers, asynchronous, served, replicated), 8),
}
