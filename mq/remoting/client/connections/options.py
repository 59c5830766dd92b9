"""The options of a cluster's client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from mq.remoting.codec.frame import HeaderEncoding
from mq.remoting.codec.signature import Credentials

__all__ = ["RemotingOptions", "tls_context"]


TIMEOUT_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class RemotingOptions:
    """Times in seconds. `timeout`: the default time limit of a request. Raises TypeError and ValueError."""

    timeout: float = 3.0
    connect_timeout: float = 3.0
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    encoding: HeaderEncoding = HeaderEncoding.JSON

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
                raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
            if not 0 < seconds <= TIMEOUT_MAX:
                raise ValueError(f"{name} is {seconds!r} s: it must be over 0 and at most {TIMEOUT_MAX:,} s")
        _check("tls", self.tls, ssl.SSLContext, "an ssl.SSLContext")
        _check("credentials", self.credentials, Credentials, "an access key with its secret key")
        if not isinstance(self.encoding, HeaderEncoding):
            raise TypeError(f"encoding is a HeaderEncoding, not {self.encoding!r}")


def _check(name: str, value: object, kind: type, what: str) -> None:
    # The text does not show the value: it may be a secret.
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is {what} or None, not a {type(value).__name__}")


def tls_context(tls: ssl.SSLContext | bool) -> ssl.SSLContext | None:
    """The TLS context for the option tls of mq.open(). True: the machine's trusted authorities, with host
    name checks."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool):
        raise TypeError(f"tls is True, False or an ssl.SSLContext, not {tls!r}")
    return ssl.create_default_context() if tls else None
