"""`topics`, `create`, `delete`."""

import click

import mq
from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json


@click.command()
@with_json
@click.pass_obj
def topics(session: Session) -> None:
    """List the topics with their queues and messages."""
    with session.open() as broker:
        for name in sorted(broker.topics()):
            facts = _facts(broker.topic(name))
            if session.json:
                emit_json(facts)
            else:
                click.echo(
                    f"{visible(name):<40} {facts['queues']:>5} queues {facts['messages']:>13,} messages"
                )


def _facts(topic: mq.Topic) -> dict[str, object]:
    count = sum(queue.max_offset - queue.min_offset for queue in topic.queues)
    return {"topic": topic.name, "queues": len(topic.queues), "messages": count}


@click.command()
@click.argument("topic")
@click.option("--queues", "queue_count", type=click.IntRange(min=1), default=4, show_default=True)
@click.option(
    "--read-queues", "read_queue_count", type=click.IntRange(min=1), help="If not as many as --queues."
)
@click.option(
    "--write-queues", "write_queue_count", type=click.IntRange(min=1), help="If not as many as --queues."
)
@click.option("--perm", type=click.Choice(["r", "w", "rw"]), default="rw", show_default=True)
@click.option("--ordered", is_flag=True, help="Mark the topic as one whose order matters.")
@with_json
@click.pass_obj
def create(
    session: Session,
    topic: str,
    queue_count: int,
    read_queue_count: int | None,
    write_queue_count: int | None,
    perm: str,
    ordered: bool,
) -> None:
    """Make TOPIC; with the same values again, nothing changes."""
    with session.open(create=True) as broker:
        made = broker.create_topic(
            topic,
            queue_count,
            read_queue_count=read_queue_count,
            write_queue_count=write_queue_count,
            perm=perm,
            ordered=ordered,
        )
        if session.json:
            emit_json(_facts(made))
        else:
            click.echo(f"{visible(made.name)}: {len(made.queues)} queues")


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
