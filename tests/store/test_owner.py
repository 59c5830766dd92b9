"""Whose the files of a store are: what root makes in an application's directory is the application's.

As root, files of every kind are made in a directory that is another user's. Any user can run the others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.store.directory.owner import make_directory, open_made
from tests.support.store.small_store import SMALL

ROOT = Path(__file__).parents[2]
NOBODY = 65534

# A command of root's that makes files of every kind, in small ones so that there are several of each.
EVERYTHING = """
import sys, time, mq
from mq.broker.check import problems
from mq.spark.sink.staging import _lock_file, _made, _touch, UNFINISHED
from pathlib import Path

root = Path(sys.argv[1])
with mq.open(root, enable_consume_queue_ext=True, **{small!r}) as broker:
    topic = broker.create_topic("orders", 2)
    with mq.Producer(broker, dedup_window=600) as producer:
        for number in range(40):
            producer.send(mq.Message("orders", b"body", keys=f"k{{number}}"), dedup_key=f"d{{number}}")
    topic.send(b"later", delay_ms=3_600_000)
    topic.send(b"later", delay_level=18)
    done = []
    for group, options in (("a", {{}}), ("b", {{"model": "broadcasting"}})):
        with mq.PushConsumer(broker, group, **options) as consumer:
            consumer.subscribe("orders", sql="TAGS IS NULL", listener=done.append)
            consumer.start()
    broker.group("b").reset("orders", to="earliest")
    commit = lambda *_: mq.TransactionState.COMMIT
    with mq.TransactionProducer(broker, "t", commit) as producer:
        producer.send(mq.Message("orders", b"in a transaction"), commit)
    with mq.Once(broker, "c")("some key"):
        pass
    broker.query("orders", "k1")
    broker.flush()
    until = time.monotonic() + 60
    while not (root / "timerwheel").exists() and time.monotonic() < until:
        time.sleep(0.01)  # The leader makes it, in its own time.
    place = root / "mq" / "spark" / "id"
    _lock_file(place).close()
    _made(place / "0" / "rows").close()
    _touch(place / UNFINISHED)
assert list(problems(root)) == []
"""

# And the application, which has given up its rights.
APPLICATION = """
import os, sys, mq
import mq.filter.sql
# Where Python itself is root's alone, nothing can be loaded later.
assert [getattr(mq, name) for name in mq.__all__]
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
with mq.open(sys.argv[1]) as broker:
    broker.topic("orders").send(b"mine")
    with mq.Producer(broker, dedup_window=600) as producer:
        producer.send(mq.Message("orders", b"mine"), dedup_key="mine")
    for group, options in (("a", {{}}), ("b", {{"model": "broadcasting"}}), ("new", {{}})):
        with mq.PushConsumer(broker, group, **options) as consumer:
            consumer.subscribe("orders", sql="TAGS IS NULL", listener=lambda _: None)
            consumer.start()
    broker.query("orders", "k1")
print("done")
"""


def python(script: str, *arguments: object) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A directory that every user can get to, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "store"
        path.mkdir()
        Path(name).chmod(0o755)
        yield path


def test_what_root_makes_is_the_owners_of_the_directory(anybodys: Path) -> None:
    is_root = os.geteuid() == 0
    owner = (NOBODY, NOBODY) if is_root else (os.geteuid(), anybodys.stat().st_gid)
    os.chown(anybodys, *owner)
    python(EVERYTHING.format(small=SMALL), anybodys)
    made = [path for path in anybodys.rglob("*") if not path.is_symlink()]
    kinds = {str(path.relative_to(anybodys)).split("/")[0] for path in made}
    assert kinds >= {"commitlog", "consumequeue", "consumequeue_ext", "index", "config", "mq", "timerwheel"}
    ours = (
        "broadcast control dedup delay groups members once producers settings.json spark timer transactions"
    )
    assert {path.name for path in (anybodys / "mq").iterdir()} >= set(ours.split())
    others = {path: path.stat() for path in made}
    wrong = [str(path) for path, status in others.items() if (status.st_uid, status.st_gid) != owner]
    assert wrong == []
    if is_root:
        assert python(APPLICATION.format(nobody=NOBODY), anybodys) == "done\n"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The files whose owner a process with a faked root id changes, and the new owner."""
    calls: list[tuple[int, int]] = []
    stat = Path.stat

    def of_another(path: Path, **options: Any) -> os.stat_result:
        fields = list(stat(path, **options))
        fields[4:6] = [1001, 1002]
        return os.stat_result(fields)

    with monkeypatch.context() as root:
        root.setattr(os, "geteuid", lambda: 0)
        root.setattr(os, "fchown", lambda _fd, uid, gid: calls.append((uid, gid)))
        root.setattr(Path, "stat", of_another)
        yield calls


def test_only_what_was_made_here_is_given_away(tmp_path: Path, given: list[tuple[int, int]]) -> None:
    os.close(open_made(tmp_path / "file"))
    make_directory(tmp_path / "a")
    assert given == [(1001, 1002)] * 2
    given.clear()
    (tmp_path / "linked").hardlink_to(tmp_path / "file")
    for name in ("file", "linked"):
        os.close(open_made(tmp_path / name))
    make_directory(tmp_path / "a")
    assert given == []
    (tmp_path / "away").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="symbolic"):
        open_made(tmp_path / "away")
    with pytest.raises(FileExistsError):
        open_made(tmp_path / "file", os.O_WRONLY | os.O_EXCL)
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        make_directory(tmp_path / "b" / "c")
    make_directory(tmp_path / "b" / "c", parents=True)
    assert given == [(1001, 1002)] * 2


def test_files_are_made_in_one_place_of_each_language() -> None:
    makes = re.compile(r"O_CREAT\b|\bmkdir\(|\.touch\(|\bcreat\(|\bopen\([^)]*\"[wxa]b?\"")
    passed_on = re.compile(r"opener=_opened|mq_create_file|\bopen_file\(files")
    # The Java program lies in the user's cache.
    elsewhere = {"mq/store/native/base/owner.c", "mq/store/directory/owner.py", "mq/spark/java.py"}
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for pattern in ("*.py", "*.c")
        for path in (ROOT / "mq").rglob(pattern)
        if str(path.relative_to(ROOT)) not in elsewhere
        for line in path.read_text().splitlines()
        if makes.search(line) and not passed_on.search(line)
    ]
    assert found == []
