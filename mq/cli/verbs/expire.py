"""`expire`: delete expired files now, or show what would be deleted."""

from collections import Counter
from collections.abc import Mapping

import click

import mq
from mq.api.local import directory
from mq.api.retention import DELAYED, Expiring, Retention
from mq.cli.printing import counted, emit_json, emit_table, visible
from mq.cli.session import RETENTION_HOURS_MAX, Session, with_json


@click.command()
@click.option(
    "--hours",
    type=click.FloatRange(0, RETENTION_HOURS_MAX),
    help="Keep messages younger than this, however full the disk is; with --dry-run, the default is the"
    " store's retention.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only show what would be deleted, and which groups have not read it."
)
@click.option(
    "--within",
    "within_hours",
    type=click.FloatRange(0, RETENTION_HOURS_MAX),
    default=0.0,
    help="With --dry-run: show what will be deleted within this many hours, the disk as full as it is now.",
)
@with_json
@click.pass_obj
def expire(session: Session, hours: float | None, dry_run: bool, within_hours: float) -> None:
    """Delete the files of the commit log that were last written more than HOURS ago.

    Whole files are deleted, never single messages. The newest file always stays.
    """
    if hours is None and not dry_run:
        raise click.UsageError("give --hours HOURS, or --dry-run to see what would be deleted")
    if within_hours and not dry_run:
        raise click.UsageError("--within goes with --dry-run")
    with session.open_directory("expire") as broker:
        if dry_run:
            warn_if_held(broker.retention)
            _show(session, broker.retention.expiring(hours=hours, within_hours=within_hours))
            return
        count = broker.expire(retention_hours=hours)
        if session.json:
            emit_json({"deleted_files": count})
        else:
            click.echo(f"{count} files of the commit log deleted")


def retention_of(broker: mq.Broker) -> Retention | None:
    """The retention of a directory; None for a cluster."""
    try:
        return directory(broker, "retention").retention
    except mq.NotSupported:
        return None


def warn_if_held(kept: Retention | None) -> None:
    """Warn that retention is on hold, and how to end that."""
    if kept is not None and (why := kept.held):
        click.echo(f"mq: {why}: nothing is deleted before mq DIR retention --confirm", err=True)


def expiring_by_group(kept: Retention | None) -> Counter[str]:
    """By group: how many unread messages will soon be deleted."""
    found: Counter[str] = Counter()
    for each in kept.warned().unread if kept is not None else ():
        found[each.group] += each.count
    return found


def warn_of_expiring(kept: Retention | None, group: str, expiring: Mapping[str, int]) -> None:
    """Warn of messages that will soon be deleted before the group has read them."""
    count = expiring.get(group, 0)
    if count and kept is not None:
        hours = f"{kept.warned_hours:g}"
        click.echo(
            f"{counted(count, 'message')} that {visible(group)} has not read will be deleted within"
            f" {hours} h: see mq DIR expire --dry-run --within {hours}"
        )


def _show(session: Session, found: Expiring) -> None:
    unread: dict[tuple[str, int], Counter[str]] = {}
    for each in found.unread:
        unread.setdefault((each.topic, each.queue_id), Counter())[each.group] += each.count
    if session.json:
        emit_json(
            {
                "files": found.file_count,
                "bytes": found.byte_count,
                "queues": [
                    {
                        "topic": each.topic,
                        "queue_id": each.queue_id,
                        "first": each.first,
                        "last": each.last,
                        "unread": unread.get((each.topic, each.queue_id), {}),
                    }
                    for each in found.ranges
                ],
                "waiting": [
                    {
                        "kind": each.kind,
                        "topic": each.topic,
                        "count": each.count,
                        "queue": f"{each.lies_in.topic}/{each.lies_in.queue_id}",
                        "first": each.lies_in.first,
                        "last": each.lies_in.last,
                    }
                    for each in found.waiting
                ],
            }
        )
        return
    files = counted(found.file_count, "file")
    click.echo(f"{files} of the commit log ({found.byte_count:,} bytes) would be deleted")
    if found.ranges:
        emit_table(
            ("queue", "first", "last", "not read by"),
            (
                (
                    f"{each.topic}/{each.queue_id}",
                    f"{each.first:,}",
                    f"{each.last:,}",
                    ", ".join(
                        f"{group} ({count:,})"
                        for group, count in unread.get((each.topic, each.queue_id), {}).items()
                    ),
                )
                for each in found.ranges
            ),
            numbers={"first", "last"},
            below=("not read by",),
        )
    for waited in found.waiting:
        place, kind = waited.lies_in, "delayed message" if waited.kind == DELAYED else "half message"
        click.echo(
            f"{counted(waited.count, kind)} for {visible(waited.topic)} would never be delivered:"
            f" {place.topic}/{place.queue_id} offsets {place.first:,} to {place.last:,}"
        )
