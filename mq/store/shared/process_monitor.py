"""Tells at once that a process died, without asking around.

A thread sleeps on pidfds, which the kernel makes readable when their process is gone, however it went; its
file locks are dropped by then. A process of another pid namespace has no number here, and some kernels allow
no pidfd: what stands for it, such as a lock that it holds, is looked at every tenth of a second.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mq.store.shared.members import start_time_of
from mq.threads import start

__all__ = ["Watch"]

LOOK_INTERVAL = 0.1  # a takeover has 250 ms


@dataclass(slots=True, eq=False)
class _Watched:
    gone: Callable[[], object]
    fd: int  # -1: looked at
    is_gone: Callable[[], bool]


class Watch:
    """Tells of deaths, each in the thread that watches. The thread starts with the first to be watched."""

    def __init__(self) -> None:
        self.last_error: BaseException | None = None
        self._lock = threading.Lock()  # guards what follows; not held while somebody is told
        self._watched: dict[int, _Watched] = {}
        self._tickets = 0
        self._thread: threading.Thread | None = None
        self._epoll: select.epoll | None = None
        self._wakeup_fd = -1
        self._pid = os.getpid()  # A forked child has copies of what stays the parent's.
        self._closed = threading.Event()

    def watch(
        self,
        pid: int,
        gone: Callable[[], object],
        *,
        start_time: int | None = None,
        is_gone: Callable[[], bool] | None = None,
    ) -> Callable[[], None]:
        """Call gone() once the process is dead, or is_gone() says so; what stops that is returned.

        start_time: of the process, where it is known, since its number may be another's by now. pid 0: of
        another pid namespace, to be looked at by is_gone. gone() may also come just after it was stopped.
        """
        fd = -1
        if self._pid != os.getpid():
            return lambda: None
        if pid > 0:
            with suppress(OSError):  # Dead already, not allowed, or no descriptor left: looked at instead.
                fd = os.pidfd_open(pid)
            if fd >= 0 and start_time is not None and start_time_of(pid) != start_time:
                os.close(fd)
                fd = -1

        def is_no_more() -> bool:
            now = start_time_of(pid)
            return now is None or (start_time is not None and now != start_time)

        with self._lock:
            if self._closed.is_set():
                if fd >= 0:
                    os.close(fd)
                return lambda: None
            self._start()
            assert self._epoll is not None
            self._tickets += 1
            ticket = self._tickets
            self._watched[ticket] = _Watched(gone, fd, is_gone or is_no_more)
            if fd >= 0:
                self._epoll.register(fd, select.EPOLLIN)
            else:
                os.eventfd_write(self._wakeup_fd, 1)
        return lambda: self._stop(ticket)

    def _stop(self, ticket: int) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            watched = self._watched.pop(ticket, None)
            if watched is not None:
                self._forget(watched)

    def _forget(self, watched: _Watched) -> None:
        if watched.fd >= 0 and self._epoll is not None:
            self._epoll.unregister(watched.fd)
            os.close(watched.fd)
            watched.fd = -1

    def _start(self) -> None:
        if self._thread is None:
            epoll = select.epoll()
            wakeup_fd = -1
            try:
                wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                epoll.register(wakeup_fd, select.EPOLLIN)
                thread = threading.Thread(target=self._run, args=(epoll,), name="mq-watch", daemon=True)
                self._epoll, self._wakeup_fd = epoll, wakeup_fd
                start(thread)
            except BaseException:
                self._epoll, self._wakeup_fd = None, -1
                epoll.close()
                if wakeup_fd >= 0:
                    os.close(wakeup_fd)
                raise
            self._thread = thread

    def _run(self, epoll: select.epoll) -> None:
        while True:
            with self._lock:
                if self._closed.is_set():  # By a function that was called.
                    return
                looking = any(watched.fd < 0 for watched in self._watched.values())
            ready = {fd for fd, _ in epoll.poll(LOOK_INTERVAL if looking else None)}
            dead = []
            with self._lock:
                if self._closed.is_set():
                    return
                if self._wakeup_fd in ready:
                    os.eventfd_read(self._wakeup_fd)
                candidates = list(self._watched.items())
            for ticket, watched in candidates:
                if watched.fd in ready or (watched.fd < 0 and self._looks_gone(watched)):
                    dead.append(ticket)
            for ticket in dead:
                with self._lock:
                    found = self._watched.get(ticket)
                    if found is None or not _is_dead(found.fd):
                        continue
                    del self._watched[ticket]
                    self._forget(found)
                self._tell(found)

    def _looks_gone(self, watched: _Watched) -> bool:
        try:
            return watched.is_gone()
        except Exception as error:  # noqa: BLE001 - as in _tell
            self.last_error = error
            return False

    def _tell(self, watched: _Watched) -> None:
        try:
            watched.gone()
        except Exception as error:  # noqa: BLE001 - the thread goes on watching for the others
            # A store or a group file that was closed meanwhile, a full disk: the next call that uses it meets
            # it itself.
            self.last_error = error

    def close(self) -> None:
        """Tell nobody any more. Twice is fine."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            thread = self._thread
            if thread is not None:
                os.eventfd_write(self._wakeup_fd, 1)
        if thread is None:
            return
        if thread is not threading.current_thread():
            thread.join()
        with self._lock:
            for watched in self._watched.values():
                self._forget(watched)
            self._watched.clear()
            assert self._epoll is not None
            self._epoll.close()
            self._epoll = None
            os.close(self._wakeup_fd)


def _is_dead(pidfd: int) -> bool:
    """Whether it still is; a number of a descriptor may be another's since it was found ready."""
    if pidfd < 0:
        return True
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
