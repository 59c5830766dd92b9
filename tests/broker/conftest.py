"""Processes of the build with fail points, started by the ACTORS of a test's module; peers in a group; and
duties that wait for the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mq.store.shared.leader_lock import Turn
from tests.support.joining import JOIN
from tests.support.processes.fail_build import TREE, fail_build
from tests.support.processes.nursery import Nursery
from tests.support.store.peer import Peer


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


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """When it is set, the leader may begin to deliver."""
    begun = threading.Event()
    take = Turn.take
    monkeypatch.setattr(Turn, "take", lambda turn: begun.is_set() and take(turn))
    return begun


@pytest.fixture
def peers(directory: Path) -> Iterator[Callable[..., Peer]]:
    """Another process that has joined as client_id, and claimed queues."""
    with ExitStack() as stack:

        def joined(client_id: str, *queue_ids: int, before: str = "", **options: Any) -> Peer:
            peer = stack.enter_context(Peer(directory, **options))
            peer.do(before + "\n" + JOIN.format(client_id, list(queue_ids)))
            return peer

        yield joined
