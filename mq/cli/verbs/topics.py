"""`topics`, `create`, `delete`."""

from typing import Any

import click

import mq
from mq.cli.printing import emit_json, emit_table, visible
from mq.cli.session import Session, with_json


@click.command()
@with_json
@click.pass_obj
def topics(session: Session) -> None:
    """List the topics with their queues and messages."""
    with session.open() as broker:
        found = [_facts(broker.topic(name)) for name in sorted(broker.topics())]
    if session.json:
        for facts in found:
            emit_json(facts)
    elif found:
        emit_table(
            ("topic", "queues", "messages"),
            ((facts["topic"], f"{facts['queues']:,}", f"{facts['messages']:,}") for facts in found),
            numbers={"queues", "messages"},
        )


def _facts(topic: mq.Topic) -> dict[str, Any]:
    count = sum(queue.max_offset - queue.min_offset for queue in topic.queues)
    return {"topic": topic.name, "queues": len(topic.queues), "messages": count}


@click.command()
@click.argument("topic")
@click.option(
    "--queues", "queue_count", type=click.IntRange(min=1), help="The number of queues; 4 for a new topic."
)
@click.option(
    "--read-queues", "read_queue_count", type=click.IntRange(min=1), help="If different from --queues."
)
@click.option(
    "--write-queues", "write_queue_count", type=click.IntRange(min=1), help="If different from --queues."
)
@click.option("--perm", type=click.Choice(["r", "w", "rw"]), help="Read, write or both; rw for a new topic.")
@click.option("--ordered/--unordered", default=None, help="Mark the topic as ordered.")
@click.option("--shrink", is_flag=True, help="Remove queues that hold messages, once they are consumed.")
@with_json
@click.pass_obj
def create(
    session: Session,
    topic: str,
    queue_count: int | None,
    read_queue_count: int | None,
    write_queue_count: int | None,
    perm: str | None,
    ordered: bool | None,
    shrink: bool,
) -> None:
    """Create TOPIC, or change it: options that are not given keep their value.

    Fewer queues are an error if the removed ones hold unconsumed messages. With --shrink these queues get no
    new messages, and are removed once all groups have consumed them.
    """
    with session.open(create=True) as broker:
        made = broker.create_topic(
            topic,
            queue_count,
            read_queue_count=read_queue_count,
            write_queue_count=write_queue_count,
            perm=perm,
            ordered=ordered,
            shrink=shrink,
        )
        if session.json:
            emit_json(_facts(made))
        else:
            click.echo(f"{visible(made.name)}: {len(made.queues)} queues")
            if shrink and (left := len(made.queues) - len(broker.publishable(topic))) > 0:
                click.echo(f"{left} of them get no more messages, and go once all groups have consumed them")


@click.command()
@click.argument("topic")
@with_json
@click.pass_obj
def delete(session: Session, topic: str) -> None:
    """Delete TOPIC and its queues."""
    with session.open() as broker:
        broker.topic(topic)
        broker.delete_topic(topic)
        if session.json:
            emit_json({"deleted": topic})
