"""What the unique ids of a process begin with; the rest is native/log/unique_id.c.

RocketMQ's layout (common/message/MessageClientIDSetter.java): address 4 bytes, pid 2, a constant of the
process 4, ms of the month 4, counter 2. The constant is random, where Java takes a hash, and drawn again in
every forked child.
"""

from __future__ import annotations

import os
import socket

from mq.store.native import ffi, lib

__all__ = ["new_unique_id", "new_unique_ids", "seed_ids"]

UNIQUE_ID_SIZE = 32


def _address() -> bytes:
    """This machine's IPv4 address, as far as it can be known without sending anything."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(
                ("192.0.2.1", 9)
            )  # Of the block for documentation; a datagram socket sends nothing here.
            return socket.inet_aton(probe.getsockname()[0])
    except OSError:
        return os.urandom(4)


def seed_ids() -> None:
    """What the unique ids of this process begin with: address, pid, and a constant of this start."""
    prefix = _address() + (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)
    lib.mq_unique_seed(prefix.hex().upper().encode())


def new_unique_id() -> str:
    """One for a message that is stored elsewhere; what is stored here gets its own in C."""
    return new_unique_ids(1)[0]


def new_unique_ids(count: int) -> list[str]:
    """The same for several messages."""
    made = ffi.new("char[]", UNIQUE_ID_SIZE * count)
    lib.mq_unique_ids(made, count)
    text: str = ffi.unpack(made, UNIQUE_ID_SIZE * count).decode()
    return [text[at : at + UNIQUE_ID_SIZE] for at in range(0, len(text), UNIQUE_ID_SIZE)]


seed_ids()  # of this process; forked children do it again, see store.py
