"""Spark over a directory, in one JVM with two threads, against Python data sources that do nothing.

Both sides of a case run in one session, which is warm: the first actions of each are not counted. The topic
has four queues; its messages have 100 B of body, and are read as queue offset and body.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import mq
from tests.speed import ours
from tests.speed.cases.case import Bench, Case
from tests.speed.goal import Goal, at_least, at_most
from tests.speed.pairing import Measurement, paired
from tests.speed.spread import median
from tests.speed.workspace import ROOT, fresh, peers_directory, settle
from tests.support.started_queries import begun

BODY_SIZE = 100
QUEUE_COUNT = 4
READ_PART = 5  # times what an ordinary store holds
SQLITE_PART = 10  # of them in a table that takes so much longer
WARM_COUNT_MAX = 3
SMALL_COUNT = 100  # rows of a small micro-batch
BATCHES_MAX = 40  # of one turn
FIRST_BATCHES = 3  # of a query, which take longer
BEATS_MAX = 20
LATE_SECONDS = 120
BEAT_NS = 500_000_000  # 2 messages a second
LEAD_NS_MAX = 4_000_000_000  # in which a query starts

QUIET = "rootLogger.level = off\n"


@contextmanager
def session(place: Path) -> Iterator[Any]:
    """Spark, which knows the sources of the peers and ours: what this process has already, else started here
    and ended with its JVM."""
    from pyspark.sql import SparkSession

    import mq.spark
    from tests.speed.peers.spark import SOURCES

    active = SparkSession.getActiveSession()
    with nullcontext(active) if active is not None else _started(place) as spark:
        mq.spark.register(spark)
        for source in SOURCES:
            spark.dataSource.register(source)
        yield spark


@contextmanager
def _started(place: Path) -> Iterator[Any]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import mq.spark

    (place / "log4j2.properties").write_text(QUIET)
    paths = [str(ROOT.parents[1]), str(peers_directory()), os.environ.get("PYTHONPATH", "")]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SPARK_CONF_DIR": str(place),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    mq.spark.use_java()
    conf = {
        **mq.spark.recommended_conf(),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.python.task.killTimeout": "60s",  # Else a task that outlives its query has two seconds.
        "spark.python.authenticate.socketTimeout": "240s",  # Else a Python that starts has fifteen.
    }
    builder: Any = SparkSession.builder
    spark = builder.master("local[2]").appName("mq speed").config(map=conf).getOrCreate()
    gateway = spark.sparkContext._gateway
    try:
        yield spark
    finally:
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        # The next session of this process starts a JVM of its own.
        SparkContext._gateway = SparkContext._jvm = None


def _made(directory: Path, count: int, *topics: str) -> None:
    """A store with these topics, the first one full."""
    body = os.urandom(BODY_SIZE)
    with mq.open(str(directory)) as broker, mq.Producer(broker) as producer:
        for topic in topics:
            broker.create_topic(topic, QUEUE_COUNT)
        messages = [mq.Message(topics[0], body) for _ in range(min(count, ours.FILL_COUNT))]
        for _ in range(0, count, ours.FILL_COUNT):
            producer.send_batch(messages)


def _seconds(bench: Bench, action: Callable[[], object]) -> float:
    settle(bench.plan.memory_size)
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _warm_count(bench: Bench) -> int:
    return min(WARM_COUNT_MAX, bench.plan.rounds)


def _consumed(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _reads(
    bench: Bench, open_peer: Callable[[Any, Path, int], Callable[[], Any]], peer_part: int
) -> Measurement:
    """Rows a second of a batch read that Spark drops. The peer has one row of `peer_part` of ours."""
    from tests.speed.peers.spark import COLUMNS

    count = bench.plan.stored_count * READ_PART
    with fresh(bench.data) as place, session(place) as spark:
        _made(place / "store", count, "orders")
        peer = open_peer(spark, place, count // peer_part)

        def load() -> Any:
            source = spark.read.format("mq").schema(COLUMNS).option("topic", "orders")
            return source.load(str(place / "store"))

        for side, wanted in ((load, count), (peer, count // peer_part)):
            assert side().selectExpr("count(body)").first()[0] == wanted
            for _ in range(_warm_count(bench)):
                _consumed(side())
        return paired(
            "rows/s",
            lambda: count / _seconds(bench, lambda: _consumed(load())),
            lambda: count // peer_part / _seconds(bench, lambda: _consumed(peer())),
            bench.plan.rounds,
            bench.say,
        )


def _prepared(spark: Any, _: Path, count: int) -> Callable[[], Any]:
    source = spark.read.format("prepared").options(count=count, bodySize=BODY_SIZE)
    load: Callable[[], Any] = source.load
    return load


def _sqlite(by_statement: bool, tasks: int) -> Callable[[Any, Path, int], Callable[[], Any]]:
    def open_peer(spark: Any, place: Path, count: int) -> Callable[[], Any]:
        from tests.speed.peers.spark import fill_table

        path = place / "queue.db"
        fill_table(path, count, os.urandom(BODY_SIZE))
        source = spark.read.format("sqlite").options(count=count, statement=by_statement, tasks=tasks)
        return lambda: source.load(str(path))

    return open_peer


def _writes(semantics: str) -> Callable[[Bench], Measurement]:
    """Rows a second of a batch write; each turn of ours to the same topic."""

    def measure(bench: Bench) -> Measurement:
        count = bench.plan.stored_count
        with fresh(bench.data) as place, session(place) as spark:
            store = place / "store"
            _made(store, 0, "orders")
            body = os.urandom(BODY_SIZE).hex()

            def save(format_name: str, **options: str) -> None:
                rows = spark.range(0, count, 1, 2).selectExpr(f"X'{body}' AS body")
                rows.write.format(format_name).mode("append").options(**options).save()

            def write() -> None:
                save("mq", path=str(store), topic="orders", semantics=semantics)

            for _ in range(_warm_count(bench)):
                write()
                save("dropping")
            measured = paired(
                "rows/s",
                lambda: count / _seconds(bench, write),
                lambda: count / _seconds(bench, lambda: save("dropping")),
                bench.plan.rounds,
                bench.say,
            )
            with mq.open(str(store), read_only=True) as broker:
                written = sum(queue.max_offset for queue in broker.topic("orders").queues)
            assert written == count * (_warm_count(bench) + bench.plan.rounds + 1)
            return measured

    return measure


def _micro_batches(where: str) -> Callable[[Bench], Measurement]:
    """Milliseconds of a micro-batch of 100 rows, of which `where` lets some through."""

    def measure(bench: Bench) -> Measurement:
        from tests.speed.peers.spark import COLUMNS

        batches = FIRST_BATCHES + min(BATCHES_MAX, bench.plan.sync_count // 5)
        count = batches * SMALL_COUNT
        with fresh(bench.data) as place, session(place) as spark:
            store = str(place / "store")
            _made(Path(store), count, "orders", "results")

            def turn(source: Any, sink: str, **options: str) -> float:
                frame = source.where(where).select("body")
                with fresh(place) as checkpoint:
                    writer = frame.writeStream.format(sink).options(**options)
                    writer = writer.option("checkpointLocation", str(checkpoint))
                    settle(bench.plan.memory_size)
                    query = begun(writer.trigger(availableNow=True).start)
                    query.awaitTermination()
                    took = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
                # The last progress may be of a look that found nothing more.
                return median(took[FIRST_BATCHES:batches])

            def from_ours() -> float:
                options = {"topic": "orders", "startingOffsets": "earliest"}
                source = spark.readStream.format("mq").schema(COLUMNS).options(**options)
                source = source.option("maxOffsetsPerTrigger", SMALL_COUNT)
                return turn(source.load(store), "mq", path=store, topic="results")

            def made_up() -> float:
                options = {"count": count, "bodySize": BODY_SIZE, "perBatch": SMALL_COUNT}
                return turn(spark.readStream.format("made_up").options(**options).load(), "dropping")

            return paired("ms", from_ours, made_up, bench.plan.rounds, bench.say)

    return measure


def _latency(bench: Bench) -> Measurement:
    """Milliseconds from a send to the row in a task of the sink, which notes them on both sides."""
    from tests.speed.peers.spark import COLUMNS, noted

    beats = max(3, min(BEATS_MAX, bench.plan.sync_count // 5))
    lead_ns = min(LEAD_NS_MAX, bench.plan.sync_count * 100_000_000)
    with fresh(bench.data) as place, session(place) as spark:
        store = str(place / "store")

        def turn(
            source: Any, sink: str, begin_ns: int, send: Callable[[int], object], **options: str
        ) -> float:
            with fresh(place) as directory:
                notes = directory / "notes"
                writer = source.select("body").writeStream.format(sink).options(notes=str(notes), **options)
                query = begun(writer.option("checkpointLocation", str(directory / "checkpoint")).start)
                for beat in range(beats):
                    time.sleep(max(0, begin_ns + beat * BEAT_NS - time.time_ns()) / 1e9)
                    send(beat)
                until = time.monotonic() + LATE_SECONDS
                while len(noted(notes)) < beats and query.isActive and time.monotonic() < until:
                    time.sleep(0.05)
                query.stop()
                took = noted(notes)
            assert len(took) == beats, f"{len(took)} of {beats} rows came: {query.exception()}"
            return median(took[1:])

        with mq.open(store) as broker, mq.Producer(broker) as producer:
            broker.create_topic("results", QUEUE_COUNT)

            def from_ours() -> float:
                begin_ns = time.time_ns() + lead_ns
                topic = f"orders-{begin_ns}"
                broker.create_topic(topic, QUEUE_COUNT)

                def send(_: int) -> None:
                    producer.send(mq.Message(topic, time.time_ns().to_bytes(8, "little")))

                source = spark.readStream.format("mq").schema(COLUMNS)
                source = source.options(topic=topic, startingOffsets="earliest")
                return turn(source.load(store), "mq_noting", begin_ns, send, path=store, topic="results")

            def made_up() -> float:
                begin_ns = time.time_ns() + lead_ns
                options = {"count": beats, "beginNs": begin_ns, "everyNs": BEAT_NS}
                source = spark.readStream.format("made_up").options(**options)
                return turn(source.load(), "dropping", begin_ns, lambda _: None)

            return paired("ms", from_ours, made_up, bench.plan.rounds, bench.say)


def _case(
    name: str, title: str, against: str, goal: Goal | None, measure: Callable[[Bench], Measurement]
) -> Case:
    return Case(f"spark/{name}", title, against, goal, measure, ("pyspark", "pyarrow"))


CASES = (
    _case(
        "read",
        "Spark batch read, 100 B",
        "prepared Arrow batches from memory",
        at_least(0.85),
        lambda bench: _reads(bench, _prepared, 1),
    ),
    _case(
        "read-sqlite",
        "Spark batch read, 100 B",
        "sqlite3 table, a statement and a tuple a row, two tasks",
        at_least(20),
        lambda bench: _reads(bench, _sqlite(by_statement=True, tasks=2), SQLITE_PART),
    ),
    _case(
        "read-sqlite-whole",
        "Spark batch read, 100 B",
        "sqlite3 table, a statement and a tuple a row, one task",
        at_least(20),
        lambda bench: _reads(bench, _sqlite(by_statement=True, tasks=1), SQLITE_PART),
    ),
    _case(
        "read-sqlite-cursor",
        "Spark batch read, 100 B",
        "sqlite3 table, one cursor, a tuple a row, two tasks",
        None,
        lambda bench: _reads(bench, _sqlite(by_statement=False, tasks=2), SQLITE_PART),
    ),
    _case(
        "write-once",
        "Spark batch write, 100 B, exactly once",
        "Arrow sink that drops its input",
        at_least(0.5),
        _writes("exactly_once"),
    ),
    _case(
        "write",
        "Spark batch write, 100 B, at least once",
        "Arrow sink that drops its input",
        at_least(0.7),
        _writes("at_least_once"),
    ),
    _case(
        "empty-batch",
        "micro-batch without a row for the sink",
        "made-up rows, Arrow sink that drops them",
        at_most(1.3),
        _micro_batches("length(body) = 0"),
    ),
    _case(
        "small-batch",
        "micro-batch of 100 rows",
        "made-up rows, Arrow sink that drops them",
        at_most(1.3),
        _micro_batches("length(body) > 0"),
    ),
    _case(
        "latency",
        "from a send to the row in our sink's task, 2 a second",
        "made-up rows, Arrow sink that drops them",
        at_most(1.3),
        _latency,
    ),
)
