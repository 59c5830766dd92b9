"""What all verbs share: the target, the output format, and the parsing of times."""

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import click

import mq
from mq.api.broker import DirectoryBroker
from mq.cli.cluster_options import SCHEME, ClusterOptions
from mq.store.directory.root import holds_store

Verb = TypeVar("Verb", bound=Callable[..., Any])

RETENTION_HOURS_MAX = 24 * 365 * 100

_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the command: its target, whether the output is JSON, and how to connect to a cluster."""

    target: str
    json: bool
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    def open(
        self, *, create: bool = False, flush: Literal["async", "sync"] = "async", duties: bool = False
    ) -> mq.Broker:
        """The broker of the target. Only verbs that write create a missing directory.

        duties: whether the command may perform the leader's duties. By default these are left to
        applications.
        """
        if self.is_remote:
            return self.cluster.open(self.target)
        if not create:
            self.need_store()
        return mq.open(self.target, create=create, flush=flush, duties=duties)

    @property
    def is_remote(self) -> bool:
        """Whether the target is a cluster."""
        return self.target.startswith(SCHEME)

    @contextmanager
    def open_directory(self, what: str) -> Iterator[DirectoryBroker]:
        """The broker of the target, which must be a directory. Raises NotSupported."""
        self.need_directory(what)
        with self.open() as broker:
            yield cast(DirectoryBroker, broker)

    def need_store(self) -> None:
        """Raise FileNotFoundError if the target is a directory without a store: a wrong path, or one at which
        nothing is mounted yet."""
        if not Path(self.target).exists():
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", self.target)
        if Path(self.target).is_dir() and not holds_store(Path(self.target)):
            raise FileNotFoundError(errno.ENOENT, "there is no store in this directory", self.target)

    def need_directory(self, what: str) -> None:
        """Raise NotSupported if the target is a cluster."""
        if self.is_remote:
            raise mq.NotSupported(f"{what} needs a store directory: {self.target} is a cluster")


def _set_json(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked:
        context.obj = replace(context.obj, json=True)


def with_json(verb: Verb) -> Verb:
    """Add the option --json to a verb; it is also accepted before the verb."""
    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=_set_json, help="Print one JSON object a line."
    )
    return option(verb)


def instant(text: str) -> int:
    """A future point in time, in ms since the epoch: an ISO 8601 time, or the number."""
    if _AGO.match(text):
        raise click.BadParameter(f"{text!r} is no future time: use --delay-ms, or give 2026-01-31T12:00")
    return moment(text)


def moment(text: str | int) -> int:
    """A point in time, in milliseconds since the epoch: `10m` (ago), an ISO 8601 time, or the number.

    Usable as the type of an option. A time without a zone is local time.
    """
    if isinstance(text, int):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        if ago := _AGO.match(text):
            return int(time.time() * 1000 - float(ago[1]) * _UNIT_MS[ago[2]])
        return int(datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: give 10m (ago), 2026-01-31T12:00, or milliseconds since the epoch"
        ) from None
