"""`bench`: a short benchmark of mq on the file system of DIR.

It works in a temporary directory beside DIR, which it removes at the end; DIR itself is not opened.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

import mq
from mq.cli.printing import emit_json
from mq.cli.session import Session, with_json

TOPIC = "bench"
BATCH_COUNT = 1000
SYNC_COUNT = 200


@click.command()
@click.option("--count", type=click.IntRange(min=BATCH_COUNT), default=100_000, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(min=1, max=1 << 20),
    default=1024,
    show_default=True,
    help="Bytes of a body.",
)
@with_json
@click.pass_obj
def bench(session: Session, count: int, size: int) -> None:
    """Measure sending and reading on the file system of DIR, beside it."""
    session.need_directory("bench")
    parent = Path(session.target).absolute().parent
    if not parent.is_dir():
        raise click.UsageError(f"{parent} is not a directory")
    body = bytes(range(256)) * (size // 256 + 1)
    with tempfile.TemporaryDirectory(prefix=".mq-bench-", dir=parent) as scratch:
        root = Path(scratch)
        _measure(session, root / "async", count, body[:size])
        _measure_sync(session, root / "sync", body[:size])


def _measure(session: Session, directory: Path, count: int, body: bytes) -> None:
    with mq.open(directory) as broker, mq.Producer(broker) as producer:
        queue = broker.create_topic(TOPIC, 1).queues[0]

        def send() -> None:
            for number in range(count):
                producer.send(mq.Message(TOPIC, body, tags="bench", keys=str(number)))

        def send_batches() -> None:
            for begin in range(0, count, BATCH_COUNT):
                numbers = range(begin, min(begin + BATCH_COUNT, count))
                producer.send_batch([mq.Message(TOPIC, body, tags="bench", keys=str(n)) for n in numbers])

        def read() -> None:
            queue_offset, end = 0, queue.max_offset
            while queue_offset < end:
                result = queue.read(queue_offset, count_max=100)
                for message in result.messages:
                    assert len(message.body) == len(body)
                queue_offset = result.next_offset

        _report(session, "send one by one", _seconds(send), count, len(body))
        _report(session, f"send_batch of {BATCH_COUNT}", _seconds(send_batches), count, len(body))
        _report(session, "read by 100", _seconds(read), 2 * count, len(body))


def _measure_sync(session: Session, directory: Path, body: bytes) -> None:
    with mq.open(directory, flush="sync") as broker, mq.Producer(broker) as producer:
        broker.create_topic(TOPIC, 1)
        message = mq.Message(TOPIC, body, tags="bench")
        producer.send(message)
        times = [_seconds(lambda: producer.send(message)) for _ in range(SYNC_COUNT)]
        _report(session, "send, sync flush", statistics.median(times) * SYNC_COUNT, SYNC_COUNT, len(body))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _report(session: Session, name: str, seconds: float, count: int, size: int) -> None:
    rate = count / seconds
    if session.json:
        emit_json(
            {
                "case": name,
                "count": count,
                "body_size": size,
                "seconds": round(seconds, 6),
                "rate": round(rate),
            }
        )
    else:
        each = seconds / count * 1e6
        click.echo(
            f"{name:<20} {rate:>12,.0f} messages/s {rate * size / 1e6:>9,.1f} MB/s {each:>9,.2f} µs each"
        )
