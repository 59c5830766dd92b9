"""`copy`: copy topics to another directory or cluster."""

import os
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import mq
from mq.cli.cluster_options import ClusterOptions, cluster_options, connection
from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json
from mq.client.topic_copy import TopicCopy
from mq.compacted_topics import RULES
from mq.names import DEAD_PREFIX, RETRY_PREFIX

GROUP = "mq_copy"


@click.command()
@click.argument("target")
@click.argument("topics", nargs=-1)
@click.option(
    "--group",
    default=GROUP,
    metavar="GROUP",
    help=f"The group that keeps the copy's offsets on DIR ({GROUP}).",
)
@cluster_options("target-")
@with_json
@click.pass_obj
def copy(session: Session, /, target: str, topics: tuple[str, ...], group: str, **target_options: Any) -> int:
    """Copy TOPICS, or all, to TARGET: another directory, or rocketmq://HOST:PORT. DIR may be a cluster too.

    Queues keep their order; messages keep their tag, keys, properties and unique id. Run the command again to
    resume an interrupted copy, or to copy newer messages; nothing is copied twice. The topics are created on
    TARGET, which must not have other messages in them. All topics are those of programs: retries and dead
    letters of groups, and what mq keeps for itself, have a meaning on DIR alone. The exit status is 1 if DIR
    deletes messages before they are copied.

    The --target- options connect to TARGET. Without any of them, the options before the verb do, if DIR is a
    directory.
    """
    there = Session(target, session.json, _connection(session, target_options))
    with session.open() as source, there.open(create=True) as broker:
        for topic in () if topics else filter(_is_of_group, source.topics()):
            if count := sum(queue.max_offset - queue.min_offset for queue in source.topic(topic).queues):
                click.echo(f"left out: {visible(topic)}, {count:,} messages; name it to copy it", err=True)
        lost = [_copy(session, source, broker, topic, group) for topic in topics or _topics(source)]
    return 1 if sum(lost) else 0


def _topics(source: mq.Broker) -> list[str]:
    own = {rule.topic for rule in RULES}
    return [topic for topic in source.topics() if not _is_of_group(topic) and topic not in own]


def _is_of_group(topic: str) -> bool:
    return topic.startswith((RETRY_PREFIX, DEAD_PREFIX))


def _connection(session: Session, given: dict[str, Any]) -> ClusterOptions:
    """How to connect to TARGET. The secret of one cluster does not sign requests to another one, unless it is
    given for that one, too."""
    found = connection(given, os.environ, "target-")
    if found is not None:
        return found
    return ClusterOptions() if session.is_remote else session.cluster


def _copy(session: Session, source: mq.Broker, target: mq.Broker, topic: str, group: str) -> int:
    """How many messages the source deleted before they were copied."""
    console = Console(stderr=True)
    columns = TextColumn(visible(topic)), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as shown:
        task = shown.add_task(topic)
        work = TopicCopy(
            source, target, topic, group=group, progress=lambda count: shown.advance(task, count)
        )
        shown.update(task, total=work.total)
        queues = work.run()
    copied, there, lost = (
        sum(each.copied for each in queues),
        sum(each.there for each in queues),
        sum(each.lost for each in queues),
    )
    if session.json:
        told = {"topic": topic, "queues": len(queues), "copied": copied, "messages": there}
        emit_json({**told, "lost": lost} if lost else told)
    else:
        click.echo(f"{visible(topic)}: {copied:,} copied, {there:,} there now, in {len(queues)} queues")
    if lost:
        click.echo(f"{visible(topic)}: {lost:,} messages were deleted before they were copied", err=True)
    return lost
