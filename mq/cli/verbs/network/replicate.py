"""`replicate`: follow the log of another store or of a RocketMQ broker, until Ctrl-C."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from mq.cli.cluster_options import ClusterOptions, cluster_options, connection
from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json
from mq.errors import NotSupported
from mq.remoting import replicate as follow
from mq.remoting.replica.replica import Replica

LOOK_SECONDS = 1.0
REPEAT_SECONDS = 30.0  # print an unchanged state again after so long


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--broker", metavar="HOST:PORT", help="The master's broker address; by default the HA port minus 1."
)
@click.option("--log-only", is_flag=True, help="Follow the log only, without topics and offsets.")
@click.option("--sync", is_flag=True, help="Acknowledge only bytes that are on disk here.")
@click.option(
    "--commitlog-file-size", type=click.IntRange(min=1), help="The size of the master's log files in bytes."
)
@cluster_options("master-")
@with_json
@click.pass_obj
def replicate(
    session: Session,
    /,
    address: str,
    broker: str | None,
    log_only: bool,
    sync: bool,
    commitlog_file_size: int | None,
    **master_options: Any,
) -> int:
    """Make DIR a replica of the master whose HA port is at HOST:PORT, and follow until Ctrl-C.

    The master is a store served with an HA port, or a RocketMQ broker. Meanwhile DIR can be read but not sent
    to. To make DIR the new master, stop this command and open DIR for writing.

    The options --master-... are for requests to the master's broker, about topics and offsets. The HA port
    has no encryption and no authentication.
    """
    if session.is_remote:
        raise NotSupported("a replica is a directory, and the target is a cluster: name a directory")
    if log_only and broker is not None:
        raise click.UsageError("--broker and --log-only exclude each other")
    master = connection(master_options, os.environ, "master-") or ClusterOptions()
    if master.namespace:
        raise click.UsageError("a replica has the topics of all namespaces: leave --master-namespace out")
    with follow(
        address,
        Path(session.target),
        broker=False if log_only else broker,
        flush="sync" if sync else "async",
        commitlog_file_size=commitlog_file_size,
        access_key=master.access_key,
        secret_key=master.secret_key,
        tls=master.tls,
        **({} if master.timeout is None else {"timeout": master.timeout}),
    ) as replica:
        _watch(session, replica)
    assert replica.error is not None
    raise replica.error


def _watch(session: Session, replica: Replica) -> None:
    """Print the replica's state whenever it changes."""
    told, told_at, cuts = "", 0.0, 0
    while not replica.is_over:
        for begin, end, path in replica.cuts[cuts:]:
            text = (
                f"log offsets {begin:,} to {end:,} differ from the master's: truncated, and saved to {path}"
            )
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
    behind = "no answer of the master yet" if lag is None else f"{lag:,} bytes behind" if lag else "in sync"
    text = f"log offset {replica.offset:,}, {behind}"
    return text if replica.error is None else f"{text}; {replica.error}"
