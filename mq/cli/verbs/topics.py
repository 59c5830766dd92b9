"""`topics`, `create`, `delete`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

import mq
from mq.api.local import Directory
from mq.api.results import MessageQueue
from mq.api.topic import Permission
from mq.cli.printing import counted, emit_json, emit_table, visible
from mq.cli.session import Session, with_json

QUEUES_SHOWN = 5


@click.command()
@with_json
@click.pass_obj
def topics(session: Session) -> None:
    """List the topics with their queues and messages."""
    with session.open() as broker:
        found = [_facts(broker, name) for name in sorted(broker.topics())]
    if session.json:
        for facts in found:
            emit_json(facts)
    elif found:
        emit_table(
            ("topic", "queues", "messages"),
            ((facts["topic"], f"{facts['queues']:,}", f"{facts['messages']:,}") for facts in found),
            numbers={"queues", "messages"},
        )
        for facts in found:
            if unread := facts.get("unread_queues"):
                click.echo(f"{facts['topic']}: {_in_words(unread)}")


def _facts(broker: mq.Broker, name: str) -> dict[str, Any]:
    """A topic's queues and messages, with those of queues that may not be read: a topic has them that has
    fewer queues to read than to write, was shrunk by a RocketMQ broker, or has no permission to be read."""
    readable = _count(broker.readable, name)
    facts: dict[str, Any] = {"topic": name, "queues": readable or _count(broker.publishable, name)}
    if not isinstance(broker, Directory):
        queues = broker.topic(name).queues if readable else ()
        return facts | {"messages": sum(queue.max_offset - queue.min_offset for queue in queues)}
    counts = {queue_id: end - begin for queue_id, (begin, end) in sorted(broker.queue_offsets(name).items())}
    facts["messages"] = sum(counts.values())
    unread = {queue_id: count for queue_id, count in counts.items() if queue_id >= readable and count > 0}
    return facts | ({"unread_queues": unread} if unread else {})


def _count(queues: Callable[[str], Sequence[MessageQueue]], topic: str) -> int:
    try:
        return len(queues(topic))
    except mq.NotPermitted:
        return 0


def _in_words(unread: Mapping[int, int]) -> str:
    """What to say of queues with messages that may not be read."""
    queue_ids = [str(queue_id) for queue_id in unread]
    if len(queue_ids) > QUEUES_SHOWN:
        queue_ids[QUEUES_SHOWN:] = [f"and {len(queue_ids) - QUEUES_SHOWN:,} more"]
    count = sum(unread.values())
    return (
        f"{counted(count, 'message')} of queue{'s' * (len(unread) > 1)} {', '.join(queue_ids)}"
        f" may not be read: see mq DIR create --read-queues {max(unread) + 1}, --perm"
    )


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
    perm: Permission | None,
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
            emit_json(_facts(broker, topic))
        else:
            count = _facts(broker, topic)["queues"]
            click.echo(f"{visible(made.name)}: {count} queues")
            if shrink and (left := count - _count(broker.publishable, topic)) > 0:
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
