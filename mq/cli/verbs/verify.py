"""`verify`: check every invariant of the directory."""

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from mq.broker.check import notes, problems
from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json
from mq.spark.sink import check as sinks


@click.command()
@with_json
@click.pass_obj
def verify(session: Session) -> int:
    """Check the whole directory and list the problems.

    Notes are not problems: they report messages in queues that no group reads, and staged files of Spark's
    sinks that were not appended.
    """
    session.need_directory("verify")
    directory = Path(session.target)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", session.target)
    session.need_store()
    count = 0
    with _progress() as progress:
        for problem in chain(problems(directory, progress=progress), sinks.problems(directory)):
            count += 1
            if session.json:
                emit_json({"problem": problem})
            else:
                click.echo(visible(problem))
    for note in chain(notes(directory), sinks.leftovers(directory)):
        if session.json:
            emit_json({"note": note})
        else:
            click.echo(f"note: {visible(note)}")
    if not session.json:
        click.echo(f"{count} problems" if count else "no problems")
    return 1 if count else 0


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show the progress of the check on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
