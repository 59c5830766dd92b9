"""`retention` and `settings`: show or change the settings that a store keeps for all processes."""

import json

import click

from mq.cli.printing import emit_json, emit_table, moment
from mq.cli.session import RETENTION_HOURS_MAX, Session, with_json
from mq.cli.verbs.expire import warn_if_held


@click.command()
@click.argument("hours", type=click.FloatRange(0, RETENTION_HOURS_MAX), required=False)
@click.option(
    "--disk-ratio-max",
    type=click.FloatRange(0, 1),
    help="Delete earlier while the disk is fuller than this ratio: 0 to 1, where 1 is never.",
)
@click.option(
    "--confirm", is_flag=True, help="Resume retention that is on hold, and delete expired messages."
)
@with_json
@click.pass_obj
def retention(session: Session, hours: float | None, disk_ratio_max: float | None, confirm: bool) -> None:
    """Show how long messages are kept, or change it to HOURS.

    A change reaches all processes within 10 s. In a directory that is a copy of another one, or has lost its
    settings, nothing is deleted until you --confirm it.
    """
    with session.open_directory("retention") as broker:
        kept = broker.retention
        if hours is not None or disk_ratio_max is not None:
            kept.change(hours=hours, disk_ratio_max=disk_ratio_max)
        if confirm:
            kept.confirm()
        if session.json:
            emit_json(
                {
                    "retention_hours": kept.hours,
                    "disk_ratio_max": kept.disk_ratio_max,
                    "held": kept.held or None,
                    "away": list(kept.away) if kept.away else None,
                }
            )
            return
        click.echo(f"messages are kept for {kept.hours:g} h")
        if kept.disk_ratio_max < 1:
            click.echo(
                f"the oldest are deleted earlier while the disk is fuller than {kept.disk_ratio_max:.0%}"
            )
        if kept.away:
            begin, end = map(moment, kept.away)
            click.echo(f"no process had the store open from {begin} to {end}, which does not count")
        warn_if_held(kept)


@click.command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@with_json
@click.pass_obj
def settings(session: Session, changes: tuple[str, ...]) -> None:
    """Show the options that the store keeps for all processes, or change some."""
    wanted = dict(map(_change, changes))
    with session.open_directory("settings") as broker:
        if wanted:
            broker.change_settings(**wanted)
        found = broker.kept_settings()
        if session.json:
            emit_json(found)
        else:
            emit_table(
                ("setting", "value"), ((name, str(value)) for name, value in found.items()), below=("value",)
            )


def _change(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is no change: give NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # A text, such as that of the delay levels.
