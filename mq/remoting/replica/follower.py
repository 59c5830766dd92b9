"""The replica's end: one thread that connects to the master's HA port, compares the logs, and appends.

Each connection first compares the replica's last bytes with the master's (see overlap.py). If they differ,
the replica's tail is truncated and saved to a file, and the next connection continues from there. Appended
bytes are acknowledged; with flush="sync", once they are on disk.

A RocketMQ master does not tell the end of its log: two heartbeats without data between them mean that its log
ends before the replica's.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from time import monotonic

from mq.errors import (
    ConfigMismatch,
    MQError,
    RemotingError,
    ReplicaBehind,
    ReplicaDiverged,
    StorePoisoned,
)
from mq.remoting.client.connections.addresses import parse_address
from mq.remoting.replica.directory import ReplicaDirectory
from mq.remoting.replica.framing import Blocks, Piece, encode_report
from mq.remoting.replica.master import LogRange, Master
from mq.remoting.replica.overlap import Overlap, first_byte
from mq.threads import start

__all__ = ["Cut", "Follower"]

log = logging.getLogger("mq.remoting")

REPORT_SECONDS = 5.0  # RocketMQ: haSendHeartbeatInterval
SILENT_SECONDS = 20.0  # RocketMQ: haHousekeepingInterval
CONNECT_SECONDS = 3.0
BACKOFF_SECONDS = (0.2, 5.0)  # after the first failure, and at most
BUFFER_SIZE = 1 << 20
QUIET_COUNT = 2  # heartbeats without the data that was asked for
FATAL = (ReplicaBehind, ReplicaDiverged, ConfigMismatch, StorePoisoned)


class Cut(tuple[int, int, str]):
    """A truncated tail: its first log offset, its end, and the file that it was saved to."""


class _Parted(Exception):
    """The logs are equal up to log offset `at`, and differ from there. master_end: if known."""

    def __init__(self, at: int, master_end: int | None = None) -> None:
        super().__init__(at)
        self.at = at
        self.master_end = master_end


class Follower:
    """The replication thread, until close(). `met` is set at the master's first data or at a fatal error.

    error: the last error, None while replication works. is_over: the error was fatal. master_end: the last
    known end of the master's log. stream: of the connection, from when the logs were compared and are one
    until it ends: only then anything else of this master may be followed.
    """

    def __init__(
        self, address: str, directory: ReplicaDirectory, master: Master | None, *, sync: bool
    ) -> None:
        self.address = address
        self.error: Exception | None = None
        self.is_over = False
        self.is_connected = False
        self.master_end: int | None = None
        self.stream: _Stream | None = None
        self.cuts: list[Cut] = []
        self.met = threading.Event()
        self._target = parse_address(address)
        self._directory = directory
        self._master = master
        self._sync = sync
        self._closing = threading.Event()
        self._socket: socket.socket | None = None
        self._overlap: Overlap | None = None  # for the next connection; None: the default
        self._known_begin = 0
        self._thread = threading.Thread(target=self._run, name="mq-replica", daemon=True)
        start(self._thread)

    def close(self) -> None:
        """End the connection and the thread. Idempotent."""
        self._closing.set()
        self._hang_up()
        self._thread.join()

    def _hang_up(self) -> None:
        sock = self._socket
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        pause = BACKOFF_SECONDS[0]
        while not self._closing.is_set():
            self.is_connected = False
            try:
                self._connect()
            except _Parted as parted:
                try:
                    self._cut(parted)
                    pause = BACKOFF_SECONDS[0]
                    continue
                except (MQError, OSError) as error:
                    self._note(error)
            except Exception as error:  # noqa: BLE001 - who would know that a thread ended?
                self._note(error)
            if self.is_over:
                return
            if self._was_met:
                pause = BACKOFF_SECONDS[0]
            self._closing.wait(pause)
            pause = min(pause * 2, BACKOFF_SECONDS[1])

    def _note(self, error: Exception) -> None:
        if self._closing.is_set():
            return
        is_new = self.error is None or str(self.error) != str(error)
        self.error, self.is_over = error, isinstance(error, FATAL)
        if self.is_over:
            log.error("%s follows %s no more: %s", self._directory.path, self.address, error)
            self.met.set()
        elif is_new:
            log.warning("%s: %s; retrying", self._directory.path, error)

    def _range(self) -> LogRange | None:
        """The range of the master's log; None if the master cannot be asked."""
        if self._master is None:
            return None
        try:
            return self._master.log_range()
        except MQError as error:
            log.debug("%s: %s", self._directory.path, error)
            return None

    def _connect(self) -> None:
        """Run one connection until it ends. Raises the error that ended it."""
        self._was_met = False
        self._directory.be_open()
        known = self._range()
        if known is not None:
            self._known_begin = known.begin
            self.master_end = known.end
        asked = self._asked(known)
        try:
            sock = socket.create_connection(self._target, CONNECT_SECONDS)
        except OSError as error:
            raise RemotingError(
                f"the HA port {self.address} of the master cannot be reached: {error.strerror or error}",
                address=self.address,
            ) from error
        with sock:
            self._socket = sock
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(REPORT_SECONDS)
                self._follow(sock, asked)
            finally:
                self._socket = self.stream = None

    def _asked(self, known: LogRange | None) -> int:
        """The first log offset to report; sets self._overlap. Raises ReplicaBehind."""
        own = self._directory.log
        if own.is_empty:
            self._overlap = None
            if known is None:
                return 0
            return known.begin or int(known.end >= own.file_size)
        begin = max(own.begin, self._known_begin)
        if begin > own.end:
            raise self._behind(begin)
        overlap = self._overlap or Overlap(begin, own.end)
        if known is not None and known.end < overlap.start and self._overlap is None:
            overlap = overlap.grown(known.end)
        self._overlap = overlap
        return overlap.asked

    def _follow(self, sock: socket.socket, asked: int) -> None:
        sock.sendall(encode_report(asked))
        stream = _Stream(self._directory, asked)
        buffer = bytearray(BUFFER_SIZE)
        view, blocks = memoryview(buffer), Blocks()
        heard = reported = monotonic()
        has_compared = False
        while not self._closing.is_set():
            try:
                size = sock.recv_into(buffer)
            except TimeoutError:
                size = -1
            if size == 0:
                raise RemotingError(
                    f"the master at {self.address} closed the connection", address=self.address
                )
            now = monotonic()
            if size > 0:
                heard = now
                self._met()
                for piece in blocks.feed(view[:size]):
                    self._take(stream, piece)
            elif now - heard > SILENT_SECONDS:
                raise RemotingError(f"the master at {self.address} is silent", address=self.address)
            # The master counts on nothing before it hears that the logs are compared.
            is_news = not has_compared and self._was_met and not stream.is_comparing
            has_compared = has_compared or is_news
            if stream.append() or is_news or now - reported >= REPORT_SECONDS:
                if self._sync:
                    self._directory.log.flush()
                sock.sendall(encode_report(stream.report))
                reported = now

    def _met(self) -> None:
        if not self._was_met:
            self._was_met = self.is_connected = True
            log.info("%s follows %s", self._directory.path, self.address)

    def _take(self, stream: _Stream, piece: Piece) -> None:
        try:
            stream.take(piece)
        except _Elsewhere as elsewhere:
            raise self._at_other(stream, elsewhere.log_offset) from None
        if not stream.is_comparing:
            self._overlap, self.error, self.stream = None, None, stream
            self.master_end = max(self.master_end or 0, stream.position or 0)
            self.met.set()

    def _at_other(self, stream: _Stream, master_at: int) -> Exception:
        """The error for a master that sends from another log offset than the requested one."""
        own, position = self._directory.log, stream.position or 0
        if master_at < position and self._overlap is not None:
            return _Parted(position if stream.compared else min(position, own.end), master_at)
        if master_at < position or own.is_empty or not stream.is_comparing or master_at <= own.end:
            self._known_begin = master_at
            self._overlap = None
            return RemotingError(
                f"the master at {self.address} goes on at log offset {master_at:,}, not at {position:,}",
                address=self.address,
            )
        return self._behind(master_at)

    def _behind(self, master_begin: int) -> ReplicaBehind:
        end = self._directory.log.end
        return ReplicaBehind(
            f"{self._directory.path} ends at log offset {end:,}, and the log of the master at {self.address}"
            f" begins at {master_begin:,}: what is between is deleted there. Make a new replica in another"
            " directory, and have replicas follow more often than messages expire",
            replica_end=end,
            master_begin=master_begin,
        )

    def _cut(self, parted: _Parted) -> None:
        """Truncate the tail where the logs diverge, or compare a larger overlap at the next connection."""
        own, overlap = self._directory.log, self._overlap
        assert overlap is not None
        first, last, time_ms = own.boundaries(overlap.start, min(parted.at, own.end))
        if last <= first and not overlap.is_whole_log:
            self._overlap = overlap.grown(parted.master_end)
            return
        if last <= first:
            raise ReplicaDiverged(
                f"the log in {self._directory.path} has no message in common with that of the master at"
                f" {self.address}: name the directory that followed this master, or a new one",
                path=str(self._directory.path),
            )
        end = own.end
        if last < end:
            kept = self._directory.cut(last, time_ms)
            self.cuts.append(Cut((last, end, str(kept))))
            log.warning(
                "%s: the master at %s has another log from log offset %d on; the %d bytes after it were"
                " truncated here and saved to %s",
                *(self._directory.path, self.address, last, end - last, kept),
            )
        self._overlap = None


