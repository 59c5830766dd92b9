"""This process's broker object of a cluster, opened on first use and kept: for the driver, and for tasks.

Nothing is connected before it is asked something. Keys, and where TLS files are, come with the ClusterRef;
the files themselves must be on every machine.
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
from mq.spark.errors import Refusal, shown
from mq.spark.target_options import ClusterRef

__all__ = ["ClusterBroker", "cluster_broker", "on_cluster"]


class ClusterBroker(Broker, Cluster, Protocol):
    """The broker object of a cluster."""


BROKERS_MAX = 16  # kept open

opened_brokers: dict[ClusterRef, ClusterBroker] = {}
os.register_at_fork(after_in_child=opened_brokers.clear)


def cluster_broker(cluster: ClusterRef) -> ClusterBroker:
    """The broker object, those used last at the end. Raises Refusal for what TLS cannot be made of."""
    known = opened_brokers.pop(cluster, None)
    if known is None:
        while len(opened_brokers) >= BROKERS_MAX:
            opened_brokers.pop(next(iter(opened_brokers))).close()
        # It has the scheme of a cluster, so what comes is one's.
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
    """What brokers have against a step, as a Refusal."""
    try:
        yield
    except Refusal:
        raise
    except (RemotingError, RequestTimeout) as error:
        raise Refusal("MQ_CLUSTER", f"{cluster}: {what}: {type(error).__name__}: {error}") from None
    except MQError as error:
        raise Refusal("MQ_CLUSTER", f"{cluster}: {what}: {error}") from None


def _tls(cluster: ClusterRef) -> bool | ssl.SSLContext:
    if not cluster.tls:
        return False
    option, file = "tlsCaFile", cluster.tls_ca_file
    try:
        context = ssl.create_default_context(cafile=file)  # None: what this machine trusts
        context.check_hostname = cluster.tls_check_hostname
        option, file = "tlsCertFile", cluster.tls_cert_file
        if file is not None:
            # A key that asks for a pass phrase would wait for it where nobody can type.
            context.load_cert_chain(file, cluster.tls_key_file, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
        raise Refusal(
            "MQ_OPTION",
            f"option {option} is {shown(file)}: it cannot be used by process {os.getpid()} on"
            f" {os.uname().nodename} ({getattr(error, 'strerror', None) or error}); the file must be on the"
            " machines of driver and executors, in PEM, and its key without a pass phrase",
        ) from None
    return context
