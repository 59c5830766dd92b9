"""The broker object of a cluster whose servers die, stop, refuse, or answer in pieces."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mq
from mq.client import fault
from tests.support.cluster.access import Access, Account
from tests.support.cluster.asking import GET_CLUSTER, ask
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import Version
from tests.support.cluster.servers import Broker
from tests.support.cluster.settings import BrokerPlan, double_write, slave_of
from tests.support.eventually import eventually
from tests.support.fault_proxy import FaultProxy

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

SEND, PULL = 310, 11
TIMEOUT = 30.0  # A broker that has just started may take longer than the default limit of a request.


def wait_until(what: Callable[[], bool], seconds: float = 120.0) -> None:
    eventually(what, lambda: "it did not come true", seconds, 0.05)


def opened(name_server: str, **options: object) -> mq.Broker:
    options.setdefault("timeout", TIMEOUT)
    broker: mq.Broker = mq.open("rocketmq://" + name_server, **options)  # type: ignore[call-overload]  # passed on
    return broker


@contextmanager
def consuming(broker: mq.Broker, topic: str, group: str) -> Iterator[list[bytes]]:
    got: list[bytes] = []
    consumer = mq.PushConsumer(broker, group)
    consumer.subscribe(topic, listener=lambda message: got.append(message.body))
    consumer.start()
    try:
        yield got
    finally:
        consumer.close()


class Load:
    """Sends numbered messages until it is told to stop; what was acknowledged is in `sent`, and what needed
    more than one attempt in `retried`."""

    def __init__(self, broker: mq.Broker, topic: str) -> None:
        self.sent: list[bytes] = []
        self.retried: set[bytes] = set()
        self.failures: list[mq.MQError] = []
        self._producer = mq.Producer(broker, retries=3)
        self._producer.after_send.append(self._attempted)
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        while not self._is_over.is_set():
            body = b"%d" % number
            number += 1
            try:
                self._producer.send(mq.Message(self._topic, body))
            except mq.MQError as error:
                self.failures.append(error)
            else:
                self.sent.append(body)
            time.sleep(0.005)

    def _attempted(
        self, message: mq.Message, _queue: object, _result: object, error: Exception | None
    ) -> None:
        if error is not None:
            self.retried.add(message.body)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive(), "a send hangs"
        self._producer.close()


def test_a_killed_broker_and_a_killed_name_server_lose_nothing_acknowledged() -> None:
    with (
        Cluster([BrokerPlan("a"), BrokerPlan("b")], name_servers=2) as cluster,
        opened(cluster.name_server) as broker,
    ):
        broker.create_topic("orders", 2)
        with consuming(broker, "orders", "billing") as got:
            load = Load(broker, "orders")
            try:
                wait_until(lambda: len(load.sent) >= 200)
                cluster.brokers["a"].kill()
                before = len(load.sent)
                wait_until(lambda: len(load.sent) >= before + 200)
                cluster.name_servers[0].kill()
                before = len(load.sent)
                wait_until(lambda: len(load.sent) >= before + 200)
                cluster.brokers["a"].restart()
                wait_until(lambda: len(load.sent) >= before + 400)
            finally:
                load.stop()
            wait_until(lambda: set(got) >= set(load.sent))
        wait_until(lambda: can_be_read(broker, "orders"))  # The broker that was killed is up again.
        assert_no_needless_duplicate(broker, "orders", load)


def can_be_read(broker: mq.Broker, topic: str) -> bool:
    with suppress(mq.RemotingError, mq.RequestTimeout):
        return all(queue.read(0, count_max=1) for queue in broker.topic(topic).queues)
    return False


def assert_no_needless_duplicate(broker: mq.Broker, topic: str, load: Load) -> None:
    """Only what was tried again is stored twice, and then under one id."""
    ids: dict[bytes, list[str]] = {}
    for queue in broker.topic(topic).queues:
        offset = 0
        while (found := queue.read(offset, count_max=100)).status is mq.PullStatus.FOUND:
            offset = found.next_offset
            for message in found.messages:
                ids.setdefault(message.body, []).append(message.msg_id)
    assert ids.keys() >= set(load.sent)
    twice = {body: each for body, each in ids.items() if len(each) > 1}
    assert twice.keys() <= load.retried
    assert all(len(set(each)) == 1 for each in twice.values())


def test_a_broker_that_stands_still_costs_no_more_than_the_time_limit() -> None:
    with Cluster() as cluster, opened(cluster.name_server) as broker:
        broker.create_topic("orders", 1)
        with mq.Producer(broker, timeout=1.0, retries=0) as producer:
            producer.send(mq.Message("orders", b"1"), timeout=TIMEOUT)
            cluster.brokers["a"].pause()
            try:
                started = time.monotonic()
                with pytest.raises((mq.RequestTimeout, mq.SendFailed)):
                    producer.send(mq.Message("orders", b"2"))
                assert time.monotonic() - started < 10.0
            finally:
                cluster.brokers["a"].resume()
            wait_until(lambda: sends(producer))


def test_a_broker_that_stands_still_is_left_alone_until_it_answers_a_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No broker is ever available here, so that the producer goes by what is reachable."""
    monkeypatch.setattr(fault, "pause_after", lambda _latency_ms: 1 << 40)
    used: list[str] = []
    with (
        Cluster([BrokerPlan("a"), BrokerPlan("b")]) as cluster,
        opened(cluster.name_server) as broker,
    ):
        broker.create_topic("orders", 1)
        with mq.Producer(broker, timeout=2.0, fault_avoidance=True, fault_detector=True) as producer:
            producer.after_send.append(lambda _message, queue, *_: used.append(queue.broker_name))

            def uses(name: str) -> bool:
                used.clear()
                return sends(producer) and name in used

            wait_until(lambda: uses("a"))
            wait_until(lambda: uses("b"))
            cluster.brokers["a"].pause()
            try:
                wait_until(lambda: not sends(producer))
                for _ in range(20):
                    assert not uses("a")
            finally:
                cluster.brokers["a"].resume()
            wait_until(lambda: uses("a"))


