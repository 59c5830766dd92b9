"""`send`: one message, or each line of standard input as one."""

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import mq
from mq.cli.printing import emit_json
from mq.cli.session import Session, instant, with_json
from mq.threads import start

CHUNK_SIZE = 1 << 18
BATCH_COUNT_MAX = 1000
FLUSH_SECONDS = 0.5
PROPERTIES_SIZE = 512  # a generous limit for the overhead of a line in a batch


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--lines", is_flag=True, help="Send each line of standard input as a message.")
@click.option("--tags", "--tag", help="The tag of the message.")
@click.option("--keys", "--key", multiple=True, help="A key to query by; may be repeated.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--shard-key", help="Messages with the same shard key keep their order.")
@click.option(
    "--delay-level", type=int, default=0, metavar="LEVEL", help="Deliver later: 1 (1 s) to 18 (2 h)."
)
@click.option("--delay-ms", type=int, metavar="MS", help="Deliver this many milliseconds later.")
@click.option("--deliver-at", type=instant, metavar="TIME", help="Deliver at this time.")
@click.option("--sync", is_flag=True, help="Return only when the message is on disk.")
@with_json
@click.pass_obj
def send(
    session: Session,
    topic: str,
    body: str | None,
    lines: bool,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    shard_key: str | None,
    delay_level: int,
    delay_ms: int | None,
    deliver_at: int | None,
    sync: bool,
) -> None:
    """Send BODY to TOPIC, or standard input if there is no BODY.

    With --lines every line of standard input becomes a message; empty lines are skipped. For a message with
    --delay-ms or --deliver-at, the output includes its handle for `recall`.
    """
    if lines and body is not None:
        raise click.UsageError("BODY and --lines exclude each other")
    if body is None and not lines and sys.stdin.isatty():
        raise click.UsageError("nothing to send: give a BODY, or input on standard input")
    named = dict(_property(text) for text in properties)

    def message(content: bytes) -> mq.Message:
        return mq.Message(
            topic,
            content,
            tags=tags,
            keys=keys,
            properties=named,
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at,
        )

    with (
        session.open(create=True, flush="sync" if sync else "async") as broker,
        mq.Producer(broker) as producer,
    ):
        if lines:
            # Delayed messages cannot be in a batch.
            alone = delay_level > 0 or delay_ms is not None or deliver_at is not None
            count_max = 1 if alone else BATCH_COUNT_MAX
            with _flushed(broker) as sent:
                _send_lines(session, producer, broker.message_size_max, count_max, message, shard_key, sent)
            return
        content = sys.stdin.buffer.read() if body is None else os.fsencode(body)
        result = producer.send(message(content), shard_key=shard_key)
        broker.flush()  # There may be no running application whose duties flush.
        _print_result(session, result, waits=delay_level > 0 or result.recall_handle is not None)


def _print_result(session: Session, result: mq.SendResult, *, waits: bool) -> None:
    queue = result.queue
    if session.json:
        emit_json(
            {
                "status": result.status.name,
                "msg_id": result.msg_id,
                "offset_msg_id": result.offset_msg_id,
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "queue_offset": None if waits else result.queue_offset,
                "recall_handle": result.recall_handle,
            }
        )
    elif waits:
        handle = f" {result.recall_handle}" if result.recall_handle else ""
        click.echo(f"{result.msg_id} {queue.topic}/{queue.queue_id} waits{handle}")
    else:
        click.echo(f"{result.msg_id} {queue.topic}/{queue.queue_id}@{result.queue_offset}")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is no property: give NAME=VALUE")
    return name, value


def _send_lines(
    session: Session,
    producer: mq.Producer,
    size_max: int,
    count_max: int,
    message: Callable[[bytes], mq.Message],
    shard_key: str | None,
    is_sent: threading.Event,
) -> None:
    started = time.monotonic()
    sent = lines_read = 0
    with _progress() as progress:
        for batch in line_batches(sys.stdin.buffer, size_max, count_max):
            contents = [line for line in batch if line]
            try:
                if len(contents) > 1:
                    producer.send_batch([message(content) for content in contents], shard_key=shard_key)
                elif contents:
                    producer.send(message(contents[0]), shard_key=shard_key)
            except mq.MQError:
                click.echo(
                    f"mq: stopped at line {lines_read + 1}; {sent} messages were sent before", err=True
                )
                raise
            is_sent.set()
            sent += len(contents)
            lines_read += len(batch)
            if progress:
                progress.update(progress.task_ids[0], advance=sum(map(len, batch)) + len(batch), sent=sent)
    seconds = time.monotonic() - started
    if session.json:
        emit_json({"sent": sent, "empty_lines": lines_read - sent, "seconds": round(seconds, 6)})
    else:
        left_out = f", {lines_read - sent:,} empty lines left out" if lines_read > sent else ""
        click.echo(f"{sent:,} messages sent in {seconds:.2f} s{left_out}")


@contextmanager
def _flushed(broker: mq.Broker) -> Iterator[threading.Event]:
    """Flush the messages sent inside the context: shortly after the event is set, and at the end.

    A command performs no duties, and there may be no running application that flushes.
    """
    is_sent, is_over = threading.Event(), threading.Event()

    def flush() -> None:
        while is_sent.wait() and not is_over.wait(FLUSH_SECONDS):
            is_sent.clear()
            with suppress(mq.MQError, OSError):  # The next send raises it.
                broker.flush()

    thread = threading.Thread(target=flush, name="mq-flush", daemon=True)
    start(thread)
    try:
        yield is_sent
    finally:
        is_over.set()
        is_sent.set()
        thread.join()
    broker.flush()


def line_batches(stream: BinaryIO, size_max: int, count_max: int = BATCH_COUNT_MAX) -> Iterator[list[bytes]]:
    """The lines read so far, in groups that fit into one batch. Never waits to fill a group."""
    for arrived in arriving_lines(stream, size_max):
        batch: list[bytes] = []
        size = 0
        for line in arrived:
            line_size = len(line) + PROPERTIES_SIZE
            if batch and (size + line_size > size_max or len(batch) == count_max):
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += line_size
        if batch:
            yield batch


def arriving_lines(stream: BinaryIO, size_max: int) -> Iterator[list[bytes]]:
    """Complete lines as they arrive. A line over the size limit is yielded incomplete; the send rejects
    it."""
    unfinished: list[bytes] = []
    unfinished_size = 0
    while chunk := os.read(stream.fileno(), CHUNK_SIZE):
        *whole, last = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join([*unfinished, whole[0]])
            unfinished, unfinished_size = [], 0
            yield whole
        unfinished.append(last)
        unfinished_size += len(last)
        if unfinished_size > size_max:
            break
    if unfinished_size:
        yield [b"".join(unfinished)]


def _progress() -> AbstractContextManager[Progress | None]:
    """A progress bar on the terminal, unless standard input is a terminal."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        return nullcontext()
    status = os.fstat(sys.stdin.fileno())
    progress = Progress(
        BarColumn(),
        TextColumn("{task.fields[sent]:,} messages"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task("lines", total=status.st_size if stat.S_ISREG(status.st_mode) else None, sent=0)
    return progress
