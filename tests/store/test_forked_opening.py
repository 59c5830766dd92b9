"""A process forks while another of its threads opens a store, or gives a lock of it back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.directory import file_sizes
from mq.store.directory.file_locks import lock_byte, open_own_file
from tests.support.insides import store_of
from tests.support.store.small_store import open_small

SOON = 60.0


@pytest.fixture
def opening(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another thread has the locks of the opening."""
    begun, goes_on, agree = threading.Event(), threading.Event(), file_sizes.agree

    def late(*given: Any) -> Any:
        begun.set()
        assert goes_on.wait(SOON)
        return agree(*given)

    opened: list[mq.LocalBroker] = []
    monkeypatch.setattr("mq.store.store.agree", late)
    thread = threading.Thread(target=lambda: opened.append(open_small(directory)))
    thread.start()
    assert begun.wait(SOON)
    yield
    goes_on.set()
    thread.join(SOON)
    opened[0].create_topic("orders", 1).send(b"one")
    opened[0].close()


def held_below(directory: Path) -> list[str]:
    links = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except OSError:
            continue
    return [link for link in links if link.startswith(str(directory))]


@pytest.mark.usefixtures("opening")
def test_a_child_forked_meanwhile_has_none_of_its_locks(directory: Path) -> None:
    assert held_below(directory)
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 1 if held_below(directory) else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_copy_that_a_child_keeps_of_a_descriptor_keeps_no_lock(directory: Path) -> None:
    """It keeps one that was forked when the store did not know the descriptor any more."""
    with open_small(directory) as broker:
        store, path = store_of(broker), directory / "mq" / "a_lock"
        fd = open_own_file(path)
        store.close_in_child(fd)
        assert lock_byte(fd, 3)
        copy = os.dup(fd)  # The same open file, as in a child.
        store.closed_here(fd)
        with path.open("r+b") as other:
            assert lock_byte(other.fileno(), 3)
        os.close(copy)
