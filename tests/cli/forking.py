"""The command, run in processes that cost no start of an interpreter.

A server is one process that has imported the command and opened nothing. For each run it forks a child, which
gets standard input, output and error of its own and ends as `python -m mq` would: what is printed, the exit
status, and all that happens at the end of an interpreter are those of a process of its own.

    client -> server   one datagram: the arguments, as JSON, with three descriptors
    server -> client   one datagram: the exit status
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

import mq.cli

__all__ = ["Server"]

DATAGRAM_SIZE_MAX = 1 << 17
SCREEN = {"dashboard", "table"}  # of `top` alone, and slow to import


class Server:
    """Started by the first run; `environment` is that of every child."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(self, arguments: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        """As subprocess.run does it, with captured output."""
        try:
            return self._run(self._started(), arguments, stdin)
        except BaseException:
            # What is under way there would be taken for the answer to the next one, and may hang.
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self.close()
            raise

    def _run(
        self, to_server: socket.socket, arguments: tuple[str, ...], stdin: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        (its_in, our_in), (our_out, its_out), (our_err, its_err) = os.pipe(), os.pipe(), os.pipe()
        theirs = [its_in, its_out, its_err]
        socket.send_fds(to_server, [json.dumps(arguments).encode()], theirs)
        for fd in theirs:
            os.close(fd)
        read = {our_out: b"", our_err: b""}

        def write_all() -> None:
            try:
                with os.fdopen(our_in, "wb") as file:
                    file.write(stdin)
            except BrokenPipeError:
                pass  # It did not want all of that.

        def read_all(fd: int) -> None:
            with os.fdopen(fd, "rb") as file:
                read[fd] = file.read()

        threads = [threading.Thread(target=read_all, args=(fd,)) for fd in read]
        threads.append(threading.Thread(target=write_all))
        for thread in threads:
            thread.start()
        status = int(to_server.recv(DATAGRAM_SIZE_MAX))
        for thread in threads:
            thread.join()
        return subprocess.CompletedProcess(arguments, status, read[our_out], read[our_err])

    def _started(self) -> socket.socket:
        if self._socket is None:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.cli.forking", str(its.fileno())],
                    pass_fds=[its.fileno()],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._socket = ours
        return self._socket

    def close(self) -> None:
        """The server ends once its child has."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait(120)
            self._process = None


def _serve(to_client: socket.socket) -> None:
    for module in pkgutil.iter_modules(mq.cli.__path__):
        if module.name not in SCREEN:
            importlib.import_module(f"mq.cli.{module.name}")
    while True:
        arguments, fds, _, _ = socket.recv_fds(to_client, DATAGRAM_SIZE_MAX, 3)
        if not arguments:
            return
        pid = os.fork()
        if not pid:
            to_client.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            sys.argv = ["mq", *json.loads(arguments)]
            mq.cli.main()  # It exits: up through here, as any process of Python does.
        for fd in fds:
            os.close(fd)
        _, status = os.waitpid(pid, 0)
        to_client.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
