"""The directory of an open store is moved away, and perhaps another one put in its place.

A process that has it open detects this, at the latest when it closes; what then stands in the old place is
left alone, and what it had sent is in the directory that it had opened.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mq
from mq.store.native import lib
from tests.support.insides import store_of
from tests.support.store.small_store import bodies, contents, fill, numbered, open_small, send
from tests.support.threads import threads_named

SOON = 120.0


def refusal(call: Callable[[], object]) -> mq.StoreCorrupted:
    """What is raised soon, since the directory is not where it was."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        try:
            call()
        except mq.StoreCorrupted as error:
            return error
        except FileNotFoundError:
            pass  # Before that, of a file that is to be made.
        time.sleep(0.001)
    raise AssertionError("nothing was refused")


def state_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


def test_a_backup_that_is_put_back_under_an_open_store_is_left_alone(tmp_path: Path, directory: Path) -> None:
    with open_small(tmp_path / "backup") as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 60)
        broker.query("A", "message1")
        want = contents(broker)
    before_it = threading.enumerate()
    broker = open_small(directory, duties=False)
    broker.create_topic("A", 1)
    fill(broker, "A", 5, prefix="mine")
    # What is prepared ahead of the end goes by the path, and is not to be under way now.
    lib.mq_log_stop(store_of(broker).log)
    for thread in threads_named("mq-prepare", besides=before_it):
        thread.join()
    directory.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "backup", directory)
    before = state_of(directory)
    with pytest.raises(mq.StoreCorrupted, match=r"was moved, deleted or replaced .* call mq\.open\(\) again"):
        broker.close()
    assert state_of(directory) == before
    with open_small(directory) as after:
        assert contents(after) == want
    with open_small(tmp_path / "moved") as moved:
        assert bodies(moved) == numbered(5, prefix="mine")


@pytest.mark.parametrize("how", ["moved", "deleted", "another link"])
def test_senders_and_readers_are_told_that_the_directory_is_gone(tmp_path: Path, how: str) -> None:
    root = tmp_path / "store"
    if how == "another link":
        (tmp_path / "first").mkdir()
        (tmp_path / "second").mkdir()
        root.symlink_to("first")
    broker = mq.open(
        root, flush_interval=0.01, commitlog_file_size=1 << 24, index_slot_count=16, index_unit_count=64
    )
    broker.create_topic("A", 1)
    send(broker, "A", 0, b"one")
    if how == "moved":
        root.rename(tmp_path / "moved")
    elif how == "deleted":
        while root.exists():
            shutil.rmtree(root, ignore_errors=True)  # Duties write meanwhile.
    else:
        root.unlink()
        root.symlink_to("second")
    assert refusal(lambda: broker.topic("A")).path == str(root)
    assert "was moved, deleted or replaced" in str(refusal(lambda: send(broker, "A", 0, b"two")))
    with pytest.raises(mq.StoreCorrupted, match="was moved, deleted or replaced"):
        broker.close()
    broker.close()
    assert root.exists() == (how == "another link"), "a store that is gone was made anew, empty"
    if how != "deleted":
        with mq.open(tmp_path / ("moved" if how == "moved" else "first")) as after:
            assert bodies(after)[0] == b"one"