def sends(producer: mq.Producer, body: bytes = b"3") -> bool:
    try:
        return producer.send(mq.Message("orders", body)).status is mq.SendStatus.SEND_OK
    except mq.MQError:
        return False


def test_what_is_cut_or_refused_is_sent_again_under_the_same_id() -> None:
    with Cluster() as cluster:
        (name_server,) = cluster.name_servers
        direct = cluster.brokers["a"].address
        with (
            FaultProxy(direct) as proxy,
            FaultProxy(name_server.address, readdress={direct: proxy.address}) as front,
            opened(front.address) as broker,
        ):
            broker.create_topic("orders", 1)
            with mq.Producer(broker, timeout=TIMEOUT, retries=3) as producer:
                producer.send(mq.Message("orders", b"0"))
                proxy.answer_busy(SEND, number=1)
                assert producer.send(mq.Message("orders", b"1")).status is mq.SendStatus.SEND_OK
                proxy.cut_answer(SEND, after=10)
                twice = producer.send(mq.Message("orders", b"2"))
                proxy.heal()
                (queue,) = broker.topic("orders").queues
                wait_until(lambda: queue.max_offset >= 3)  # Acknowledged is not yet in the queue.
                found = queue.read(0).messages
                assert [message.body for message in found] in ([b"0", b"1", b"2"], [b"0", b"1", b"2", b"2"])
                assert {message.msg_id for message in found if message.body == b"2"} == {twice.msg_id}
            with consuming(broker, "orders", "billing") as got:
                wait_until(lambda: len(got) >= 3)
                proxy.cut_answer(PULL, after=40)
                broker.topic("orders").send(b"3")
                wait_until(lambda: b"3" in got)


