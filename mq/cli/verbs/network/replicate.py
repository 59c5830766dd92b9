"""`replicate`: keep a copy of another store, or of a RocketMQ broker's, until Ctrl-C."""

from __future__ import annotations

import time
from pathlib import Path

import click

from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json
from mq.errors import NotSupported
from mq.remoting import replicate as follow
from mq.remoting.replica.replica import Replica

LOOK_SECONDS = 1.0
REPEAT_SECONDS = 30.0  # without news


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--broker", metavar="HOST:PORT", help="The master's own address. By default the port before.")
@click.option("--log-only", is_flag=True, help="Ask for no topics and no offsets: follow the log alone.")
@click.option("--sync", is_flag=True, help="Acknowledge only what is on disk here.")
@click.option(
    "--commitlog-file-size", type=click.IntRange(min=1), help="Bytes of a file of the master's log."
)
@with_json
@click.pass_obj
def replicate(
    session: Session,
    address: str,
    broker: str | None,
    log_only: bool,
    sync: bool,
    commitlog_file_size: int | None,
) -> int:
    """Make DIR a replica of the master whose HA port is at HOST:PORT, and follow until Ctrl-C.

    The master is a store served with an HA port, or a RocketMQ broker. DIR may be read meanwhile, and not be
    sent to. To have it take the master's place, end this command and open DIR.
    """
    if session.is_remote:
        raise NotSupported("a replica is a directory, and the target is a cluster: name a directory")
    if log_only and broker is not None:
        raise click.UsageError("--broker and --log-only exclude each other")
    with follow(
        address,
        Path(session.target),
        broker=False if log_only else broker,
        flush="sync" if sync else "async",
        commitlog_file_size=commitlog_file_size,
    ) as replica:
        _watch(session, replica)
    assert replica.error is not None
    raise replica.error


def _watch(session: Session, replica: Replica) -> None:
    """Say how far it is, as long as it follows."""
    told, told_at, cuts = "", 0.0, 0
    while not replica.is_over:
        for begin, end, path in replica.cuts[cuts:]:
            text = f"log offsets {begin:,} to {end:,} are not the master's: cut off, and kept in {path}"
            click.echo(f"mq: {visible(text)}", err=True)
            cuts += 1
        state = _state(replica)
        now = time.monotonic()
        if state != told or now - told_at > REPEAT_SECONDS:
            told, told_at = state, now
            if session.json:
                emit_json(
                    {
                        "offset": replica.offset,
                        "lag": replica.lag,
                        "connected": replica.is_connected,
                        "error": None if replica.error is None else str(replica.error),
                    }
                )
            else:
                click.echo(visible(state))
        time.sleep(LOOK_SECONDS)


def _state(replica: Replica) -> str:
    lag = replica.lag
    behind = "not heard of the master yet" if lag is None else f"{lag:,} bytes behind" if lag else "level"
    text = f"log offset {replica.offset:,}, {behind}"
    return text if replica.error is None else f"{text}; {replica.error}"
