"""Executors that run as another user than the driver, or where another file system has the directory's name:
what was planned here is done there, and the task says why it cannot be, and what to do."""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.spark.errors import SparkError
from mq.store.check import problems
from tests.spark.reading import forget_brokers, send, source, struct
from tests.spark.writing import batches, numbered, stored, writer

OTHER = 54321  # a user id without a name
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
NOT_PERMITTED = "not permitted"


@pytest.fixture
def place() -> Iterator[Path]:
    """The directory of a store whose parents any user may enter."""
    with tempfile.TemporaryDirectory(prefix="mq-elsewhere-") as parent:
        Path(parent).chmod(0o755)
        yield Path(parent) / "store"
        forget_brokers()
        assert list(problems(Path(parent) / "store")) == []


@pytest.fixture
def owned(place: Path) -> Iterator[LocalBroker]:
    with mq.open(place) as broker:
        broker.create_topic("orders", 2)
        send(broker, "orders", 0, *numbered(0, 5))
        yield broker


def reading(directory: Path) -> Callable[[], Any]:
    reader = source(directory, topic="orders").reader(schema=struct("body"))
    planned = pickle.dumps((reader, reader.partitions()))

    def task() -> int:
        there, partitions = pickle.loads(planned)
        return sum(batch.num_rows for partition in partitions for batch in there.read(partition))

    return task


def staging(directory: Path) -> Callable[[], Any]:
    to = writer(directory)
    return lambda: to.write_task(batches(*numbered(5, 8)), "query", 0, 0, 1).staged.rows


def appending(directory: Path) -> Callable[[], Any]:
    to = writer(directory, semantics="at_least_once")
    return lambda: to.write_task(batches(*numbered(5, 8)), "query", 0, 0, 1).query_id


TASKS = [reading, staging, appending]


def in_a_process(before: Callable[[], Any], task: Callable[[], Any]) -> str:
    """What a task says in a process of its own that begins with something: its refusal, or its result."""
    forget_brokers()
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork beside threads. This child only runs what the parent has run before.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        with suppress(BaseException):
            try:
                before()
                said = repr(task())
            except SparkError as error:
                said = str(error)
            except PermissionError:
                said = NOT_PERMITTED
            os.write(sending, said.encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def become_another() -> None:
    os.setgroups([])
    os.setgid(OTHER)
    os.setuid(OTHER)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("hidden", ["store", "parent"])
def test_a_task_of_another_user_names_the_user(
    owned: LocalBroker,
    place: Path,
    task: Callable[[Path], Callable[[], Any]],
    hidden: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without root, the test makes the store inaccessible to the task and fakes another user id."""
    planned = task(place)
    assert in_a_process(lambda: None, planned) in {"5", "3", "'query'"}
    shut = {"store": place, "parent": place.parent}[hidden]
    before = shut.stat().st_mode
    is_root = os.geteuid() == 0
    shut.chmod(0o700 if is_root else 0)
    if not is_root:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    said = in_a_process(become_another if is_root else lambda: None, planned)
    shut.chmod(before)
    assert said.startswith(f"[MQ_STORE] option path is '{place}': the store cannot be opened by process ")
    assert re.search(rf"of user {OTHER} on .*Permission denied", said)
    owner = place.stat().st_uid
    assert re.search(rf"the store of user \w+ \({owner}\): run driver and executors as that user$", said)


def test_another_user_may_stage_nothing(owned: LocalBroker, place: Path) -> None:
    """The store was opened for all, but for the place of staged rows."""
    planned = staging(place)
    spark = place / "mq" / "spark"
    spark.mkdir()
    is_root = os.geteuid() == 0
    for path in (place, *place.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    spark.chmod(0o555)
    said = in_a_process(become_another if is_root else lambda: None, planned)
    spark.chmod(0o755)
    assert said.startswith(f"[MQ_STORE] option path is '{place}': the store cannot be written by process ")
    assert len(stored(owned)) == 5


def mount_over(path: Path) -> None:
    """Have this process see an empty file system there. Raises PermissionError where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int) -> None:
        if result:
            raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    done(libc.unshare(CLONE_NEWNS if os.geteuid() == 0 else CLONE_NEWNS | CLONE_NEWUSER))
    done(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    done(libc.mount(b"none", os.fsencode(path), b"tmpfs", 0, None))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("covered", "why"),
    [("store", "the directory of that name here is another one"), ("parent", "No such file or directory")],
)
def test_a_task_on_another_file_system_says_so(
    owned: LocalBroker, place: Path, task: Callable[[Path], Callable[[], Any]], covered: str, why: str
) -> None:
    planned = task(place)
    over = {"store": place, "parent": place.parent}[covered]
    said = in_a_process(lambda: mount_over(over), planned)
    if said == NOT_PERMITTED:
        pytest.skip("this system does not allow mounts")
    assert said.startswith(
        f"[MQ_STORE_NOT_LOCAL] option path is '{place}': the store was found by the driver"
    )
    assert f": {why}. A store is a directory of one machine: run the executors where the driver runs" in said
    assert len(stored(owned)) == 5


def test_a_driver_that_may_not_look(owned: LocalBroker, place: Path) -> None:
    """Found while Spark plans: nothing runs at all."""
    is_root = os.geteuid() == 0
    place.parent.chmod(0o700 if is_root else 0)
    said = in_a_process(become_another if is_root else lambda: None, lambda: reading(place))
    place.parent.chmod(0o755)
    assert re.match(rf"\[MQ_STORE\] option path is '{place}': user .* may not see what is there", said)
