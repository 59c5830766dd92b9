"""`consume`: messages of a topic as a member of a consumer group, printed and committed."""

import sys

import click

import mq
from mq.api.beginning import BEGINNINGS, Beginning
from mq.cli.printing import as_json, emit_json, emit_line, visible
from mq.cli.session import Session, with_json
from mq.cli.session import moment as time_of
from mq.client.pull_consumer import PullConsumer

POLL_SECONDS = 20.0
COUNT_MAX = 32


def _position(text: str) -> Beginning | int:
    """`first`, `last`, or a time; `earliest` and `latest` are accepted too, as in `reset`."""
    return BEGINNINGS.get(text) or time_of(text)


@click.command()
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group to join.")
@click.option("--tags", "expression", default="*", help='Only these tags, such as "paid || refunded".')
@click.option("--sql", help="Only messages that match this SQL92 expression over their properties.")
@click.option(
    "--from",
    "consume_from",
    type=_position,
    default="first",
    show_default=True,
    metavar="first|last|TIME",
    help="Where to begin if the group has no offset for TOPIC yet.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--wait", type=click.FloatRange(min=0), help="Stop after this many seconds without a message.")
@with_json
@click.pass_obj
def consume(
    session: Session,
    topic: str,
    group: str,
    expression: str,
    sql: str | None,
    consume_from: Beginning | int,
    count: int | None,
    wait: float | None,
) -> int:
    """Consume TOPIC as a member of GROUP: print the messages, and commit their offsets.

    The queues are shared with the other members of the group. --wait 0 stops when all stored messages are
    consumed. A damaged message is reported and skipped; the exit status is 1 then.
    """
    if sql is not None and expression != "*":
        raise click.UsageError("--tags and --sql exclude each other")
    done = lost = 0
    with (
        session.open() as broker,
        PullConsumer(broker, group, auto_commit=False, consume_from=consume_from) as consumer,
    ):
        broker.topic(topic)
        consumer.subscribe(topic, expression, sql=sql)
        while count is None or done < count:
            try:
                messages = _next(consumer, COUNT_MAX if count is None else min(COUNT_MAX, count - done), wait)
            except mq.StoreCorrupted as error:
                if error.queue is None or error.queue_offset is None:
                    raise
                click.echo(f"mq: {visible(str(error))}", err=True)
                lost += 1
                consumer.seek(error.queue, error.queue_offset + 1)
                continue
            if not messages:
                break
            for message in messages:
                if session.json:
                    emit_json(as_json(message))
                else:
                    emit_line(message)
            # Flush before the commit: the reader of the output may be gone.
            sys.stdout.flush()
            consumer.commit()
            done += len(messages)
    if not done and not lost:
        click.echo(f"mq: nothing for {visible(group)} in {visible(topic)}", err=True)
    return 0 if done and not lost else 1


def _next(consumer: PullConsumer, count_max: int, wait: float | None) -> list[mq.MessageExt]:
    """The next messages; none if `wait` seconds pass without one."""
    if wait is not None:
        return consumer.poll(wait, count_max=count_max)
    while not (messages := consumer.poll(POLL_SECONDS, count_max=count_max)):
        pass
    return messages
