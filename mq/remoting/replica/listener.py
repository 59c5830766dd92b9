"""The master's end: a port at which followers read the log, each at its own pace.

One event loop serves all followers from the log's files. Another thread waits on the store's wake words, so a
message sent by any process goes out at once. A follower that reads older parts does not slow down senders.

An empty follower gets the whole log from its oldest file on. (A RocketMQ master sends only its last file.) A
follower that asks for a deleted offset, or one beyond the end, gets a heartbeat with the log's begin or end
as its offset; a RocketMQ slave treats that as an error and tries again.

The offsets that followers acknowledge are published to the senders of all processes (replicas= of mq.open).

RocketMQ: store/ha/DefaultHAService.java, DefaultHAConnection.java.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from contextlib import suppress
from time import monotonic
from types import TracebackType

from mq.broker.replication import Replicated
from mq.errors import MQError, StoreCorrupted
from mq.remoting.event_loop import EventLoop
from mq.remoting.replica.framing import Reports, encode_header
from mq.remoting.server.transport.listener import listening
from mq.store.log.source import LogFile
from mq.threads import start

__all__ = ["HaListener"]

log = logging.getLogger("mq.remoting")

BLOCK_SIZE = 256 << 10
HEARTBEAT_SECONDS = 5.0  # RocketMQ: haSendHeartbeatInterval
SILENT_SECONDS = 20.0  # RocketMQ: haHousekeepingInterval
TELL_SECONDS = 1.0
WAIT_SECONDS = 0.5
CLOSE_SECONDS = 5.0
FOLLOWERS_MAX = 64


class _Follower:
    """One connection: how far it has been sent, and how far it has acknowledged."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock = sock
        self.address = address
        self.wanted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.sent = 0
        self.is_known = False  # to go on from an offset that the log has
        self.acked = -1
        self.heard = monotonic()
        self.file: LogFile | None = None  # that is read now

    def close_file(self) -> None:
        if self.file is not None:
            os.close(self.file.fd)
            self.file = None


