"""The target of a source or a sink: a directory of this machine, or a cluster. Pure values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mq.remoting.client.connections.addresses import parse_addresses
from mq.spark.errors import SparkError, short
from mq.spark.option_names import CLUSTER_NAMES
from mq.spark.option_values import boolean, duration_ms

__all__ = ["ClusterRef", "Target", "reject_on_cluster", "target_of"]

SCHEME = "rocketmq:"
TIMEOUT_MS_MAX = 3_600_000
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]{0,100}\Z")
TLS_FILES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile")


@dataclass(frozen=True)
class ClusterRef:
    """A cluster and its connection settings: a value that is pickled for the tasks. The repr omits keys."""

    name_servers: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    namespace: str = ""
    timeout: float = 3.0
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_check_hostname: bool = True

    def __str__(self) -> str:
        return f"rocketmq://{self.name_servers}"


Target = str | ClusterRef  # A directory's path, or a cluster.


def target_of(options: Mapping[str, str]) -> Target:
    """The target that the options name. Raises SparkError if they name none, or a directory and a cluster."""
    path = options.get("path", "")
    if "nameServer" in options:
        if path.strip():
            raise SparkError(
                "MQ_OPTION",
                f"option nameServer is {short(options['nameServer'])} and option path is {short(path)}: one"
                " is a cluster, the other a directory of this machine; give one of them",
            )
        return _cluster("nameServer", options["nameServer"], options)
    if path.strip().lower().startswith(SCHEME):
        return _cluster("path", path.strip()[len(SCHEME) :].removeprefix("//"), options)
    for name in CLUSTER_NAMES[1:]:
        if name in options:
            raise SparkError(
                "MQ_OPTION", f"option {name} is about a cluster: name one by option nameServer, not path"
            )
    return _directory(path)


def _directory(path: str) -> str:
    if not path.strip():
        raise SparkError(
            "MQ_OPTION",
            "option path is missing: name the directory of the store, or a cluster by option nameServer",
        )
    path = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    if _SCHEME.match(path):
        raise SparkError(
            "MQ_OPTION",
            f"option path is {short(path)}: give a directory of this machine, or a cluster by option"
            " nameServer",
        )
    return path


def _cluster(option: str, name_servers: str, options: Mapping[str, str]) -> ClusterRef:
    try:
        addresses = ";".join(parse_addresses(name_servers))
    except ValueError as error:
        raise SparkError("MQ_OPTION", f"option {option} is {short(options[option])}: {error}") from None
    if ("accessKey" in options) != ("secretKey" in options):
        raise SparkError("MQ_OPTION", "options accessKey and secretKey belong together: give both, or none")
    for name in ("accessKey", "secretKey"):
        if name in options and not options[name].strip():
            raise SparkError(
                "MQ_OPTION", f"option {name} is empty: leave accessKey and secretKey out, or give both"
            )
    namespace = options.get("namespace", "")
    if not _NAMESPACE.match(namespace):
        raise SparkError(
            "MQ_OPTION",
            f"option namespace is {short(namespace)}: give letters, digits, - and _, at most 100",
        )
    timeout_ms = duration_ms("timeout", options.get("timeout", "3s"))
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise SparkError("MQ_OPTION", f"option timeout is {short(options['timeout'])}: give 1ms to 1h")
    tls = boolean(options, "tls", False)
    for name in (*TLS_FILES, "tlsCheckHostname"):
        if name in options and not tls:
            raise SparkError("MQ_OPTION", f"option {name} is about tls: give tls=true as well")
    if "tlsKeyFile" in options and "tlsCertFile" not in options:
        raise SparkError(
            "MQ_OPTION", "option tlsKeyFile is the key of a certificate: name that by tlsCertFile"
        )
    return ClusterRef(
        addresses,
        access_key=options.get("accessKey"),
        secret_key=options.get("secretKey"),
        namespace=namespace,
        timeout=timeout_ms / 1000,
        tls=tls,
        tls_ca_file=options.get("tlsCaFile"),
        tls_cert_file=options.get("tlsCertFile"),
        tls_key_file=options.get("tlsKeyFile"),
        tls_check_hostname=boolean(options, "tlsCheckHostname", True),
    )


def reject_on_cluster(options: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """Raises SparkError, with the reason, for an option that only works on a directory."""
    for name, why in reasons.items():
        if name in options:
            raise SparkError(
                "MQ_OPTION", f"option {name} needs a directory, given by option path, not nameServer: {why}"
            )
