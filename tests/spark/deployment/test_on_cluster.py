"""Source and sink on real clusters, called as Spark calls them, without Spark: RocketMQ 5.3 and 4.9."""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.spark import cluster as opened_clusters
from mq.spark.datasource import MqDataSource
from mq.spark.errors import SparkError
from mq.spark.sink.task_identity import Task
from tests.spark.reading import rows, struct
from tests.support.cluster.access import Access, Account
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import Version
from tests.support.cluster.settings import BrokerPlan, slave_of
from tests.support.cluster.shared import attached, unique_name
from tests.support.eventually import eventually

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.rounds

TIMEOUT_SECONDS = 30.0  # of a request: three, the default, are few for a broker that gets no processor


def opened(name_server: str, **options: Any) -> mq.Broker:
    return mq.open("rocketmq://" + name_server, timeout=TIMEOUT_SECONDS, **options)


@pytest.fixture(params=["5.3", "4.9"])
def name_server(request: pytest.FixtureRequest) -> Iterator[str]:
    yield attached(request.param).name_server
    forget_clusters()


@pytest.fixture
def broker(name_server: str) -> Iterator[mq.Broker]:
    with opened(name_server) as broker:
        yield broker


@pytest.fixture
def topic(broker: mq.Broker) -> str:
    name = unique_name("orders")
    broker.create_topic(name, 2)
    return name


def forget_clusters() -> None:
    """As in a new process."""
    while opened_clusters.opened_brokers:
        opened_clusters.opened_brokers.popitem()[1].close()


def source(name_server: str, **options: str) -> MqDataSource:
    given = {"nameServer": name_server, "timeout": f"{TIMEOUT_SECONDS:g}s", **options}
    return MqDataSource({name.lower(): value for name, value in given.items()})


def batch(name_server: str, *names: str, **options: str) -> list[dict[str, Any]]:
    reader = source(name_server, **options).reader(schema=struct(*names))
    partitions = reader.partitions()
    forget_clusters()  # Tasks run elsewhere.
    return rows(reader, partitions)


def numbers(found: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in found)


def ends_of(name_server: str, topic: str) -> int:
    with opened(name_server) as broker:
        try:
            return sum(queue.max_offset for queue in broker.topic(topic).queues)
        except mq.MQError:
            return 0


def write(
    name_server: str, topic: str, first: int, last: int, *, epoch: int = 0, task: int = 0, **columns: Any
) -> None:
    """What one task of a stream does, of the query "query"."""
    batch = pa.record_batch({"body": [b"%d" % number for number in range(first, last)], **columns})
    from pyspark.sql.pandas.types import from_arrow_schema

    writer = source(name_server, topic=topic).streamWriter(
        schema=from_arrow_schema(batch.schema), overwrite=False
    )
    before = ends_of(name_server, topic)
    pickle.loads(pickle.dumps(writer)).write_task(iter([batch]), Task("query", epoch, task, 0))
    writer.commit([None], epoch)
    # Brokers of 4.9 tell readers of a message a moment after they have acknowledged it.
    delayed = columns["delayLevel"].is_valid().true_count if "delayLevel" in columns else 0
    wanted = before + batch.num_rows - delayed
    eventually(lambda: ends_of(name_server, topic) >= wanted, lambda: ends_of(name_server, topic))


class Query:
    """A streaming query over one source, with its checkpoint."""

    def __init__(self, name_server: str, **options: str) -> None:
        self._given = (name_server, {"pollTimeoutMs": "0", **options})
        self._begin()
        self.start = json.dumps(self.reader.initialOffset())

    def _begin(self) -> None:
        name_server, options = self._given
        forget_clusters()
        self.reader = source(name_server, **options).streamReader(schema=struct("queueOffset", "body"))

    def again(self) -> None:
        """Go on from the checkpoint after everything else was lost."""
        self._begin()

    def plan(self) -> str:
        limit = self.reader.getDefaultReadLimit()
        return json.dumps(self.reader.latestOffset(json.loads(self.start), limit))

    def read(self, end: str) -> list[dict[str, Any]]:
        partitions = self.reader.partitions(json.loads(self.start), json.loads(end))
        forget_clusters()  # Tasks run elsewhere.
        return rows(self.reader, partitions)

    def batch(self) -> list[int]:
        end = self.plan()
        found = numbers(self.read(end)) if end != self.start else []
        self.start = end
        return found


