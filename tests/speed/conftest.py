"""The peers are there for every test of the benchmark: installed into its own directory, once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.speed import install, workspace


@pytest.fixture(scope="session")
def peers_directory() -> None:
    before = list(sys.path)
    install.install_missing(workspace.peers_directory())
    sys.path[:] = before


@pytest.fixture
def peers(peers_directory: None) -> Iterator[None]:
    before = list(sys.path)
    install.use(workspace.peers_directory())
    yield
    sys.path[:] = before
