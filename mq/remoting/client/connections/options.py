"""What a client of a cluster is told."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from mq.remoting.codec.frame import HeaderEncoding
from mq.remoting.codec.signature import Credentials

__all__ = ["RemotingOptions", "tls_context"]


@dataclass(frozen=True, slots=True)
class RemotingOptions:
    """Times in seconds. `timeout` is that of a request that is given none of its own."""

    timeout: float = 3.0
    connect_timeout: float = 3.0
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    encoding: HeaderEncoding = HeaderEncoding.JSON


def tls_context(tls: ssl.SSLContext | bool) -> ssl.SSLContext | None:
    """The context for what mq.open() takes as tls. True: what this machine trusts, names are checked."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool):
        raise TypeError(f"tls is True, False or an ssl.SSLContext, not {tls!r}")
    return ssl.create_default_context() if tls else None
