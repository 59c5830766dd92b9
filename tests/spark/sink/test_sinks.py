"""What the sinks have done and left, as people are told; whatever lies there, the looker goes on."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mq
from mq.broker.local import LocalBroker
from mq.sink_ledger import TOPIC, Entry
from mq.spark.sink import commit
from mq.spark.sink.append import append_batches
from mq.spark.sink.check import leftovers, problems
from mq.spark.sink.ledger import key_of
from mq.spark.sink.sinks import sinks
from mq.spark.sink.staging import AGE_MAX, Staged, StagedBatch, sink_directory, stage
from tests.support.appending import append_one
from tests.support.store.small_store import open_small

pa = pytest.importorskip("pyarrow")


class Dies(Exception):
    """In place of a kill -9."""


def staged(root: Path, txn: str, epoch: int, rows: int = 3, files: int = 1) -> list[Staged]:
    batch = pa.record_batch({"body": [b"x" * 100] * rows, "properties": [b""] * rows})
    batches = [StagedBatch(mq.MessageQueue("orders", "mq", 0), batch)]
    return [stage(sink_directory(root, key_of(txn)), epoch, f"{n}-1", batches) for n in range(files)]


def committed(broker: LocalBroker, txn: str, epoch: int, appends: int = 9, **options: Any) -> None:
    """Stage an epoch and commit it; the driver dies after so many appends."""
    real, left = append_batches, [appends]

    def append(*arguments: Any, **more: Any) -> None:
        if not left[0]:
            raise Dies
        left[0] -= 1
        real(*arguments, **more)

    files = staged(broker.path, txn, epoch, files=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "append_batches", append)
        try:
            commit.commit_epoch(broker, txn, "query", epoch, files, chunk_bytes=1, **options)
        except Dies:
            assert not left[0]


def test_what_sinks_have_done(broker: LocalBroker) -> None:
    assert sinks(broker) == []
    committed(broker, "app/1", 0)
    committed(broker, "app/1", 7)
    committed(broker, "once", 0, lasting=False)
    committed(broker, "half", 2, appends=1)
    staged(broker.path, "begun", 0)
    before = time.time() * 1000 - 60_000
    found = {sink.txn: sink for sink in sinks(broker)}
    assert list(found) == ["app/1", "begun", "half", "once"]
    assert [sink.txn for sink in found.values() if sink.is_needed] == ["app/1", "begun", "half"]
    whole, begun, half = (found[name] for name in ("app/1", "begun", "half"))
    assert whole.last is not None
    assert half.last is not None
    assert (whole.last.epoch, whole.rows, whole.last.is_whole, whole.staged) == (7, 9, True, ())
    assert whole.last.time_ms > before
    assert (begun.last, begun.rows, [file.epoch for file in begun.staged]) == (None, 0, [0])
    assert (half.rows, half.last.is_whole, len(half.last.files), len(half.staged)) == (3, False, 2, 3)
    assert begun.staged[0].size == begun.staged[0].path.stat().st_size
    assert list(problems(broker.path)) == []


def test_an_entry_that_was_appended_again_counts_once(broker: LocalBroker) -> None:
    """As the duties do it, so that retention does not take it; of whatever epoch."""
    committed(broker, "app", 3)
    committed(broker, "app", 4)
    entries = [message.body for message in broker.topic(TOPIC).queues[0].read(0).messages]
    for body in (
        entries[0],
        entries[-1],
        b"no entry",
        b'{"txn": 1e999}',
        json.dumps({**WHOLE, "epoch": 1e999}).encode(),
    ):
        append_one(broker, TOPIC, 0, mq.Message(TOPIC, body), body, 0)
    (sink,) = sinks(broker)
    assert sink.last is not None
    assert (sink.last.epoch, sink.rows) == (4, 9)


def test_a_file_that_is_written_is_no_remains(broker: LocalBroker) -> None:
    (file,) = staged(broker.path, "app", 0)
    path = sink_directory(broker.path, "app") / file.file
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert [each.is_being_written for sink in sinks(broker) for each in sink.staged] == [True]
        assert list(leftovers(broker.path)) == []
    (note,) = leftovers(broker.path)
    assert note == (
        f"{path.parent}: 1 file, {path.stat().st_size:,} bytes, which wait for a commit, or are left by a"
        " dead process; a later commit removes them, or they are removed after a day"
    )
    old = time.time() - AGE_MAX - 60
    os.utime(path, (old, old))
    (note,) = leftovers(broker.path)
    assert "not written to for over a day: left by a dead process" in note


def test_what_the_dead_staged_for_an_epoch_that_is_there(broker: LocalBroker) -> None:
    committed(broker, "app", 5)
    staged(broker.path, "app", 5, files=2)
    (note,) = leftovers(broker.path)
    assert "2 files" in note
    assert "of an epoch that the log has: left by a dead process, removed by the next commit" in note
    committed(broker, "app", 6)
    assert list(leftovers(broker.path)) == []
    assert list(problems(broker.path)) == []


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 100)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\0" * 8)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (remove, "it is missing"),
        (cut, "at 94 it does not end as a staged file does"),
        (overwrite, "at 0 it does not begin as a staged file does"),
        (as_directory, "this is no file"),
    ],
)
def test_the_rest_of_an_epoch_is_lost(broker: LocalBroker, harm: Callable[[Path], None], said: str) -> None:
    committed(broker, "app", 2, appends=1)
    assert list(problems(broker.path)) == []
    (note,) = leftovers(broker.path)
    assert note.startswith("sink 'app': the log has 3 rows of epoch 2, and not the rest")
    (sink,) = sinks(broker)
    assert sink.last is not None
    path = sink_directory(broker.path, "app") / sink.last.files[1]
    harm(path)
    (problem,) = problems(broker.path)
    assert problem == (
        f"{path}: {said}; it has rows of epoch 2 of sink 'app', of which the log has only the first 3: put"
        " back what is gone, and the next commit appends the rest; or give it up by"
        f" mq.spark.abandon('{broker.path}', 'app'), which marks the epoch as complete without it"
    )


def test_the_rest_that_is_there_is_appended(broker: LocalBroker) -> None:
    committed(broker, "app", 2, appends=1)
    committed(broker, "app", 3)
    assert list(problems(broker.path)) == list(leftovers(broker.path)) == []
    assert len(broker.topic("orders").queues[0].read(0).messages) == 18


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to(path)


def make_file(path: Path) -> None:
    path.write_bytes(b"x")


@pytest.mark.parametrize("make", [make_fifo, make_link, make_file, Path.mkdir])
@pytest.mark.parametrize(
    "name", ["mq/spark", "mq/spark/app", "mq/spark/app/lock", "mq/spark/app/0", "mq/spark/app/0/x"]
)
def test_what_is_in_the_way_is_told(broker: LocalBroker, name: str, make: Callable[[Path], None]) -> None:
    path = broker.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    found = list(problems(broker.path))
    in_the_way = {"mq/spark": Path.mkdir, "mq/spark/app": Path.mkdir, "mq/spark/app/lock": make_file}.get(
        name, make
    )
    assert len(found) == (make is not in_the_way)
    assert all(problem.startswith(f"{path}: this is no ") and "remove" in problem for problem in found)
    list(leftovers(broker.path))
    list(sinks(broker))


def test_what_a_sink_removes_meanwhile_is_not_in_the_way(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completed single write removes its directory, even during a check."""
    committed(broker, "app", 0)
    place, real = broker.path / "mq" / "spark", Path.iterdir

    def listed(path: Path) -> Iterator[Path]:
        found = list(real(path))
        if path == place:
            shutil.rmtree(place / "app")
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", listed)
    assert list(problems(broker.path)) == []


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
entry = st.fixed_dictionaries(
    {},
    optional={
        "txn": st.sampled_from(["app", "..", "", "a/b", "\ud800", "x" * 300]) | values,
        "queryId": values,
        "epoch": st.sampled_from([0, 1, 1 << 63]) | values,
        "chunk": st.integers(-1, 3) | values,
        "rows": st.integers(-5, 5) | values,
        "files": st.lists(
            st.sampled_from(["0/a.arrow", "../../commitlog", "/etc/passwd", "0/\0", "x" * 5000])
        )
        | values,
        "skip": st.just(0) | values,
        "timeMs": st.just(0) | values,
        "lasting": values,
    },
)
WHOLE = json.loads(Entry("app", "query", 0, 0, 1).encode())


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sinks") / "store"
    open_small(root).close()
    return root


@settings(max_examples=30)
@given(given_entries=st.lists(entry, min_size=1, max_size=4), names=st.lists(st.text(max_size=8), max_size=4))
def test_hostile_entries_and_names(
    idle: Path, given_entries: Sequence[dict[str, Any]], names: list[str]
) -> None:
    with open_small(idle) as broker:
        broker.create_topic(TOPIC, 1)
        for one in given_entries:
            body = json.dumps({**WHOLE, **one}).encode()
            if len(body) < 3000:
                append_one(broker, TOPIC, 0, mq.Message(TOPIC, body), body, 0)
        for name in names:
            try:
                (idle / "mq" / "spark" / name.replace("/", "_") / "0").mkdir(parents=True)
            except (OSError, ValueError):
                continue
        for look in (problems, leftovers):
            for text in look(idle):
                assert text
        for sink in sinks(broker):
            assert sink.rows is not None
        broker.delete_topic(TOPIC)
    shutil.rmtree(idle / "mq" / "spark", ignore_errors=True)
