"""`redrive`: send a group's dead letters back to it."""

import click

from mq.cli.printing import counted, emit_json, visible
from mq.cli.session import Session, with_json
from mq.cli.verbs.groups import known
from mq.filter.selection import Selection
from mq.names import DEAD_PREFIX


@click.command()
@click.argument("group")
@click.option("--tags", "expression", default="*", help='Only these tags, such as "paid || refunded".')
@click.option("--sql", help="Only messages that match this SQL92 expression over their properties.")
@click.option("--limit", type=click.IntRange(min=1), help="Send at most this many.")
@click.option(
    "--all-groups", is_flag=True, help="Send them to their topics, so that all groups consume them again."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@with_json
@click.pass_obj
def redrive(
    session: Session,
    group: str,
    expression: str,
    sql: str | None,
    limit: int | None,
    all_groups: bool,
    dry_run: bool,
) -> int:
    """Make GROUP consume its dead letters again, each once, oldest first.

    They go through the group's retry topic, so no other group gets them.
    """
    if sql is not None and expression != "*":
        raise click.UsageError("--tags and --sql exclude each other")
    selection = Selection.of(expression, sql)
    with session.open_directory("redrive") as broker:
        if not known(broker, group) and DEAD_PREFIX + group not in broker.topics():
            click.echo(f"mq: there is no group {visible(group)}", err=True)
            return 1
        done = broker.redrive(
            group, selection=selection, count_max=limit, dry_run=dry_run, all_groups=all_groups
        )
        if done.sent and not dry_run:
            broker.flush()  # There may be no running application whose duties flush.
        if session.json:
            emit_json({**done._asdict(), "dry_run": dry_run})
        else:
            click.echo(f"{counted(done.sent, 'message')} {'would be ' if dry_run else ''}sent back")
            for count, what in (
                (done.left, "not selected"),
                (done.known, "sent back before"),
                (done.stuck, "whose topic is gone, or closed to writers"),
            ):
                if count:
                    click.echo(f"{counted(count, 'message')} {what}")
    return 1 if done.stuck else 0
