"""The shared clusters, each with Java clients of its version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster.java_clients import JavaClients
from tests.support.cluster.shared import SharedCluster, attached


@pytest.fixture(scope="session")
def cluster() -> SharedCluster:
    """Two brokers of 5.3, shared by all tests of the run: none of its servers is stopped."""
    return attached("5.3")


@pytest.fixture(scope="session")
def cluster_4_9() -> SharedCluster:
    """A broker of 4.9, shared likewise."""
    return attached("4.9")


@pytest.fixture(scope="module")
def java(cluster: SharedCluster) -> Iterator[JavaClients]:
    with cluster.clients() as clients:
        yield clients