def test_a_batch_is_exact(name_server: str, topic: str) -> None:
    write(name_server, topic, 0, 3000, tags=["odd" if n % 2 else "even" for n in range(3000)])
    write(name_server, topic, 3000, 3100, task=1, keys=[f"k{n}" for n in range(100)])
    found = batch(name_server, topic=topic)
    assert numbers(found) == list(range(3100))
    assert {row["topic"] for row in found} == {topic}
    places = [(row["brokerName"], row["queueId"], row["queueOffset"]) for row in found]
    assert len(set(places)) == 3100
    ends: dict[tuple[str, int], int] = {}
    for name, queue_id, offset in places:  # In the order of each queue.
        assert ends.setdefault((name, queue_id), 0) == offset
        ends[name, queue_id] += 1
    assert numbers(batch(name_server, "body", topic=topic, tags="odd")) == list(range(1, 3000, 2))
    assert numbers(batch(name_server, "body", topic=topic, sql="TAGS = 'even'")) == list(range(0, 3000, 2))
    assert numbers(batch(name_server, "body", topic=topic, key="k7")) == [3007]
    (known,) = (row["msgId"] for row in found if row["body"] == b"17")
    assert numbers(batch(name_server, "body", topic=topic, key=known)) == [17]
    with pytest.raises(SparkError, match=r"\[MQ_TOPIC\] there is no topic .* in rocketmq://"):
        batch(name_server, "body", topic=unique_name("nothing"))


