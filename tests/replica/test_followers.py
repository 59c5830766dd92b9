"""Several followers of one master: each is told when there is more for it."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from mq.remoting.replica import listener
from mq.remoting.replica.framing import encode_report
from mq.remoting.replica.listener import HaListener
from mq.store.log.source import LogSource
from tests.support.store.small_store import fill, open_small

SOON = 30.0
HEADER_SIZE = 12


class Raw:
    """A follower that only receives."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._sock = socket.create_connection((host, int(port)), SOON)
        self._sock.sendall(encode_report(0))
        self.at = 0

    def receive(self, end: int) -> None:
        """Everything up to a log offset, as blocks with a header each."""
        while self.at < end:
            header = self._read(HEADER_SIZE)
            begin, size = int.from_bytes(header[:8], "big"), int.from_bytes(header[8:], "big")
            assert begin == self.at
            self._read(size)
            self.at += size

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            assert piece
            data += piece
        return data

    def close(self) -> None:
        self._sock.close()


def test_one_that_waits_is_told_though_another_got_further_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits for the log to grow is held up while the second follower gets all there is."""
    held, entered, released = threading.Event(), threading.Event(), threading.Event()
    wait = LogSource.wait

    def wait_and_be_held(source: LogSource, seen: int, seconds: float) -> int:
        found = wait(source, seen, 0.02)
        if held.is_set():
            entered.set()
            released.wait(SOON)
        return found

    monkeypatch.setattr(LogSource, "wait", wait_and_be_held)
    monkeypatch.setattr(listener, "HEARTBEAT_SECONDS", 10 * SOON)
    with open_small(tmp_path / "master") as broker:
        fill(broker, "orders", 10)
        with HaListener(broker) as followed:
            first = Raw(followed.address)
            first.receive(broker.replication.log_range[1])
            held.set()
            assert entered.wait(SOON)
            fill(broker, "orders", 5)
            end = broker.replication.log_range[1]
            second = Raw(followed.address)
            second.receive(end)
            time.sleep(0.2)  # until it waits for more
            held.clear()
            released.set()
            first.receive(end)
            first.close()
            second.close()