class HaListener:
    """Accepts followers of a broker's store until close(); a context manager.

    port 0 picks a free one: see address. Raises AddressInUse; StoreLocked if another process accepts
    followers of this store.
    """

    def __init__(self, broker: Replicated, host: str = "127.0.0.1", port: int = 0) -> None:
        self._source = broker.replication.source()
        self._followers: set[_Follower] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._dry = threading.Event()  # a follower has reached the end of the log
        self._ends: dict[_Follower, int] = {}  # and which end that was
        try:
            self._socket = listening(host, port, False)
        except BaseException:
            self._source.close()
            raise
        bound = self._socket.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        self._events = EventLoop(f"mq ha {self.address}")
        self._grown = self._events.wait_for(self._started(), CLOSE_SECONDS, "listening for followers")
        self._watching = threading.Thread(target=self._watch, name="mq-ha-watch", daemon=True)
        start(self._watching)

    @property
    def followers(self) -> list[tuple[str, int]]:
        """Address and acknowledged log offset of each follower."""
        return [(each.address, each.acked) for each in list(self._followers) if each.acked >= 0]

    def close(self) -> None:
        """Stop listening, and end all connections. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._dry.set()
        self._watching.join()
        with suppress(MQError):
            self._events.wait_for(self._end(), CLOSE_SECONDS, f"closing {self.address}")
        self._events.close()
        self._source.tell(())
        self._source.close()

    def __enter__(self) -> HaListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _started(self) -> asyncio.Condition:
        self._spawn(self._accept())
        self._spawn(self._tell())
        return asyncio.Condition()

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # coroutines of this class alone
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        self._socket.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("%s: a follower cannot be accepted: %s", self.address, error)
                await asyncio.sleep(TELL_SECONDS)
                continue
            if len(self._followers) >= FOLLOWERS_MAX:
                log.warning("%s: %s is refused: there are %d followers", self.address, peer[0], FOLLOWERS_MAX)
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._serve(_Follower(sock, f"{peer[0]}:{peer[1]}")))

    async def _serve(self, follower: _Follower) -> None:
        self._followers.add(follower)
        works = [asyncio.ensure_future(self._hear(follower)), asyncio.ensure_future(self._send(follower))]
        why = "it closed the connection"
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                why = work.result()
        except (MQError, OSError) as error:
            why = str(error)
        finally:
            for work in works:
                work.cancel()
            try:
                await asyncio.gather(*works, return_exceptions=True)
            finally:  # It may be cancelled once more.
                self._followers.discard(follower)
                follower.sock.close()
                follower.close_file()
                self._tell_acked()
                log.info("%s: follower %s is gone: %s", self.address, follower.address, why)

    async def _hear(self, follower: _Follower) -> str:
        loop, reports = asyncio.get_running_loop(), Reports()
        while data := await loop.sock_recv(follower.sock, 4096):
            follower.heard = monotonic()
            offsets = reports.feed(data)
            if not offsets:
                continue
            if not follower.wanted.done():
                follower.wanted.set_result(offsets.pop(0))
                log.info(
                    "%s: follower %s goes on from log offset %d",
                    *(self.address, follower.address, follower.wanted.result()),
                )
            # Where it goes on is acknowledged by what it says next: it may compare its log first, and find
            # that it is another one.
            if not offsets or not follower.is_known:
                continue
            # A follower cannot have more than was sent to it, or than it had at the start.
            follower.acked = min(offsets[-1], max(follower.sent, follower.wanted.result()), self._source.end)
            self._tell_acked()
        return "it closed the connection"

    async def _send(self, follower: _Follower) -> str:
        loop, source = asyncio.get_running_loop(), self._source
        wanted = await follower.wanted
        at = wanted or source.begin
        follower.sent = at
        if not source.begin <= at <= source.end:
            there = source.begin if at < source.begin else source.end
            await loop.sock_sendall(follower.sock, encode_header(there, 0))
            return f"it wants log offset {at}, and the log is from {source.begin} to {source.end}"
        follower.is_known = True
        is_new = True
        while True:
            end = source.visible_end
            while at < end:
                size = await self._send_block(follower, at, min(end - at, BLOCK_SIZE))
                if not size:
                    return f"log offset {at}, which it wants, is deleted by now"
                at += size
                follower.sent = at
                is_new = is_new and at < end
            if is_new or not await self._more(follower, at):
                await loop.sock_sendall(follower.sock, encode_header(at, 0))
            is_new = False

    async def _send_block(self, follower: _Follower, at: int, size: int) -> int:
        """Send what is there, up to `size` bytes, of one file, from the page cache to the socket. Returns how
        many bytes there are; 0 if the file is deleted."""
        loop, sock = asyncio.get_running_loop(), follower.sock
        file = follower.file
        if file is None or not file.begin <= at < file.end:
            follower.close_file()
            follower.file = file = self._source.open_file(at)
            if file is None:
                return 0
        size = min(size, file.end - at)
        header = encode_header(at, size)
        # With the block behind it in one segment, unless the socket has no room.
        with suppress(BlockingIOError):
            header = header[sock.send(header, socket.MSG_MORE) :]
        await loop.sock_sendall(sock, header)
        until = at + size
        while at < until:
            try:
                sent = os.sendfile(sock.fileno(), file.fd, at - file.begin, until - at)
            except BlockingIOError:
                await _writable(sock)
                continue
            if not sent:
                raise StoreCorrupted(
                    f"{self._source.root}/commitlog/{file.begin:020} ends before log offset {at}",
                    path=str(self._source.root),
                )
            at += sent
        return size

    async def _more(self, follower: _Follower, at: int) -> bool:
        """Wait for new data; False when a heartbeat is due."""
        until = monotonic() + HEARTBEAT_SECONDS
        async with self._grown:
            try:
                while self._source.visible_end <= at:
                    self._ends[follower] = at
                    self._dry.set()
                    left = until - monotonic()
                    if left <= 0:
                        return False
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._grown.wait(), left)
            finally:
                self._ends.pop(follower, None)
        return True

    def _watch(self) -> None:
        """The thread that waits until the log grows."""
        while not self._closing:
            if not self._dry.wait(WAIT_SECONDS):
                continue
            self._dry.clear()
            # Of all that wait the one that waits for longest: it may not have been told yet.
            seen = min(list(self._ends.values()), default=-1)
            if seen < 0:
                continue
            try:
                end = self._source.wait(seen, WAIT_SECONDS)
            except MQError as error:
                log.info("%s: followers get no more: %s", self.address, error)
                self._events.post(self._spawn, self._end())
                return
            if end > seen:
                self._events.post(self._spawn, self._wake())
            else:
                self._dry.set()

    async def _wake(self) -> None:
        async with self._grown:
            self._grown.notify_all()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            self._tell_acked()
            for follower in list(self._followers):
                if monotonic() - follower.heard > SILENT_SECONDS:
                    log.info("%s: follower %s is silent", self.address, follower.address)
                    with suppress(OSError):  # The other end may have gone just now.
                        follower.sock.shutdown(socket.SHUT_RDWR)

    def _tell_acked(self) -> None:
        if self._source.is_live:
            self._source.tell(each.acked for each in self._followers if each.acked >= 0)


async def _writable(sock: socket.socket) -> None:
    """Wait until the socket has room."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sock)
