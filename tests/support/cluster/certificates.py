"""TLS for a cluster: an authority of its own, a certificate of the servers, and how RocketMQ is told."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Literal

Mode = Literal["permissive", "enforcing"]


class Certificates:
    """Files of an authority and of a server on loopback. `mode`: whether plain connections are taken too."""

    def __init__(self, directory: Path, mode: Mode = "enforcing") -> None:
        import trustme
        from cryptography.hazmat.primitives import serialization

        directory.mkdir(parents=True, exist_ok=True)
        self.mode = mode
        self.authority = directory / "authority.pem"
        authority = trustme.CA()
        server = authority.issue_cert("localhost", "127.0.0.1")
        authority.cert_pem.write_to_path(self.authority)
        chain, key = directory / "server.pem", directory / "server.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
        # RocketMQ's TLS library reads PKCS #8 alone.
        private = serialization.load_pem_private_key(server.private_key_pem.bytes(), None)
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self._properties = directory / "tls.properties"
        lines = {
            "tls.test.mode.enable": "false",
            "tls.server.mode": mode,
            "tls.server.keyPath": key,
            "tls.server.certPath": chain,
            "tls.server.authClient": "false",
            "tls.server.need.client.auth": "none",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.authority,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def server_options(self) -> list[str]:
        """JVM options of a server; it is a client of the other servers, too."""
        return [*self.client_options(), f"-Dtls.server.mode={self.mode}"]

    def client_options(self) -> list[str]:
        """JVM options of a client that checks the servers' certificates."""
        return [
            "-Dtls.enable=true",
            "-Dtls.test.mode.enable=false",
            f"-Dtls.config.file={self._properties}",
        ]

    def client_context(self) -> ssl.SSLContext:
        """For connections out of Python; RocketMQ's clients do not compare host names."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = False
        return context
