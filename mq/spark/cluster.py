"""The cache of broker objects for clusters, one per process: for the driver and for tasks.

A broker object connects on its first request. Access keys and the paths of TLS files come with the
ClusterRef; the files themselves must be on every machine.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from mq.api.broker import Broker
from mq.api.bulk import Cluster
from mq.errors import MQError, RemotingError, RequestTimeout
from mq.opening import open as open_broker
from mq.spark.errors import SparkError, short
from mq.spark.target_options import ClusterRef

__all__ = ["ClusterBroker", "cluster_broker", "on_cluster"]


class ClusterBroker(Broker, Cluster, Protocol):
    """The broker object of a cluster."""


BROKERS_MAX = 16  # kept open

opened_brokers: dict[ClusterRef, ClusterBroker] = {}
os.register_at_fork(after_in_child=opened_brokers.clear)


def cluster_broker(cluster: ClusterRef) -> ClusterBroker:
    """The broker object of a cluster, opened on first use. Raises SparkError for TLS files that cannot be
    used."""
    known = opened_brokers.pop(cluster, None)
    if known is None:
        while len(opened_brokers) >= BROKERS_MAX:
            opened_brokers.pop(next(iter(opened_brokers))).close()
        # The scheme is a cluster's, so open() returns the broker object of a cluster.
        known = open_broker(  # type: ignore[assignment]  # see above
            str(cluster),
            access_key=cluster.access_key,
            secret_key=cluster.secret_key,
            tls=_tls(cluster),
            namespace=cluster.namespace,
            timeout=cluster.timeout,
        )
    assert known is not None
    opened_brokers[cluster] = known
    return known


@contextmanager
def on_cluster(cluster: ClusterRef, what: str) -> Iterator[None]:
    """Turn the errors of brokers into a SparkError that names the step."""
    try:
        yield
    except SparkError:
        raise
    except (RemotingError, RequestTimeout) as error:
        raise SparkError("MQ_CLUSTER", f"{cluster}: {what}: {type(error).__name__}: {error}") from None
    except MQError as error:
        raise SparkError("MQ_CLUSTER", f"{cluster}: {what}: {error}") from None


def _tls(cluster: ClusterRef) -> bool | ssl.SSLContext:
    if not cluster.tls:
        return False
    option, file = "tlsCaFile", cluster.tls_ca_file
    try:
        context = ssl.create_default_context(cafile=file)  # None: what this machine trusts
        context.check_hostname = cluster.tls_check_hostname
        option, file = "tlsCertFile", cluster.tls_cert_file
        if file is not None:
            # Without a password function an encrypted key would prompt on the terminal.
            context.load_cert_chain(file, cluster.tls_key_file, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
        raise SparkError(
            "MQ_OPTION",
            f"option {option} is {short(file)}: it cannot be used by process {os.getpid()} on"
            f" {os.uname().nodename} ({getattr(error, 'strerror', None) or error}); the file must be on the"
            " machines of driver and executors, in PEM, and its key without a pass phrase",
        ) from None
    return context
