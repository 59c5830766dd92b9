"""Ports that are free on loopback."""

from __future__ import annotations

import random
import socket

# Below those that the system gives to whatever connects: on a slow machine a server listens much later.
LOWEST, HIGHEST = 12_000, 32_000
_taken: set[int] = set()


def free_port(beside: tuple[int, ...] = ()) -> int:
    """A port that was free a moment ago, and with it those `beside` it; never the same twice in this process.

    A broker listens at its port, at the one two below, and, for its slaves, at the next one.
    """
    while True:
        port = random.randrange(LOWEST, HIGHEST)
        wanted = {port, *(port + offset for offset in beside)}
        if not wanted & _taken and all(map(_is_free, wanted)):
            _taken.update(wanted)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True