class _Elsewhere(Exception):
    """The master sends from another log offset than the expected one."""

    def __init__(self, log_offset: int) -> None:
        super().__init__(log_offset)
        self.log_offset = log_offset


class _Stream:
    """The data of one connection: compared up to the end of the replica's log, then appended.

    position: log offset of the next byte; None for an empty replica before its first byte.
    """

    def __init__(self, directory: ReplicaDirectory, asked: int) -> None:
        self._log = directory.log
        self._end = self._log.end
        self._received: list[memoryview] = []  # since the last append()
        self._pending = bytearray()  # the begin of a record; for an empty replica without its first byte
        self._lacks_first = self._log.is_empty and asked == 1
        self._wanted = 0
        self._quiet = 0
        self.compared = 0
        self.position = None if self._log.is_empty and asked == 0 else asked
        if self._log.is_empty and asked > 1:
            self._begin_at(asked)

    @property
    def is_comparing(self) -> bool:
        return self.position is not None and self.position < self._end

    @property
    def report(self) -> int:
        """The log offset to acknowledge."""
        if self.is_comparing:
            return 0  # Its log may be another one.
        return max(self._end, 1 if self._lacks_first else 0)

    def _begin_at(self, log_offset: int) -> None:
        self._log.begin_at(log_offset)
        self._end = self.position = log_offset

    def take(self, piece: Piece) -> None:
        """Raises _Elsewhere, _Parted, ConfigMismatch."""
        data = piece.data
        if self.position is None:
            if not data:
                return
            self._begin_at(piece.log_offset)
        assert self.position is not None
        if piece.log_offset != self.position:
            raise _Elsewhere(piece.log_offset)
        if not data:
            self._quiet += self.is_comparing
            if self._quiet >= QUIET_COUNT:
                raise _Parted(self.position, self.position)
            return
        self._quiet = 0
        if self.is_comparing:
            common = data[: self._end - self.position]
            same = self._log.compare(self.position, common)
            self.position += same
            self.compared += same
            if same < len(common):
                raise _Parted(self.position)
            data = data[same:]
        self._received.append(data)
        self.position += len(data)

    def append(self) -> bool:
        """Append the complete records of what was taken; returns whether there were any."""
        before, received = self._end, self._received
        self._received = []
        for data in received:
            self._append(data)
        return self._end > before

    def _append(self, data: memoryview) -> None:
        if self._lacks_first:
            self._pending += data
            byte = first_byte(self._pending, self._log.file_size)
            if byte is None:
                return
            data = memoryview(bytes([byte]) + self._pending)
            self._pending.clear()
            self._lacks_first = False
        while data:
            if not self._pending:
                self._pending += data[self._append_whole(data) :]
                return
            # One record is completed here; the others are appended from where they were received.
            missing = max(self._wanted - len(self._pending), 1)
            self._pending += data[:missing]
            data = data[missing:]
            if len(self._pending) >= self._wanted:
                del self._pending[: self._append_whole(self._pending)]

    def _append_whole(self, data: bytearray | memoryview) -> int:
        """Append the whole records at the begin of `data`; returns how many bytes they have."""
        taken = self._log.append(self._end, data)
        size = taken.end - self._end
        self._end, self._wanted = taken.end, taken.wanted
        return size
