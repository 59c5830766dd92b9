"""Comparisons outside the test modules say as much as those inside. One RocketMQ is run for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.oracle.agreement", "tests.oracle.crossing")

if TYPE_CHECKING:
    from tests.oracle.server import Server


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    from tests.oracle.server import Server

    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def rocketmq(running: Server) -> Iterator[Server]:
    """A RocketMQ without a broker; one that is left running is killed."""
    yield running
    if running.serving:
        running.kill()
