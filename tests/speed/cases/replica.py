"""A replica that follows the log of a serving process, against the same log copied over loopback TCP.

Both begin with an empty directory. The copy is sendfile at one end, and read and write at the other; what it
writes is no store, while the replica has its queues when it has the log. Neither forces anything to disk.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import mq
from mq.remoting import replicate
from mq.remoting.replica.replica import Replica
from tests.speed import ours, servers
from tests.speed.cases.case import KIB, Bench, Case
from tests.speed.goal import at_least
from tests.speed.pairing import Measurement, Turn, paired
from tests.speed.processes import in_child, together
from tests.speed.workspace import fresh, settle

CHUNK_SIZE = 1 << 20
LOOK_SECONDS = 0.001
PATIENCE_SECONDS = 120.0


def _measure(bench: Bench) -> Measurement:
    count = bench.plan.copy_size // KIB
    body = os.urandom(KIB)
    with fresh(bench.data) as directory:
        store = directory / "queue"
        bench.say(f"filling {count:,} messages")
        in_child(lambda: ours.make_store(store, body, count))
        end = in_child(lambda: _log_end(store))
        with servers.serving(store, ha_port=0) as (server,):

            def replica() -> Turn:
                with fresh(bench.data) as target:
                    settle(bench.plan.memory_size)
                    return in_child(lambda: _followed(server, target / "replica", end))

            def copy() -> float:
                with fresh(bench.data) as target:
                    settle(bench.plan.memory_size)
                    return _copied(store / "commitlog", target, end)

            return paired("B/s", replica, copy, bench.plan.rounds, bench.say)


def _log_end(store: Path) -> int:
    """The log offset behind the last record."""
    with mq.open(store, read_only=True) as broker:
        queue = broker.topic(ours.TOPIC).queues[0]
        offset = queue.max_offset - 1
        (last,) = queue.read(offset, count_max=1).messages
        return last.log_offset + last.store_size


def _followed(server: servers.StoreServer, directory: Path, end: int) -> Turn:
    """From the first bytes that are seen to the last; the time before is beside it."""
    assert server.ha_address is not None
    called = time.perf_counter()
    with replicate(server.ha_address, directory, broker=server.address, timeout=PATIENCE_SECONDS) as replica:
        first, begin = _reached(replica, 1)
        last, until = _reached(replica, end)
    seconds = max(until - begin, LOOK_SECONDS)
    # Small logs are there at the first look.
    return Turn((last - first or last) / seconds, {"ms before the first": (begin - called) * 1e3})


def _reached(replica: Replica, end: int) -> tuple[int, float]:
    until = time.perf_counter() + PATIENCE_SECONDS
    while (offset := replica.offset) < end:
        if replica.error is not None:
            raise replica.error
        assert time.perf_counter() < until, f"the replica has {offset:,} of {end:,} bytes"
        time.sleep(LOOK_SECONDS)
    return offset, time.perf_counter()


def _copied(log: Path, target: Path, end: int) -> float:
    """Bytes a second of a copy between two processes, from the connection to the last byte written."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        def send(ready: object) -> float:
            connection, _ = listener.accept()
            with connection:
                left = end
                for path in sorted(log.iterdir()):
                    with path.open("rb") as file:
                        left -= connection.sendfile(file, count=min(left, path.stat().st_size)) if left else 0
            return 0.0

        def receive(ready: object) -> float:
            buffer, done = bytearray(CHUNK_SIZE), 0
            view = memoryview(buffer)
            with socket.create_connection(address) as connection, (target / "copy").open("wb", 0) as file:
                begin = time.perf_counter()
                while size := connection.recv_into(buffer):
                    file.write(view[:size])
                    done += size
                seconds = time.perf_counter() - begin
            assert done == end, f"{done:,} of {end:,} bytes came"
            return done / seconds

        return together([send, receive])[1]


CASES = (
    Case(
        "replica/follow", "a replica follows a log, bytes a second", "the log copied over loopback TCP",
        at_least(0.5), _measure,
    ),
)  # fmt: skip
