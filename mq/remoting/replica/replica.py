"""Replica: a directory that follows a master's log, until it is closed."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from mq.errors import MQError, RemotingError
from mq.remoting.client.connections.addresses import parse_address
from mq.remoting.client.connections.options import RemotingOptions, tls_context
from mq.remoting.codec.signature import Credentials
from mq.remoting.replica.follower import Cut
from mq.remoting.replica.master import Master
from mq.remoting.replica.replica_threads import ReplicaThreads
from mq.uninterrupted import handed_over, left_open

__all__ = ["Replica", "start_replica"]


class Replica:
    """A directory that follows its master until close(); a context manager. Created by mq.remoting.replicate.
    A replica that is garbage collected is closed."""

    def __init__(self, threads: ReplicaThreads) -> None:
        self._threads = threads

    @property
    def address(self) -> str:
        """host:port of the master's HA port."""
        return self._threads.address

    @property
    def path(self) -> Path:
        """The directory."""
        return self._threads.directory.path

    @property
    def offset(self) -> int:
        """The end of the replica's log, as a log offset."""
        return self._threads.end

    @property
    def lag(self) -> int | None:
        """How many bytes of log the replica lacks. The master is asked once a second; None before its first
        answer."""
        end = self._threads.follower.master_end
        return None if end is None else max(0, end - self.offset)

    @property
    def is_connected(self) -> bool:
        """Whether the replica is connected to its master."""
        return self._threads.follower.is_connected and self._threads.follower.error is None

    @property
    def error(self) -> Exception | None:
        """The error that prevents replication; None while it works. The replica retries, except after
        ReplicaBehind, ReplicaDiverged, ConfigMismatch and StorePoisoned."""
        return self._threads.follower.error

    @property
    def is_over(self) -> bool:
        """Whether it has stopped because of one of those errors."""
        return self._threads.follower.is_over

    @property
    def cuts(self) -> Sequence[Cut]:
        """(begin, end, path) of each truncated tail that the master did not have: log offsets, and its
        file."""
        return tuple(self._threads.follower.cuts)

    @handed_over
    def close(self) -> None:
        """Stop replicating. The directory stays a replica until a program opens it for writing.
        Idempotent."""
        self._threads.close()

    def __enter__(self) -> Replica:
        return self

    @handed_over
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.close()

    def __repr__(self) -> str:
        return f"Replica({self.address!r}, {os.fspath(self.path)!r})"

    def __del__(self) -> None:
        threads = getattr(self, "_threads", None)
        if threads is not None and not threads.is_closed and sys is not None and not sys.is_finalizing():
            left_open(threads.close, self, threads.pid)


def start_replica(
    address: str,
    directory: str | os.PathLike[str],
    *,
    broker: str | Literal[False] | None,
    flush: str,
    commitlog_file_size: int | None,
    access_key: str | None,
    secret_key: str | None,
    tls: bool | ssl.SSLContext,
    timeout: float,
) -> Replica:
    """See mq.remoting.replicate, which has the defaults."""
    host, port = parse_address(address)
    if flush not in ("async", "sync"):
        raise ValueError(f"flush is {flush!r}: give 'async' or 'sync'")
    if timeout <= 0:
        raise ValueError(f"timeout is {timeout} s, must be over 0")
    if (access_key is None) != (secret_key is None):
        raise ValueError("access_key and secret_key belong together: give both, or none")
    credentials = None
    if access_key is not None and secret_key is not None:
        credentials = Credentials(access_key, secret_key)
    master = None
    if broker is not False:
        if broker is None and port == 1:
            raise RemotingError(
                f"{address!r}: the broker is looked for at the port before, and there is none: give its"
                " address (broker=, --broker), or broker=False",
                address=address,
            )
        at = broker or f"{f'[{host}]' if ':' in host else host}:{port - 1}"
        parse_address(at)
        options = RemotingOptions(timeout=timeout, tls=tls_context(tls), credentials=credentials)
        master = Master(at, options)
    try:
        file_size = commitlog_file_size
        if file_size is None and master is not None and not _is_made(directory):
            file_size = _log_file_size(master)
        return Replica(
            ReplicaThreads(address, directory, master, flush=flush, log_file_size=file_size, timeout=timeout)
        )
    except BaseException:
        if master is not None:
            master.close()
        raise


def _is_made(directory: str | os.PathLike[str]) -> bool:
    """Whether the directory has settings with its file sizes."""
    return (Path(directory) / "mq" / "geometry.json").exists()


def _log_file_size(master: Master) -> int | None:
    try:
        return master.log_file_size()
    except MQError as error:
        raise RemotingError(
            f"a new replica needs the file size of its master, and the broker at {master.address} cannot be"
            f" asked for it ({error}): give the broker's address, or broker=False and commitlog_file_size",
            address=master.address,
        ) from error
