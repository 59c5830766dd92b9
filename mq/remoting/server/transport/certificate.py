"""The TLS context of a server, from the option tls of serve().

True makes a self-signed certificate for this run: it protects against eavesdropping but does not authenticate
the server, like the default of RocketMQ's own servers.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile

from mq.errors import MQError

__all__ = ["server_context"]

DAYS = 365


def server_context(tls: ssl.SSLContext | bool | None, host: str) -> ssl.SSLContext | None:
    """The TLS context, None without TLS. Raises TypeError; MQError if True needs a package that is
    missing."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is not True:
        raise TypeError(f"tls is an ssl.SSLContext or True, not {type(tls).__name__}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An ssl.SSLContext loads certificates from files only; this one is private and deleted at once.
    with tempfile.NamedTemporaryFile(prefix="mq-tls-", suffix=".pem") as file:
        file.write(_self_signed(host))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _self_signed(host: str) -> bytes:
    """A private key and its certificate, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MQError(
            "tls=True makes a certificate, which needs cryptography: pip install 'mq[remoting]', or give an"
            " ssl.SSLContext with a certificate of your own"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mq")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(serialization.Encoding.PEM)
