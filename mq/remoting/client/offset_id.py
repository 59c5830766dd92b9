"""Offset ids, RocketMQ's ids that name the place of a message in a broker's log. Pure.

8 or 20 bytes of the address of a broker (IPv4 or IPv6, and the port), and 8 of the log offset, in hexadecimal
digits. RocketMQ: common/message/MessageDecoder.java, createMessageId.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["OffsetId"]

_DIGITS = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}", re.ASCII)


class OffsetId(NamedTuple):
    """A place in the log of a broker."""

    host: bytes
    """Address and port, as records have them."""
    log_offset: int

    @classmethod
    def of(cls, text: str) -> OffsetId | None:
        """The parsed id; None if the text is not an offset id. A unique id may look the same."""
        if not _DIGITS.fullmatch(text):
            return None
        packed = bytes.fromhex(text)
        return cls(packed[:-8], int.from_bytes(packed[-8:], "big"))

    @property
    def address(self) -> str:
        """The broker's address, HOST:PORT."""
        ip, port = self.host[:-4], int.from_bytes(self.host[-4:], "big")
        if len(ip) == 4:
            return f"{'.'.join(map(str, ip))}:{port}"
        return f"[{':'.join(ip[at : at + 2].hex() for at in range(0, 16, 2))}]:{port}"
