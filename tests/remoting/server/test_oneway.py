"""Oneway requests: in order, and none lost when the client closes its connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.remoting import event_loop, serve
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import ONEWAY, Frame, encode
from mq.remoting.codec.requests.sending import SendMessage
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.memory.broker import MemoryBroker

LIMIT = 60.0


def connected(server: Server) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), LIMIT)


def encrypted(server: Server) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connected(server))


def sends(count: int) -> bytes:
    fields = encode_fields(SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0))
    return b"".join(
        encode(Frame(SendMessage.CODE, fields, b"%d" % number, flags=ONEWAY)) for number in range(count)
    )


def bodies(store: mq.Broker) -> list[int]:
    """What is in the only queue of the topic."""
    queue, found = store.topic("orders").queues[0], list[int]()
    while messages := queue.read(len(found), count_max=1000).messages:
        found += [int(message.body) for message in messages]
    return found


def test_oneway_sends_of_a_connection_are_stored_in_its_order(directory: Path) -> None:
    with (
        mq.open(directory, flush="sync") as store,
        serve(store, port=0, namesrv_port=0) as server,
        connected(server) as sock,
    ):
        store.create_topic("orders", 1)
        sock.sendall(sends(300))
        eventually(lambda: len(bodies(store)) == 300, lambda: bodies(store), LIMIT)
        assert bodies(store) == list(range(300))


def test_only_the_last_of_several_oneway_sends_waits_for_the_disk(directory: Path) -> None:
    with (
        mq.open(directory, flush="sync", flush_interval=3600) as store,
        serve(store, port=0, namesrv_port=0) as server,
        connected(server) as sock,
    ):
        store.create_topic("orders", 1)
        sock.sendall(sends(40))
        # Readers see what is on disk. No flush is due but that of a send.
        eventually(lambda: len(bodies(store)) == 40, lambda: bodies(store), LIMIT)


@pytest.mark.parametrize("store_kind", ["memory", "local"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, event_loop.new_loop])
def test_oneway_sends_before_the_end_of_a_tls_connection_are_stored(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_kind: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The client says that it is the end, as Java's do. new_loop: Python's, and the one that servers have."""
    monkeypatch.setattr(event_loop, "new_loop", new_loop)
    with (
        MemoryBroker() if store_kind == "memory" else mq.open(directory) as store,
        serve(store, port=0, namesrv_port=0, tls=True) as server,
    ):
        store.create_topic("orders", 1)
        with encrypted(server) as sock:
            sock.sendall(sends(200))
            sock.unwrap().close()
        eventually(lambda: len(bodies(store)) == 200, lambda: bodies(store), LIMIT)
        assert bodies(store) == list(range(200))
        eventually(lambda: server.connections == 0, lambda: server.connections, LIMIT)
