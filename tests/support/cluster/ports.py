"""Ports that are free on loopback."""

from __future__ import annotations

import random
import socket

# Below those that the system gives to whatever connects: on a slow machine a server listens much later.
LOWEST, HIGHEST = 12_000, 32_000
_taken: list[socket.socket] = []  # A name for each port that was given, which is free again with the process.


def free_port(beside: tuple[int, ...] = ()) -> int:
    """A port that was free a moment ago, and with it those `beside` it; the same is given to no other caller,
    in whichever process, as long as this one lives.

    A broker listens at its port, at the one two below, and, for its slaves, at the next one.
    """
    while True:
        port = random.randrange(LOWEST, HIGHEST)
        if all(map(_take, {port, *(port + offset for offset in beside)})):
            return port


def _take(port: int) -> bool:
    """Whether it is free, and nobody else has taken it to listen there later."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0mq-tests-port-{port}")
    except OSError:
        name.close()
        return False
    _taken.append(name)
    return _is_free(port)


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True
