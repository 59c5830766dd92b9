"""`timers`: the delayed messages by topic and due time; `recall`: cancel one of them."""

import time
from collections.abc import Iterable

import click

import mq
from mq.api.local import Delayed
from mq.cli.printing import emit_json, emit_table, moment, span, visible
from mq.cli.session import Session, with_json

WITHIN_MS = {"1 MIN": 60_000, "1 H": 3_600_000, "1 D": 86_400_000}
LATER = "LATER"


@click.command()
@click.argument("topic", required=False)
@click.option("--list", "each", is_flag=True, help="List each message with its handle, the next one first.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="With --list: at most this many.")
@with_json
@click.pass_obj
def timers(session: Session, topic: str | None, each: bool, limit: int | None) -> int:
    """Show the number of delayed messages of TOPIC, or of each topic, and when they are due.

    Counts messages with a delay level and messages with a due time. The columns after NEXT show how many are
    due within a minute, in the rest of the hour, in the rest of the day, and later.
    """
    if limit is not None and not each:
        raise click.UsageError("--limit is for --list")
    with session.open_directory("timers") as broker:
        if topic is not None:
            broker.topic(topic)
        found = sorted(one for one in broker.delayed() if topic is None or one.queue.topic == topic)
    if each:
        _list(session, found[:limit])
    elif session.json:
        for name, waiting in _by_topic(found).items():
            emit_json(_facts(name, waiting))
    elif found:
        _show(_by_topic(found))
    else:
        click.echo("no message waits")
    return 0


def _by_topic(found: Iterable[Delayed]) -> dict[str, list[Delayed]]:
    topics: dict[str, list[Delayed]] = {}
    for one in found:
        topics.setdefault(one.queue.topic, []).append(one)
    return dict(sorted(topics.items()))


def _within(waiting: list[Delayed], now_ms: int) -> dict[str, int]:
    """How many are due in each period, without those of the shorter periods."""
    counts = dict.fromkeys((*WITHIN_MS, LATER), 0)
    for one in waiting:
        fitting = (name for name, limit in WITHIN_MS.items() if one.due_ms - now_ms <= limit)
        counts[next(fitting, LATER)] += 1
    return counts


def _show(topics: dict[str, list[Delayed]]) -> None:
    now_ms = time.time_ns() // 1_000_000
    numbers = ("WAITING", "NEXT", *WITHIN_MS, LATER)
    emit_table(
        ("TOPIC", *numbers),
        (
            (
                name,
                f"{len(waiting):,}",
                span(waiting[0].due_ms - now_ms),
                *(f"{count:,}" for count in _within(waiting, now_ms).values()),
            )
            for name, waiting in topics.items()
        ),
        numbers=set(numbers),
    )


def _facts(topic: str, waiting: list[Delayed]) -> dict[str, object]:
    now_ms = time.time_ns() // 1_000_000
    minute, hour, day, later = _within(waiting, now_ms).values()
    return {
        "topic": topic,
        "waiting": len(waiting),
        "with_delay_level": sum(one.delay_level > 0 for one in waiting),
        "next_due_ms": waiting[0].due_ms,
        "last_due_ms": waiting[-1].due_ms,
        "due_within_minute": minute,
        "due_within_hour": hour,
        "due_within_day": day,
        "due_later": later,
    }


def _list(session: Session, found: list[Delayed]) -> None:
    if session.json:
        for one in found:
            queue: mq.MessageQueue = one.queue
            emit_json(
                {
                    "due_ms": one.due_ms,
                    "topic": queue.topic,
                    "queue_id": queue.queue_id,
                    "msg_id": one.msg_id,
                    "delay_level": one.delay_level,
                    "recall_handle": one.recall_handle,
                }
            )
        return
    if not found:
        click.echo("no message waits")
        return
    emit_table(
        ("DUE", "QUEUE", "ID", "LEVEL", "HANDLE"),
        (
            (
                moment(one.due_ms),
                f"{one.queue.topic}/{one.queue.queue_id}",
                one.msg_id,
                str(one.delay_level or "-"),
                one.recall_handle or "-",
            )
            for one in found
        ),
        numbers={"LEVEL"},
        below=("HANDLE", "ID"),
    )


@click.command()
@click.argument("handle")
@with_json
@click.pass_obj
def recall(session: Session, handle: str) -> int:
    """Cancel the delayed message of HANDLE, so that it is never delivered.

    `send --deliver-at` and `--delay-ms` print the HANDLE; `timers --list` shows those of all delayed
    messages.
    """
    # With duties, since the leader performs the recall and there may be no running application.
    with session.open(duties=True) as broker:
        try:
            msg_id = broker.recall(handle)
        except mq.MessageNotFound as error:
            click.echo(f"mq: no message with the id {visible(error.msg_id)} waits", err=True)
            return 1
    if session.json:
        emit_json({"msg_id": msg_id, "recalled": True})
    else:
        click.echo(f"{msg_id} is recalled")
    return 0
