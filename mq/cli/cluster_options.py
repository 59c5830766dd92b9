"""How the command line connects to a cluster: the options of `mq.open` for `rocketmq://` as options of click.

Each option has an environment variable. A secret is read from a file or from the environment, never from an
argument: other users of the machine see the arguments of a process.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

import mq

Command = Callable[..., Any]
SCHEME = "rocketmq://"

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# Name, help, and what click needs to know beside them.
_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("access-key", "Sign requests with this key; needs a secret.", {"metavar": "KEY"}),
    (
        "secret-key-file",
        "A file with the secret of the access key. The secret itself may be in {secret}.",
        {"type": _FILE, "metavar": "FILE"},
    ),
    ("namespace", "Put before the names of topics and groups.", {"metavar": "NAME"}),
    ("tls", "Encrypt connections, and verify the servers' certificates.", {"is_flag": True}),
    (
        "tls-ca",
        "A PEM file with the authorities to trust instead of the system's. Implies TLS.",
        {"type": _FILE, "metavar": "FILE"},
    ),
    (
        "tls-certificate",
        "A PEM file with a private key and its certificates, for servers that ask for one. Implies TLS.",
        {"type": _FILE, "metavar": "FILE"},
    ),
    (
        "tls-any-host",
        "Do not compare host names with certificates, as RocketMQ's clients do not. Implies TLS.",
        {"is_flag": True},
    ),
    ("timeout", "The time limit of a request in seconds (3).", {"type": float, "metavar": "SECONDS"}),
)


def parameter_names(prefix: str = "") -> list[str]:
    """The names of the parameters that cluster_options(prefix) adds to a command."""
    return [f"{prefix}{name}".replace("-", "_") for name, _, _ in _OPTIONS]


def cluster_options(prefix: str = "") -> Callable[[Command], Command]:
    """Add the options to a command: `--access-key` with MQ_ACCESS_KEY; with the prefix "target-",
    `--target-access-key` with MQ_TARGET_ACCESS_KEY."""

    def add(command: Command) -> Command:
        for name, text, settings in reversed(_OPTIONS):
            command = click.option(
                f"--{prefix}{name}",
                envvar=_variable(prefix, name),
                show_envvar=True,
                help=text.format(secret=_variable(prefix, "secret-key")),
                **settings,
            )(command)
        return command

    return add


def _variable(prefix: str, name: str) -> str:
    return f"MQ_{prefix}{name}".replace("-", "_").upper()


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How to connect to a cluster. The secret is not shown."""

    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    namespace: str = ""
    tls: bool | ssl.SSLContext = False
    timeout: float | None = None

    def open(self, target: str) -> mq.Broker:
        """The broker object of a cluster. Raises ValueError."""
        limit = {} if self.timeout is None else {"timeout": self.timeout}
        return mq.open(
            target,
            access_key=self.access_key,
            secret_key=self.secret_key,
            namespace=self.namespace,
            tls=self.tls,
            **limit,
        )


def connection(
    given: Mapping[str, Any], environment: Mapping[str, str], prefix: str = ""
) -> ClusterOptions | None:
    """The values of the options of cluster_options(prefix); None where none is given. Raises UsageError."""
    names = [name for name, _, _ in _OPTIONS]
    of = {name: given[key] for name, key in zip(names, parameter_names(prefix), strict=True)}
    variable = _variable(prefix, "secret-key")
    secret = environment.get(variable) or None
    if not secret and not any(value not in {None, False} for value in of.values()):
        return None
    path = of["secret-key-file"]
    if path is not None:
        secret = path.read_text().strip()
    if bool(of["access-key"]) != bool(secret):
        raise click.UsageError(
            f"--{prefix}access-key and its secret belong together:"
            f" the secret is in {variable}, or in the file of --{prefix}secret-key-file"
        )
    return ClusterOptions(
        of["access-key"] or None, secret, of["namespace"] or "", _tls(of, prefix), of["timeout"]
    )


def _tls(of: Mapping[str, Any], prefix: str) -> bool | ssl.SSLContext:
    authorities, certificate, any_host = of["tls-ca"], of["tls-certificate"], of["tls-any-host"]
    if authorities is None and certificate is None and not any_host:
        return bool(of["tls"])
    name, path = f"--{prefix}tls-ca", authorities
    try:
        context = ssl.create_default_context(cafile=authorities)
        context.check_hostname = not any_host
        if certificate is not None:
            name, path = f"--{prefix}tls-certificate", certificate
            context.load_cert_chain(certificate)
    except ssl.SSLError as error:
        raise click.UsageError(f"{name}: {path} is no such PEM file: {error.reason or error}") from None
    return context
