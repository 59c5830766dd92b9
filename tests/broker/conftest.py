"""Processes of the build with fail points, started by the ACTORS of a test's module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.fail_build import TREE, fail_build
from tests.support.processes.nursery import Nursery


@pytest.fixture(scope="module")
def hired_to_fail(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nursery]:
    report = tmp_path_factory.mktemp("nursery") / "report"
    with Nursery(TREE, report, fail_build(), request.module.ACTORS) as nursery:
        yield nursery


@pytest.fixture
def failing(hired_to_fail: Nursery) -> Iterator[Nursery]:
    yield hired_to_fail
    assert hired_to_fail.failures() == ""