def test_answers_that_come_late_or_never_lose_nothing_and_hang_nobody() -> None:
    with Cluster() as cluster:
        (name_server,) = cluster.name_servers
        direct = cluster.brokers["a"].address
        with (
            FaultProxy(direct) as proxy,
            FaultProxy(name_server.address, readdress={direct: proxy.address}) as front,
            opened(front.address) as broker,
        ):
            broker.create_topic("orders", 1)
            with mq.Producer(broker, timeout=TIMEOUT, retries=0) as producer:
                producer.send(mq.Message("orders", b"0"))
                proxy.delay_answers(1.0)
                assert producer.send(mq.Message("orders", b"1")).status is mq.SendStatus.SEND_OK
                proxy.heal()
                proxy.swallow_answers(SEND, count=1)
                with pytest.raises(mq.SendFailed) as never:
                    producer.send(mq.Message("orders", b"2"), timeout=2.0)
                ((_, error),) = never.value.attempts
                assert isinstance(error, mq.RequestTimeout)
                assert error.address == proxy.address
                producer.send(mq.Message("orders", b"3"))
                # What got no answer was stored all the same.
                (queue,) = broker.topic("orders").queues
                wait_until(lambda: queue.max_offset >= 4)  # Acknowledged is not yet in the queue.
                assert [each.body for each in queue.read(0).messages] == [b"0", b"1", b"2", b"3"]
            with consuming(broker, "orders", "billing") as got:
                wait_until(lambda: len(got) >= 4)
                proxy.swallow_answers(PULL, count=1)
                broker.topic("orders").send(b"4")
                broker.topic("orders").send(b"5")
                wait_until(lambda: {b"4", b"5"} <= set(got))


KILLED = """
import os, sys, mq
broker = mq.open("rocketmq://" + sys.argv[1], timeout=60.0)
producer = mq.TransactionProducer(broker, "payments", lambda message: mq.TransactionState.ROLLBACK)
producer.send(mq.Message("orders", b"paid"), lambda *_: os._exit(9))
"""


def rolls_back(producer: mq.TransactionProducer) -> bool:
    try:
        producer.send(mq.Message("orders", b"none"), lambda *_: mq.TransactionState.ROLLBACK)
    except mq.MQError:
        return False
    return True


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_another_producer_answers_the_check_of_a_killed_one(version: Version) -> None:
    """It has sent nothing itself, and knows no route."""
    asked: list[bytes] = []

    def check(message: mq.MessageExt) -> mq.TransactionState:
        asked.append(message.body)
        return mq.TransactionState.COMMIT

    with Cluster([BrokerPlan("a", version)], version=version) as cluster:
        with (
            opened(cluster.name_server) as broker,
            mq.TransactionProducer(broker, "first", lambda _: mq.TransactionState.ROLLBACK) as first,
        ):
            broker.create_topic("orders", 1)
            # The limit of a half message is 3 s, and the first one takes a new broker long.
            wait_until(lambda: rolls_back(first))
        killed = subprocess.run([sys.executable, "-c", KILLED, cluster.name_server], timeout=120, check=False)
        assert killed.returncode == 9
        with (
            opened(cluster.name_server) as broker,
            mq.TransactionProducer(broker, "payments", check),
            opened(cluster.name_server) as other,
            consuming(other, "orders", "billing") as got,
        ):
            wait_until(lambda: got == [b"paid"], 240.0)
        assert set(asked) == {b"paid"}  # A slow machine has it ask twice before it hears the answer.


def test_a_consumer_outlives_a_deleted_topic() -> None:
    with Cluster() as cluster, opened(cluster.name_server) as broker:
        for topic in ("orders", "bills"):
            broker.create_topic(topic, 1)
        got: list[bytes] = []
        with mq.PushConsumer(broker, "billing") as consumer:
            for topic in ("orders", "bills"):
                consumer.subscribe(topic, listener=lambda message: got.append(message.body))
            consumer.start()
            broker.topic("orders").send(b"1")
            wait_until(lambda: got == [b"1"])
            broker.delete_topic("orders")
            wait_until(lambda: "orders" not in {queue.topic for queue in consumer.assignment()})
            broker.topic("bills").send(b"2")
            wait_until(lambda: got == [b"1", b"2"])
            broker.create_topic("orders", 1)
            broker.topic("orders").send(b"3")
            wait_until(lambda: b"3" in got)