def test_where_it_begins_and_ends(name_server: str, broker: mq.Broker, topic: str) -> None:
    queues = broker.readable(topic)
    for queue in queues:
        broker.appender(queue)(mq.Message(topic, b"0"), b"0", 0)
    eventually(lambda: all(broker.max_offset(queue) == 1 for queue in queues), lambda: "not there")
    time.sleep(0.05)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.05)
    for queue in queues:
        for body in (b"1", b"2"):
            broker.appender(queue)(mq.Message(topic, body), body, 0)
    eventually(lambda: all(broker.max_offset(queue) == 3 for queue in queues), lambda: "not there")
    many = len(queues)
    assert numbers(batch(name_server, "body", topic=topic, startingTimestamp=str(middle))) == (
        [1] * many + [2] * many
    )
    assert numbers(batch(name_server, "body", topic=topic, endingTimestamp=str(middle))) == [0] * many
    late = {"startingTimestamp": str(middle + 3_600_000), "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(name_server, "body", topic=topic, **late) == []
    names = [f"{queue.broker_name}:{queue.queue_id}" for queue in queues]
    starts = json.dumps({topic: dict.fromkeys(names, 1)})
    ends = json.dumps({topic: dict.fromkeys(names, 2)})
    assert numbers(batch(name_server, topic=topic, startingOffsets=starts, endingOffsets=ends)) == [1] * many
    assigned = json.dumps({topic: names[:1]})
    assert numbers(batch(name_server, "body", assign=assigned)) == [0, 1, 2]
    with pytest.raises(
        SparkError, match=r"option assign: topic .* has the queues \['a:0', .*, and not \['a:9'\]"
    ):
        batch(name_server, "body", assign=json.dumps({topic: ["a:9"]}))
    beyond = json.dumps({topic: dict.fromkeys(names, 9)})
    with pytest.raises(SparkError, match="MQ_DATA_LOSS"):
        batch(name_server, "body", topic=topic, startingOffsets=beyond)


def test_a_stream_goes_on_from_its_checkpoint(name_server: str, broker: mq.Broker, topic: str) -> None:
    write(name_server, topic, 0, 70)
    query = Query(
        name_server, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="50", group="reports"
    )
    planned = query.plan()
    first = query.read(planned)
    assert len(first) == 50
    query.again()
    assert query.read(planned) == first  # A batch that was not finished is the same again.
    query.start = planned
    write(name_server, topic, 70, 100, task=1)
    query.again()
    assert sorted(numbers(first) + query.batch() + query.batch()) == list(range(100))
    assert query.batch() == []
    assert query.plan() == query.start
    ends = broker.consumer_groups
    query.reader.latestOffset(json.loads(query.start), query.reader.getDefaultReadLimit())
    forget_clusters()  # Offsets are written at the latest now.
    eventually(
        lambda: sum(ends.offsets("reports", topic).values()) == 100,
        lambda: ends.offsets("reports", topic),
    )


def test_a_stream_finds_new_topics_of_its_pattern(
    name_server: str, broker: mq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mq.spark.source import origin

    monkeypatch.setattr(origin, "LIST_SECONDS", 0.1)
    prefix = unique_name("p")
    broker.create_topic(f"{prefix}-1", 1)
    query = Query(name_server, topicPattern=f"{prefix}-.*", startingOffsets="earliest")
    broker.create_topic(f"{prefix}-2", 1)
    write(name_server, f"{prefix}-2", 0, 5)
    found: list[int] = []

    def came() -> bool:
        found.extend(query.batch())
        return len(found) == 5

    eventually(came, lambda: found)
    assert sorted(found) == list(range(5))


def test_an_epoch_that_is_repeated_is_handled_once(
    name_server: str, broker: mq.Broker, topic: str, tmp_path: Path
) -> None:
    """A consumer under mq.Once sees each row once: of tasks that ran twice, and in another order; and rows
    that hold the same as another one."""
    doubled = [b"%d" % (number // 2) for number in range(200)]
    for task in range(2):
        for bodies in (doubled, doubled[:120], doubled[::-1]):
            write(name_server, topic, 0, 0, task=task, epoch=3, body=bodies)
    write(name_server, topic, 0, 0, task=0, epoch=4, body=doubled)
    handled: list[bytes] = []
    seen: list[int] = []
    with mq.open(tmp_path / "handled") as keys:
        once = mq.Once(keys, "billing")
        consumer = mq.PushConsumer(broker, unique_name("billing"))

        def bill(message: mq.MessageExt) -> None:
            with once(message) as is_fresh:
                if is_fresh:
                    handled.append(message.body)
            seen.append(1)

        consumer.subscribe(topic, listener=bill)
        consumer.start()
        eventually(lambda: len(seen) == 2 * 520 + 200, lambda: len(seen))
        consumer.close()
    assert sorted(handled) == sorted(3 * doubled)


def test_rows_go_where_they_say(name_server: str, broker: mq.Broker, topic: str) -> None:
    write(name_server, topic, 0, 100, shardingKey=[f"customer {n % 9}" for n in range(100)])
    places: dict[int, set[tuple[str, int]]] = {}
    for row in batch(name_server, topic=topic):
        places.setdefault(int(row["body"]) % 9, set()).add((row["brokerName"], row["queueId"]))
    assert {len(queues) for queues in places.values()} == {1}
    other = unique_name("large")
    broker.create_topic(other, 1)
    write(
        name_server,
        other,
        0,
        0,
        body=[b"x" * (3 << 20), b"y", b"z" * (1 << 20)],
        queueId=pa.array([0] * 3, pa.int32()),
    )
    assert [len(row["body"]) for row in batch(name_server, "body", topic=other)] == [3 << 20, 1, 1 << 20]
    with pytest.raises(SparkError, match=r"\[MQ_ROW\] topic .* has no queue 99 to write to"):
        write(name_server, other, 0, 1, queueId=pa.array([99], pa.int32()))


def test_delayed_rows_come_later(name_server: str, topic: str) -> None:
    before = time.time()
    write(name_server, topic, 0, 4, delayLevel=pa.array([2, None, 2, None], pa.int32()))  # By two seconds.
    found = numbers(batch(name_server, "body", topic=topic))
    assert found == [1, 3] or time.time() - before >= 2
    eventually(
        lambda: numbers(batch(name_server, "body", topic=topic)) == [0, 1, 2, 3], lambda: "it did not come"
    )
    assert time.time() - before >= 2


ALICE = Account("alice-key", "alice-secret", topics={"orders": "PUB|SUB"}, groups={"reports": "SUB"})


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_keys_open_a_cluster_and_are_never_shown(version: Version) -> None:
    with Cluster([BrokerPlan("a", version)], version=version, access=Access((ALICE,))) as cluster:
        assert cluster.access is not None
        admin, address = cluster.access.admin, cluster.name_server
        with opened(address, access_key=admin.access_key, secret_key=admin.secret_key) as broker:
            for topic in ("orders", "salaries"):
                broker.create_topic(topic, 1)
            (queue,) = broker.readable("salaries")
            broker.topic("salaries").send(b"4")
            eventually(lambda: broker.max_offset(queue) == 1, lambda: "not there")
        given = {"accessKey": ALICE.access_key, "secretKey": ALICE.secret_key, "group": "reports"}
        schema = struct("body")
        batches = [pa.record_batch({"body": [b"1", b"2"]})]
        sink = {name: value for name, value in given.items() if name != "group"}
        writer = source(address, topic="orders", **sink).writer(schema=schema, overwrite=False)
        writer.write_task(iter(batches), Task("query", 0, 0, 0))
        eventually(
            lambda: numbers(batch(address, "body", topic="orders", **given)) == [1, 2], lambda: "not there"
        )
        wrong = {**given, "secretKey": "another-secret"}
        denied = {**sink, "topic": "salaries"}
        # 4.9 checks no topic where several rows go together, nor the sender of a request for the end of a
        # queue.
        one = [pa.record_batch({"body": [b"3"]})]
        said = []
        for attempt in (
            lambda: batch(address, "body", topic="orders", **wrong),
            lambda: batch(address, "body", topic="salaries", **given),
            lambda: batch(address, "body", topic="orders"),
            lambda: (
                source(address, **denied)
                .writer(schema=schema, overwrite=False)
                .write_task(iter(one), Task("query", 0, 0, 0))
            ),
        ):
            try:
                said.append(str(attempt()))
            except SparkError as refused:
                said.append(str(refused))
        forget_clusters()
        assert [each.partition("]")[0] for each in said] == ["[MQ_CLUSTER"] * 4, said
        assert not any("-secret" in each for each in said)


def test_everything_goes_through_tls(tmp_path: Path) -> None:
    with Cluster(tls="enforcing") as cluster:
        assert cluster.certificates is not None
        with opened(cluster.name_server, tls=cluster.certificates.client_context()) as broker:
            broker.create_topic("orders", 1)
            broker.topic("orders").send(b"7")
        given = {"topic": "orders", "tls": "true", "tlsCaFile": str(cluster.certificates.authority)}
        assert numbers(batch(cluster.name_server, "body", **given)) == [7]
        with pytest.raises(SparkError, match="MQ_CLUSTER"):
            batch(cluster.name_server, "body", topic="orders", tls="true")  # This machine trusts others.
        with pytest.raises(
            SparkError, match=r"MQ_OPTION.* option tlsCaFile is .*: it cannot be used by process"
        ):
            batch(cluster.name_server, "body", **{**given, "tlsCaFile": str(tmp_path / "none.pem")})
        forget_clusters()


def test_names_are_in_a_namespace(name_server: str) -> None:
    namespace = unique_name("shop")
    with opened(name_server, namespace=namespace) as inside:
        inside.create_topic("orders", 1)
        queue = inside.topic("orders").send(b"5").queue
        # Brokers of 4.9 tell readers of a message a moment after they have acknowledged it.
        eventually(lambda: inside.max_offset(queue) == 1, lambda: "not there")
    found = batch(name_server, "body", "topic", topic="orders", namespace=namespace)
    assert found == [{"body": b"5", "topic": "orders"}]


def units(store: Path, topic: str) -> int:
    """How many messages the files of a topic's queues have: 20 bytes for each, and zeros after the last."""
    files = (store / "consumequeue" / topic).glob("*/*")
    return sum(math.ceil(len(path.read_bytes().rstrip(b"\0")) / 20) for path in files)


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_a_slave_is_read_where_the_master_is_gone(version: Version) -> None:
    master = BrokerPlan("a", version)
    with Cluster([master, slave_of(master)], version=version) as cluster:
        address = cluster.name_server
        with opened(address) as broker:
            broker.create_topic("orders", 1)
            write(address, "orders", 0, 500)
            slave = cluster.brokers["a-slave1"].store
            config = slave / "config" / "topics.json"
            eventually(
                lambda: config.exists() and "orders" in config.read_text() and units(slave, "orders") == 500,
                lambda: f"not copied: {units(slave, 'orders')} of 500",
                180,  # A slave of 5.3 asks for topics once a minute.
            )
        query = Query(address, topic="orders", startingOffsets="earliest")
        planned = query.plan()
        cluster.brokers["a"].kill()
        assert numbers(query.read(planned)) == list(range(500))  # Planned before, read after.
        query.start = planned
        assert query.plan() == planned  # No client can send, so nothing is new.
        forget_clusters()
        assert numbers(batch(address, "body", topic="orders")) == list(range(500))
        forget_clusters()


def test_a_cluster_that_is_not_there_is_one_error_in_time() -> None:
    began = time.monotonic()
    for attempt in (
        lambda: batch("127.0.0.1:1", topic="orders", timeout="500ms"),
        lambda: write("127.0.0.1:1", "orders", 0, 1),
    ):
        with pytest.raises(SparkError, match=r"\[MQ_CLUSTER\] .*127\.0\.0\.1:1"):
            attempt()
    forget_clusters()
    assert time.monotonic() - began < 60
