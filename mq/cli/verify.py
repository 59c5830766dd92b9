"""`verify`: every invariant of the directory, and each one that does not hold."""

from pathlib import Path

import click

from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json
from mq.store.check import problems


@click.command()
@with_json
@click.pass_obj
def verify(session: Session) -> int:
    """Walk the whole directory and list what is wrong with it."""
    directory = Path(session.target)
    if not directory.is_dir():
        raise NotADirectoryError(20, "not a directory", session.target)
    count = 0
    for problem in problems(directory):
        count += 1
        if session.json:
            emit_json({"problem": str(problem)})
        else:
            click.echo(visible(str(problem)))
    if not session.json:
        click.echo(f"{count} problems" if count else "no problems")
    return 1 if count else 0