def test_a_killed_broker_gets_the_offsets_back_that_it_had_only_in_memory() -> None:
    plan = BrokerPlan("a", settings={"flushConsumerOffsetInterval": 3_600_000})
    with Cluster([plan]) as cluster, opened(cluster.name_server) as broker:
        broker.create_topic("orders", 1)
        with consuming(broker, "orders", "billing") as got:
            broker.topic("orders").send(b"1")
            group = broker.group("billing")

            def is_committed() -> bool:
                with suppress(mq.MQError):  # A broker that was down is tried again after a moment.
                    return sum(group.offsets("orders").values()) == 1
                return False

            wait_until(is_committed)
            cluster.brokers["a"].kill()
            cluster.brokers["a"].restart()
            wait_until(is_committed)
            # A route that was asked for while the broker was away has the queue given up, and begun anew.
            assert set(got) == {b"1"}


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_a_slave_takes_over_reads(version: Version) -> None:
    master = BrokerPlan("a", version)
    with Cluster([master, slave_of(master)], version=version) as cluster:
        with opened(cluster.name_server) as broker:
            broker.create_topic("orders", 1)
            for body in (b"1", b"2"):
                broker.topic("orders").send(body)
            slave = cluster.brokers["a-slave1"]
            config = slave.store / "config" / "topics.json"
            queue = slave.store / "consumequeue" / "orders"
            wait_until(lambda: queue.exists() and "orders" in text_of(config))
        cluster.brokers["a"].kill()
        (name_server,) = cluster.name_servers
        wait_until(lambda: not name_server.knows(cluster.brokers["a"].address))
        with opened(cluster.name_server) as broker:
            (found,) = broker.topic("orders").queues
            wait_until(lambda: [each.body for each in found.read(0).messages] == [b"1", b"2"])
            with pytest.raises(mq.MQError):
                broker.topic("orders").send(b"3")


def text_of(config: Path) -> str:
    """What is in a file that a broker writes anew and renames; nothing while it is not there."""
    with suppress(FileNotFoundError):
        return config.read_text()
    return ""


def know_topic(slave: Broker, topic: str, queue_count: int) -> None:
    """Write a topic into the settings of a slave that is not started yet. A slave of 5.3 copies its master's
    topics only 60 s after its start. It refuses reads of a topic that it does not know."""
    config = {"topicName": topic, "perm": 6, "readQueueNums": queue_count, "writeQueueNums": queue_count}
    file = slave.store / "config" / "topics.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"topicConfigTable": {topic: config}}))


@contextmanager
def member(broker: mq.Broker) -> Iterator[tuple[mq.PushConsumer, list[bytes]]]:
    """A consumer of "orders" that buffers as little as possible, and what it has received."""
    got: list[bytes] = []
    with mq.PushConsumer(broker, "billing", pull_count=1, pull_threshold_for_queue=1) as consumer:
        consumer.subscribe("orders", listener=lambda message: got.append(message.body))
        consumer.start()
        yield consumer, got


def is_shared(*consumers: mq.PushConsumer) -> bool:
    """Whether each of two consumers has two of the four queues."""
    queues = [{each for each in consumer.assignment() if each.topic == "orders"} for consumer in consumers]
    return [len(each) for each in queues] == [2, 2] and len(set.union(*queues)) == 4


