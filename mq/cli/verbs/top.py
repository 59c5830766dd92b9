"""`top`: live statistics of the store; with --json, a line per snapshot."""

import sys
import time

import click

import mq
from mq.cli.printing import emit_json
from mq.cli.screen.snapshot import Snapshot, rates, take_snapshot
from mq.cli.session import Session, with_json
from mq.cli.verbs.groups import member_facts

INTERVAL_MIN, INTERVAL_MAX = 0.05, 3600.0


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(INTERVAL_MIN, INTERVAL_MAX),
    default=1.0,
    show_default=True,
    help="Seconds between two snapshots.",
)
@click.option("--count", type=click.IntRange(min=1), help="With --json: stop after this many snapshots.")
@with_json
@click.pass_obj
def top(session: Session, interval: float, count: int | None) -> None:
    """Watch topics, groups and members: rates, lag, and queues without progress.

    Keys: tab goes to the next table, s sorts it by the next column, r reverses the order, p pauses,
    + and - change the interval, q quits.
    """
    if session.json:
        with session.open() as broker:
            _print(broker, interval, count)
        return
    if count is not None:
        raise click.UsageError("--count goes with --json")
    try:
        from mq.cli.screen.dashboard import Dashboard
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise mq.MQError('top needs textual; install it with: pip install "mq[cli]"') from None
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError("top needs a terminal; --json prints a line per snapshot instead")
    with session.open() as broker:
        Dashboard(session.target, lambda: take_snapshot(broker, _now_ms()), interval).run()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _print(broker: mq.Broker, interval: float, count: int | None) -> None:
    before: Snapshot | None = None
    looks = 0
    while True:
        snapshot = take_snapshot(broker, _now_ms())
        moved = rates(before, snapshot)
        emit_json(
            {
                "time_ms": snapshot.time_ms,
                "topics": [
                    {
                        "topic": topic.name,
                        "queues": topic.queue_count,
                        "messages": topic.kept,
                        "sent_per_s": moved.sent.get(topic.name),
                    }
                    for topic in snapshot.topics
                ],
                "groups": [
                    {
                        "group": group.name,
                        "topic": group.topic,
                        "members": group.member_count,
                        "lag": group.lag,
                        "retrying": group.retrying,
                        "consumed_per_s": moved.consumed.get((group.name, group.topic)),
                        "oldest_unconsumed_ms": group.oldest_unconsumed_ms,
                        "dead_letters": group.dead_letters,
                        "reasons": group.reasons,
                    }
                    for group in snapshot.groups
                ],
                "members": [
                    {
                        "group": member.group,
                        "member": member.member and member_facts(member.member),
                        "queues": member.queue_count,
                        "lag": member.lag,
                        "reasons": member.reasons,
                    }
                    for member in snapshot.members
                ],
            }
        )
        before = snapshot
        looks += 1
        if looks == count:
            return
        sys.stdout.flush()
        time.sleep(interval)
