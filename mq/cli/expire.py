"""`expire`: retention on demand."""

import click

from mq.cli.printing import emit_json
from mq.cli.session import RETENTION_HOURS_MAX, Session, with_json


@click.command()
@click.option(
    "--hours", type=click.FloatRange(0, RETENTION_HOURS_MAX), required=True, help="Keep what is younger."
)
@with_json
@click.pass_obj
def expire(session: Session, hours: float) -> None:
    """Delete the files of the commit log that were last written more than HOURS ago.

    The newest file stays in any case, and so do files younger than that, whatever is in them.
    """
    with session.open() as broker:
        count = broker.expire(retention_hours=hours)
        if session.json:
            emit_json({"deleted_files": count})
        else:
            click.echo(f"{count} files of the commit log deleted")
