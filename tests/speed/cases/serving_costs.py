"""What serving costs: held pulls at rest, and the rate of a local process while a remote consumer reads."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import mq
from mq.remoting.codec.fields import Request, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, encode
from mq.remoting.codec.requests.consuming import PullMessage
from mq.remoting.codec.requests.offsets import GetMaxOffset
from tests.speed import consuming, ours, servers
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_least, at_most
from tests.speed.pairing import Measurement, Turn, alone, paired, rate
from tests.speed.peers import rocketmq_java
from tests.speed.peers.rocketmq_java import JavaClient
from tests.speed.processes import allow_files, in_child
from tests.speed.workspace import fresh, settle
from tests.support.cluster.shared import unique_name

HELD_COUNT = 1000
HOLD_MS = 15_000  # as RocketMQ's push consumer asks for
IDLE_FACTOR = 1.5
"""The idle time in which every pull is answered once, and comes again: 15 s of a full run."""
PULL_FLAGS = 2 | 4  # may be held; with a subscription
FIRST_READ_SECONDS = 60.0


class HeldPulls:
    """Connections with a pull each for which there is no message. One that is answered is made again."""

    def __init__(self, address: str, topic: str, count: int) -> None:
        pull = PullMessage(
            "held", topic, 0, 0, 32, PULL_FLAGS, 0, HOLD_MS, 0, subscription="*", expression_type="TAG"
        )
        self._pull = _encoded(pull)
        self._selector = selectors.DefaultSelector()
        self._address, self._topic = address, topic
        self.answered = 0
        for _ in range(count):
            self._connect()

    def keep(self, seconds: float) -> None:
        """Answer nothing but the ends of holds, for some time."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 16)
                assert data, "the server closed a connection"
                for _ in key.data.feed(data):
                    self.answered += 1
                    key.fileobj.sendall(self._pull)

    def check(self) -> None:
        """That the server still answers: to one more connection, with a pull of its own."""
        self._connect()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        connection = socket.create_connection((host, int(port)), servers.TIMEOUT_SECONDS)
        reader = FrameReader()
        self._selector.register(connection, selectors.EVENT_READ, reader)
        # The answer to the second says that the first is held.
        connection.sendall(self._pull + _encoded(GetMaxOffset(self._topic, 0)))
        while not (frames := list(reader.feed(connection.recv(1 << 16)))):
            continue
        assert len(frames) == 1, "a pull is not held"


def _encoded(request: Request) -> bytes:
    return encode(Frame(request.CODE, encode_fields(request)))


def _held(figure_of: Callable[[float, float], float], unit: str) -> Callable[[Bench], Measurement]:
    """`figure_of`: of the KiB that each holds, and the share of a core in percent."""

    def measure(bench: Bench) -> Measurement:
        allow_files()
        seconds = IDLE_FACTOR * bench.plan.stall_seconds

        def turn() -> Turn:
            with fresh(bench.data) as directory, servers.serving(directory / "queue") as (server,):
                topic = servers.new_topic(server.name_server, 1)
                # What the first connection loads is not of the others.
                HeldPulls(server.address, topic, 1).close()
                before = server.rss_bytes
                pulls = HeldPulls(server.address, topic, HELD_COUNT)
                try:
                    kib = (server.rss_bytes - before) / HELD_COUNT / KIB
                    begin, begin_cpu = time.perf_counter(), server.cpu_seconds
                    pulls.keep(seconds)
                    pulls.check()
                    share = 100 * (server.cpu_seconds - begin_cpu) / (time.perf_counter() - begin)
                finally:
                    pulls.close()
                context = {"KiB each": kib, "% of a core": share, "answered": float(pulls.answered)}
                return Turn(figure_of(kib, share), context)

        return alone(unit, turn, bench.plan.rounds, bench.say)

    return measure


def _local(is_apart: bool) -> Callable[[Bench], Measurement]:
    """`is_apart`: the sender has a processor of its own, the server and the consumer have the others.

    Otherwise three processes share two processors, and the figure is mostly how the kernel divides them.
    """

    def measure(bench: Bench) -> Measurement:
        def turn(is_read: bool) -> Turn:
            with fresh(bench.data) as directory, _placed(is_apart) as sender_cpus:
                store = directory / "queue"
                with servers.serving(store) as (server,):
                    topic = _topic(store, bench.plan.read_count)
                    client = JavaClient(server.name_server, topic)
                    with client.draining(unique_name("group")) if is_read else nullcontext():
                        if is_read:
                            _wait_for_first(server)
                        settle(bench.plan.memory_size)
                        before, begin = server.pulled, time.perf_counter()
                        sent = in_child(partial(_send, store, topic, sender_cpus, bench.plan.seconds))
                        read = (server.pulled - before) / (time.perf_counter() - begin)
                return Turn(sent, {"messages read a second": read})

        return paired("msg/s", lambda: turn(True), lambda: turn(False), bench.plan.rounds, bench.say)

    return measure


@contextmanager
def _placed(is_apart: bool) -> Iterator[set[int]]:
    """The processors of the sender; what is started meanwhile runs on the others."""
    allowed = os.sched_getaffinity(0)
    first = {min(allowed)}
    if not is_apart or allowed == first:
        yield allowed
        return
    os.sched_setaffinity(0, allowed - first)
    try:
        yield first
    finally:
        os.sched_setaffinity(0, allowed)


def _topic(store: Path, count: int) -> str:
    """A topic with a backlog, so that the consumer never waits."""

    def fill() -> None:
        with mq.open(store) as broker, mq.Producer(broker) as producer:
            broker.create_topic(ours.TOPIC, consuming.QUEUE_COUNT)
            messages = [mq.Message(ours.TOPIC, bytes(KIB)) for _ in range(ours.FILL_COUNT)]
            for _ in range(0, count, ours.FILL_COUNT):
                producer.send_batch(messages)

    in_child(fill)
    return ours.TOPIC


def _send(store: Path, topic: str, cpus: set[int], seconds: float) -> float:
    os.sched_setaffinity(0, cpus)
    body = os.urandom(KIB)
    with mq.open(store) as broker, mq.Producer(broker) as producer:

        def send(count: int) -> int:
            for _ in range(count):
                producer.send(mq.Message(topic, body))
            return count

        send(1)
        return rate(send, seconds)


def _wait_for_first(server: servers.StoreServer) -> None:
    until = time.perf_counter() + FIRST_READ_SECONDS
    while not server.pulled:
        assert time.perf_counter() < until, "the remote consumer does not begin"
        time.sleep(0.05)


CASES = (
    Case(
        "serve/held-cpu", f"{HELD_COUNT:,} held pulls, idle, share of a core", "fixed limit", at_most(2, "%"),
        _held(lambda _, share: share, "%"),
    ),
    Case(
        "serve/held-memory", f"{HELD_COUNT:,} held pulls, memory of each", "fixed limit", at_most(50, "KiB"),
        _held(lambda kib, _: kib, "KiB"),
    ),
    Case(
        "serve/local-send", "local send on a processor of its own, a remote Java consumer reads",
        "without the consumer", at_least(0.8), _local(is_apart=True), tools=rocketmq_java.TOOLS,
    ),
    Case(
        "serve/local-send-shared", "local send, processors shared, a remote Java consumer reads",
        "without the consumer", None, _local(is_apart=False), tools=rocketmq_java.TOOLS,
    ),
)  # fmt: skip