def test_a_group_goes_on_consuming_from_a_slave() -> None:
    master = double_write()
    cluster = Cluster([master, slave_of(master)])
    know_topic(cluster.brokers["a-slave1"], "orders", 4)
    with cluster, opened(cluster.name_server) as one, opened(cluster.name_server) as two:
        one.create_topic("orders", 4)
        with member(one) as (first, firsts), member(two) as (second, seconds):
            with mq.Producer(one) as producer:
                wait_until(lambda: sends(producer, b"first"))  # The slave has it, too.
                wait_until(lambda: is_shared(first, second) and b"first" in {*firsts, *seconds})
                first.suspend()
                second.suspend()
                bodies = {b"%d" % number for number in range(40)}
                wait_until(lambda: all(sends(producer, body) for body in bodies))
            cluster.brokers["a"].kill()
            (name_server,) = cluster.name_servers
            wait_until(lambda: not name_server.knows(cluster.brokers["a"].address))
            for broker in (one, two):
                broker.topic("orders")  # It asks for the route.
            first.resume()
            second.resume()
            wait_until(lambda: {*firsts, *seconds} >= bodies)
            wait_until(lambda: is_shared(first, second))
            assert bodies & {*firsts}
            assert bodies & {*seconds}
        # The slave has the offsets that were committed at the end.
        ends = [queue.max_offset for queue in two.topic("orders").queues]
        assert sorted(two.group("billing").offsets("orders").values()) == sorted(ends)
        with consuming(two, "orders", "audit") as got:  # A group that begins without a master.
            wait_until(lambda: {*got} >= bodies)


ALICE = Account("alice-key", "alice-secret", topics={"orders": "PUB|SUB"}, groups={"billing": "SUB"})


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_access_is_granted_by_right_and_by_secret(version: Version) -> None:
    with Cluster([BrokerPlan("a", version)], version=version, access=Access((ALICE,))) as cluster:
        assert cluster.access is not None
        admin = cluster.access.admin
        keys = {"access_key": admin.access_key, "secret_key": admin.secret_key}
        with opened(cluster.name_server, **keys) as broker:
            for topic in ("orders", "salaries"):
                broker.create_topic(topic, 1)
        keys = {"access_key": ALICE.access_key, "secret_key": ALICE.secret_key}
        with opened(cluster.name_server, **keys) as broker:
            body = "ümlaut".encode()
            with mq.Producer(broker, timeout=TIMEOUT, retries=0) as producer:
                producer.send(mq.Message("orders", body, keys="ümlaut"))
                with pytest.raises(mq.MQError) as refused:
                    producer.send(mq.Message("salaries", b"2"))
            with consuming(broker, "orders", "billing") as got:
                wait_until(lambda: got == [body])
            # One of its fields is signed for new servers and not for old ones.
            wait_until(lambda: [found.body for found in broker.query("orders", "ümlaut")] == [body])
        wrong = {"access_key": ALICE.access_key, "secret_key": "another secret"}
        with opened(cluster.name_server, **wrong) as broker, pytest.raises(mq.MQError) as denied:
            broker.topic("orders").send(b"3")
        with opened(cluster.name_server) as broker, pytest.raises(mq.MQError) as unsigned:
            broker.topic("orders").send(b"4")
        for raised in (refused, denied, unsigned):
            assert code_of(raised.value) == (16 if version == "5.3" else 1)
            assert "secret" not in str(raised.value)


def code_of(error: BaseException | None) -> int | None:
    while error is not None and not isinstance(error, mq.RemotingError):
        error = error.__cause__
    return None if error is None else error.code


def is_reached(address: str, tls: ssl.SSLContext) -> bool:
    try:
        ask(address, GET_CLUSTER, tls=tls, seconds=60.0)
    except OSError:
        return False
    return True


def test_everything_goes_through_tls() -> None:
    with Cluster(tls="enforcing") as cluster:
        assert cluster.certificates is not None
        context = cluster.certificates.client_context()
        # The first handshake of a broker takes long, and those of a broker object have a limit of their own.
        wait_until(lambda: is_reached(cluster.brokers["a"].address, context))
        with opened(cluster.name_server, tls=context) as broker:
            broker.create_topic("orders", 1)
            sealed = bytes(1 << 20)
            broker.topic("orders").send(sealed)
            with consuming(broker, "orders", "billing") as got:
                wait_until(lambda: got == [sealed])
        with opened(cluster.name_server, timeout=2.0) as plain, pytest.raises(mq.RemotingError):
            plain.topics()
