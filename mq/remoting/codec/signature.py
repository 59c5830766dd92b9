"""The signature of a request: an access key, and an HMAC with its secret key.

The signature is Base64 of HMAC-SHA1, keyed with the secret, over the values of all fields sorted by name, and
the body. It is the same for 4.x and 5.x except for one field: servers before 5.1 leave out _UNIQUE_KEY_QUERY,
for every client.

RocketMQ: acl/common/AclUtils.java, acl/common/AclSigner.java.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from mq.remoting.codec.language import WHOLE_SIGNATURE_VERSION

__all__ = ["ACCESS_KEY", "Credentials", "is_signed_by", "signature_of", "signed"]

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secrets, which the repr omits."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signed(
    fields: Mapping[str, str], body: bytes, credentials: Credentials, server_version: int
) -> dict[str, str]:
    """The fields with access key and signature added. server_version: 0 while unknown."""
    out = {**fields, ACCESS_KEY: credentials.access_key}
    if credentials.security_token:
        out[SECURITY_TOKEN] = credentials.security_token
    out[SIGNATURE] = signature_of(out, body, credentials.secret_key, server_version)
    return out


def is_signed_by(fields: Mapping[str, str], body: bytes, secret_key: str) -> bool:
    """Whether the signature was made with this secret.

    Clients from 4.9.4 on sign _UNIQUE_KEY_QUERY, earlier ones do not: both are accepted.
    """
    given = fields.get(SIGNATURE, "").encode()
    return any(
        hmac.compare_digest(signature_of(fields, body, secret_key, version).encode(), given)
        for version in (WHOLE_SIGNATURE_VERSION, 0)
    )


def signature_of(fields: Mapping[str, str], body: bytes, secret_key: str, server_version: int) -> str:
    left_out = {SIGNATURE}
    if server_version < WHOLE_SIGNATURE_VERSION:
        left_out.add(_UNIQUE_KEY_QUERY)
    content = "".join([fields[name] for name in sorted(fields) if name not in left_out])
    digest = hmac.digest(secret_key.encode(), content.encode("utf-8", "replace") + body, hashlib.sha1)
    return base64.b64encode(digest).decode()
