"""`tail`: print the newest messages of a topic, then follow it."""

import heapq
import time

import click

import mq
from mq.api.beginning import BEGINNINGS
from mq.cli.follow import MessageFilter, TopicFollower, age_order, merged
from mq.cli.printing import as_json, emit_json, emit_line, visible
from mq.cli.session import Session, moment, with_json

TOPIC_LOOK_INTERVAL = 0.25  # seconds between two checks for a topic that does not exist yet


def _position(text: str) -> str | int:
    """`first`, `last`, or a time; `earliest` and `latest` are accepted too, as in `consume`."""
    return BEGINNINGS.get(text) or moment(text)


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "begin",
    type=_position,
    metavar="first|last|TIME",
    help="Begin here instead of at the newest messages: first, last, 10m, …",
)
@click.option("-n", "--last", "last_count", type=click.IntRange(min=0), default=10, show_default=True)
@click.option("--tags", "expression", default="*", help='Only these tags, such as "paid || refunded".')
@click.option("--sql", help="Only messages that match this SQL92 expression over their properties.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Continue with new messages.")
@with_json
@click.pass_obj
def tail(
    session: Session,
    topic: str,
    begin: str | int | None,
    last_count: int,
    expression: str,
    sql: str | None,
    follow: bool,
) -> int:
    """Print the newest messages of TOPIC, then follow it.

    Without --from, it begins with the newest messages of the topic (-n of them, counted before --tags or
    --sql). If the topic does not exist, it waits for it. A damaged message is reported and skipped; the exit
    status is 1 then.
    """
    if sql is not None and expression != "*":
        raise click.UsageError("--tags and --sql exclude each other")
    message_filter = MessageFilter(expression, sql)
    emit = _emit_json if session.json else emit_line
    lost: list[mq.StoreCorrupted] = []

    def report(error: mq.StoreCorrupted) -> None:
        lost.append(error)
        click.echo(f"mq: {visible(str(error))}", err=True)

    with session.open() as broker:
        found = _wait_for(broker, topic) if follow else broker.topic(topic)
        ends = {queue.message_queue: queue.max_offset for queue in found.queues}
        begins = _newest(found, ends, last_count) if begin is None else _begins(found, begin, ends)
        for message in merged(found, begins, ends, message_filter, report):
            emit(message)
        if follow:
            with TopicFollower(broker, topic, ends, message_filter, report) as follower:
                for message in follower:
                    emit(message)
    return 1 if lost else 0


def _emit_json(message: mq.MessageExt) -> None:
    emit_json(as_json(message))


def _wait_for(broker: mq.Broker, name: str) -> mq.Topic:
    said = False
    while True:
        try:
            return broker.topic(name)
        except mq.TopicNotFound:
            if not said:
                click.echo(f"mq: waiting for the topic {visible(name)}", err=True)
                said = True
            time.sleep(TOPIC_LOOK_INTERVAL)


def _begins(
    topic: mq.Topic, begin: str | int, ends: dict[mq.MessageQueue, int]
) -> dict[mq.MessageQueue, int]:
    if begin == "last":
        return dict(ends)
    if begin == "first":
        return {queue.message_queue: queue.min_offset for queue in topic.queues}
    assert isinstance(begin, int)
    return {queue.message_queue: queue.offset_at(begin) for queue in topic.queues}


def _newest(topic: mq.Topic, ends: dict[mq.MessageQueue, int], count: int) -> dict[mq.MessageQueue, int]:
    """The offsets at which to begin, to read the newest `count` messages of all queues together."""
    earliest = {
        queue.message_queue: max(queue.min_offset, ends[queue.message_queue] - count)
        for queue in topic.queues
        if queue.message_queue in ends
    }
    newest = heapq.nlargest(
        count,
        merged(topic, earliest, ends, MessageFilter(), lambda _error: None),
        key=age_order(ends),
    )
    begins = dict(ends)
    for message in newest:
        queue = mq.MessageQueue(topic.name, message.broker_name, message.queue_id)
        begins[queue] = min(begins[queue], message.queue_offset)
    return begins
