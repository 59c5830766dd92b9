"""What every verb of the command shares: the target, the form of the output, the moments a user may name."""

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import click

import mq
from mq.api.broker import DirectoryBroker
from mq.api.local import directory

Verb = TypeVar("Verb", bound=Callable[..., Any])

RETENTION_HOURS_MAX = 24 * 365 * 100

_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the command: which store, and whether a machine reads the output."""

    target: str
    json: bool

    def open(
        self, *, create: bool = False, flush: Literal["async", "sync"] = "async", duties: bool = False
    ) -> mq.Broker:
        """The broker of the target. Only verbs that write make a directory that is not there.

        Duties are the application's affair: a command does none, unless it would wait for them in vain.
        """
        if self.is_remote:
            return mq.open(self.target)
        if not create and not Path(self.target).exists():
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", self.target)
        return mq.open(self.target, create=create, flush=flush, duties=duties)

    @property
    def is_remote(self) -> bool:
        """Whether the target is no directory, but a cluster."""
        return self.target.startswith("rocketmq://")

    @contextmanager
    def open_directory(self, what: str) -> Iterator[DirectoryBroker]:
        """The broker of the target, for what only that of a directory can do. Raises NotSupported."""
        with self.open() as broker:
            directory(broker, what)
            yield cast(DirectoryBroker, broker)


def _set_json(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked:
        context.obj = replace(context.obj, json=True)


def with_json(verb: Verb) -> Verb:
    """Give a verb the option --json, which is also understood before the verb."""
    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=_set_json, help="Print one JSON object a line."
    )
    return option(verb)


def instant(text: str) -> int:
    """A point in time that may lie ahead, in ms since the epoch: an ISO 8601 time, or the number."""
    if _AGO.match(text):
        raise click.BadParameter(f"{text!r} says no time to come: use --delay-ms, or say 2026-01-31T12:00")
    return moment(text)


def moment(text: str | int) -> int:
    """A point in time, in milliseconds since the epoch: `10m` (ago), an ISO 8601 time, or the number.

    For use as the type of an option. A time without a zone is local time.
    """
    if isinstance(text, int):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    if ago := _AGO.match(text):
        return int(time.time() * 1000 - float(ago[1]) * _UNIT_MS[ago[2]])
    try:
        return int(datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: say 10m (ago), 2026-01-31T12:00, or milliseconds since the epoch"
        ) from None
