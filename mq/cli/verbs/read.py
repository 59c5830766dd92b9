"""`query` and `show`: messages by key and by id."""

import click

from mq.cli.printing import as_json, emit_json, emit_line, emit_record, visible
from mq.cli.session import Session, moment, with_json


@click.command()
@click.argument("topic")
@click.argument("key")
@click.option(
    "--count", "count_max", type=click.IntRange(min=1), default=32, show_default=True, help="At most."
)
@click.option("--begin", type=moment, metavar="TIME", default=0, help="Stored at or after this time.")
@click.option("--end", type=moment, metavar="TIME", help="Stored at or before this time.")
@with_json
@click.pass_obj
def query(session: Session, topic: str, key: str, count_max: int, begin: int, end: int | None) -> int:
    """Find the messages of TOPIC with KEY, newest first."""
    with session.open() as broker:
        found = broker.query(topic, key, count_max=count_max, begin_ms=begin, end_ms=end)
        for message in found:
            if session.json:
                emit_json(as_json(message))
            else:
                emit_line(message)
    if not found:
        click.echo(f"mq: no message of {visible(topic)} with the key {visible(key)}", err=True)
    return 0 if found else 1


@click.command()
@click.argument("msg_id", metavar="MSGID")
@with_json
@click.pass_obj
def show(session: Session, msg_id: str) -> None:
    """Show one message in full, by its unique id or its offset id."""
    with session.open() as broker:
        message = broker.message(msg_id)
        if session.json:
            emit_json(as_json(message))
        else:
            emit_record(message)
