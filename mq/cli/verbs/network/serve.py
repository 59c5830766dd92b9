"""`serve`: serve the store to RocketMQ's clients, and show the connected clients live."""

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

import mq
from mq.cli.printing import counted, emit_json, visible
from mq.cli.session import Session, with_json
from mq.remoting import serve as serve_store

if TYPE_CHECKING:
    from mq.remoting.server.server import Server

INTERVAL = 1.0
CLIENTS_SHOWN = 20
COUNT, SECONDS = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)
# The fields of mq.remoting.server.options.Limits.
LIMITS: tuple[tuple[str, click.IntRange | click.FloatRange, str], ...] = (
    ("connections", COUNT, "Refuse more connections at a time."),
    ("connections_per_address", COUNT, "Refuse more connections of one IP address."),
    ("frame_size", click.IntRange(1, 16 << 20), "Refuse requests of more bytes."),
    ("in_flight_size", COUNT, "Bytes of unanswered requests of one connection; above it, it is not read."),
    ("received_total", COUNT, "The same of all connections; above it, the one with the most is closed."),
    ("unsent_size", COUNT, "Bytes of answers that a client has not read; above it, its requests wait."),
    ("idle_seconds", SECONDS, "Close a connection without requests and answers for so long."),
    ("held_pulls", COUNT, "Refuse more pulls of one connection that wait for messages."),
    ("held_pulls_total", COUNT, "Refuse more pulls of all connections that wait for messages."),
)


def with_limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each limit; the defaults are those of serve()."""
    for name, kind, text in reversed(LIMITS):
        option = click.option(f"--{name.replace('_', '-')}", name, type=kind, metavar="N", help=text)
        command = option(command)
    return command


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen here; 0.0.0.0: all interfaces.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=10911, show_default=True, help="The broker's port."
)
@click.option(
    "--name-server-port",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="0: a free one.",
)
@click.option("--ha-port", type=click.IntRange(0, 65535), help="Let replicas follow the store at this port.")
@click.option(
    "--access-keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A JSON file: {"key": "secret"}, or {"key": ["secret", {"topic or group": "PUB|SUB"}]}.',
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A PEM file with a private key and its certificates: the server then accepts only TLS.",
)
@click.option("--share-ports", is_flag=True, help="Let other processes serve the store on the same ports.")
@click.option("--sync", is_flag=True, help="Acknowledge a send only when its message is on disk.")
@with_limits
@with_json
@click.pass_obj
def serve(
    session: Session,
    /,
    host: str,
    port: int,
    name_server_port: int,
    ha_port: int | None,
    access_keys: Path | None,
    certificate: Path | None,
    share_ports: bool,
    sync: bool,
    **limits: float | None,
) -> None:
    """Serve the store to RocketMQ's own clients, until Ctrl-C.

    It acts as a name server and a broker. On a terminal it shows the connected clients and the traffic; with
    --json it prints a line per second.
    """
    keys = None if access_keys is None else _keys(access_keys)
    context = None
    if certificate is not None:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    stopped = Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        with (
            session.open(create=True, flush="sync" if sync else "async", duties=True) as broker,
            serve_store(
                broker,
                host,
                port,
                name_server_port,
                ha_port=ha_port,
                access_keys=keys,
                tls=context,
                shares_ports=share_ports,
                **{name: value for name, value in limits.items() if value is not None},
            ) as server,
        ):
            _show(session, server, stopped)
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end.
    finally:
        signal.signal(signal.SIGTERM, before)


def _keys(path: Path) -> Mapping[str, Any]:
    try:
        table = json.loads(path.read_text())
    except ValueError as error:
        raise click.UsageError(f"{path} is no JSON: {error}") from None
    if not isinstance(table, dict):
        raise click.UsageError(f"{path} must contain a JSON object whose names are access keys")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _show(session: Session, server: "Server", stopped: Event) -> None:
    click.echo(
        f"serving {visible(session.target)}: name server {server.name_server}, broker {server.address}",
        err=session.json,
    )
    if session.json:
        _print(server, stopped)
    elif sys.stdout.isatty():
        _live(server, stopped)
    else:
        sys.stdout.flush()
        while not stopped.wait(INTERVAL):  # A signal just before a wait would not end it.
            pass


def _facts(server: "Server") -> dict[str, Any]:
    traffic = server.traffic
    return {
        "time_ms": time.time_ns() // 1_000_000,
        "connections": server.connections,
        "requests": traffic.requests,
        "refused": traffic.refused,
        "stored": traffic.stored,
        "pulled": traffic.pulled,
        "clients": [client._asdict() for client in server.clients()],
    }


def _print(server: "Server", stopped: Event) -> None:
    while not stopped.is_set():
        emit_json(_facts(server))
        sys.stdout.flush()
        stopped.wait(INTERVAL)


def _live(server: "Server", stopped: Event) -> None:
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        raise mq.MQError('serve needs rich; install it with: pip install "mq[cli]"') from None
    before, since = _facts(server), time.monotonic()
    with Live(_table(before, before, 1.0), auto_refresh=False) as live:
        while not stopped.wait(INTERVAL):
            now, at = _facts(server), time.monotonic()
            live.update(_table(before, now, at - since), refresh=True)
            before, since = now, at


def _table(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> Any:
    from rich.table import Table

    rates = "   ".join(
        f"{name} {(now[name] - before[name]) / seconds:,.0f}/s"
        for name in ("requests", "stored", "pulled", "refused")
    )
    title = f"{counted(now['connections'], 'connection')}   {rates}"
    table = Table(title=title, title_justify="left", expand=True)
    for heading in ("client", "language", "version", "consumes for", "produces for"):
        table.add_column(heading)
    for client in now["clients"][:CLIENTS_SHOWN]:
        names = (", ".join(client[kind]) for kind in ("consumer_groups", "producer_groups"))
        table.add_row(*map(visible, (client["address"], client["language"], client["version"], *names)))
    if len(now["clients"]) > CLIENTS_SHOWN:
        table.add_row(f"and {len(now['clients']) - CLIENTS_SHOWN:,} more")
    return table
