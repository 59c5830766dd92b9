"""The check runs beside processes that keep working: their changes are no problems.

Each of these has them do it in the very moment that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.broker.local import LocalBroker
from mq.store import check
from mq.store.index.index import Index
from mq.store.log import commitlog
from mq.store.native import lib
from tests.support.insides import control_of
from tests.support.store.small_store import fill, log_files, open_small


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory, duties=False) as broker:
        broker.create_topic("A", 1)
        broker.create_topic("B", 2)
        fill(broker, "A", 120)
        fill(broker, "B", 40, 2)
        yield broker


class Meanwhile:
    """The functions in C, of which one comes late: after what others do first."""

    def __init__(self, name: str, first: Callable[[], object]) -> None:
        self.name = name
        self.first = first
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        if name == self.name:
            self.count += 1
            self.first()
        return getattr(lib, name)


def test_retention_takes_files_whose_names_were_read(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(directory: Path) -> list[Path]:
        files = commitlog.segment_files(directory)
        assert broker.expire(retention_hours=0) > 1
        return files

    monkeypatch.setattr(check, "segment_files", listed)
    assert list(check.problems(broker.path)) == []


def test_retention_takes_files_while_names_are_read(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was seen before it went, the second not any more."""

    def listed(directory: Path) -> list[Path]:
        first, _, *others = commitlog.segment_files(directory)
        broker.expire(retention_hours=0)
        return [first, *others]

    monkeypatch.setattr(check, "segment_files", listed)
    assert list(check.problems(broker.path)) == []


def test_a_file_that_came_while_names_were_read(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(directory: Path) -> list[Path]:
        first, _, *others = commitlog.segment_files(directory)
        return [first, *others]

    monkeypatch.setattr(check, "segment_files", listed)
    assert list(check.problems(broker.path)) == []


def test_a_file_that_is_missing_is_a_problem_also_beside_others(broker: LocalBroker) -> None:
    gone = log_files(broker.path)[1]
    data = gone.read_bytes()
    gone.unlink()
    found = list(check.problems(broker.path))
    assert any("no file between" in problem for problem in found)
    assert any("no whole record" in problem for problem in found)
    gone.write_bytes(data)


def test_retention_takes_records_before_they_are_looked_at(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Meanwhile("mq_log_check", lambda: broker.expire(retention_hours=0))
    monkeypatch.setattr(check, "lib", late)
    assert list(check.problems(broker.path)) == []
    assert late.count == 1


def test_a_topic_is_deleted_before_its_records_are_looked_at(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Meanwhile("mq_log_check", lambda: broker.delete_topic("B"))
    monkeypatch.setattr(check, "lib", late)
    assert list(check.problems(broker.path)) == []
    assert late.count == 1


def test_the_index_is_not_written_during_a_query(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, problems, asked = control_of(broker), Index.problems, []

    def looked_at(index: Index) -> Iterator[str]:
        taken = lib.mq_control_try_lock(control.handle, lib.MQ_LOCK_INDEX)
        asked.append(taken)
        if taken == lib.MQ_BUSY:
            yield from problems(index)
        else:
            lib.mq_control_unlock(control.handle, lib.MQ_LOCK_INDEX)
            yield "what a process has half written"

    assert len(broker.query("A", "message7")) == 1
    monkeypatch.setattr(Index, "problems", looked_at)
    assert list(check.problems(broker.path)) == []
    assert asked == [0, lib.MQ_BUSY]
    # And afterwards they may.
    fill(broker, "A", 1, prefix="later")
    assert len(broker.query("A", "later0")) == 1
