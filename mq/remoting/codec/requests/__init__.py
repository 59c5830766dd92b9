"""The table of requests, the same for both ends: code, header fields, bodies, answer.

Importing this package fills it. A client asks a broker, unless the module says otherwise. `⁵`: of
RocketMQ 5.x only.
"""

from __future__ import annotations

from mq.errors import RemotingError
from mq.remoting.codec.fields import Request
from mq.remoting.codec.requests import (
    brokers,
    consuming,
    groups,
    name_servers,
    offsets,
    pushed,
    sending,
    statistics,
    topics,
)

__all__ = [
    "brokers",
    "consuming",
    "groups",
    "name_servers",
    "offsets",
    "pushed",
    "request_of",
    "requests",
    "sending",
    "statistics",
    "topics",
]


def requests() -> dict[int, type[Request]]:
    """By code."""
    return Request.TABLE


def request_of(code: int) -> type[Request]:
    """The request with this code. Raises RemotingError for one that is not in the table."""
    try:
        return Request.TABLE[code]
    except KeyError:
        raise RemotingError(f"request code {code} is not supported") from None
