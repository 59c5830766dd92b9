"""A store is opened at the moment at which another opening or closing gave its locks back only in part.

The second one must find itself alone, and look at what the first one left: a control file that nobody has
attached to may be older than the log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.directory.open_lock import OpenLock
from mq.store.native import lib
from mq.store.recovery.recover import recover
from mq.store.recovery.tail_cut import cut_tail
from mq.store.shared.control import Control
from tests.support.insides import control_of, log_end, was_recovered
from tests.support.store.peer import Peer
from tests.support.store.small_store import (
    FOR_EVER_MS,
    LOG_FILE_SIZE,
    bodies,
    fill,
    open_small,
    send,
)

SOON = 60.0


def at_first_call(patch: pytest.MonkeyPatch, of: type, name: str, then: Callable[[], object]) -> None:
    """Have a method do something before what it does, once."""
    method = getattr(of, name)

    def first(*arguments: Any) -> Any:
        patch.setattr(of, name, method)
        then()
        return method(*arguments)

    patch.setattr(of, name, first)


class Second:
    """Another opening, in a thread of its own. begin() returns when that has decided whether it is alone."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._patch = patch
        self._decided = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._opened: Future[LocalBroker] | None = None

    def begin(self) -> None:
        at_first_call(self._patch, OpenLock, "enter", self._decided.set)
        self._opened = self._thread.submit(open_small, self._directory)
        self._opened.add_done_callback(lambda _opened: self._decided.set())
        assert self._decided.wait(SOON)

    def broker(self) -> LocalBroker:
        assert self._opened is not None
        self._thread.shutdown()
        return self._opened.result()


@pytest.fixture
def second(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Second:
    return Second(directory, monkeypatch)


@pytest.fixture
def stale(directory: Path) -> list[bytes]:
    """A store that was not closed, and whose control file is older than its log; the bodies in it."""
    with Peer(directory) as peer:
        peer.do("broker.create_topic('A', 1); fill(broker, 'A', 5)")
        old = (directory / "mq" / "control").read_bytes()
        peer.do("fill(broker, 'A', 20); broker.flush()")
        sent: list[bytes] = peer.ask("bodies(broker)")
        peer.kill()
    (directory / "mq" / "control").write_bytes(old)
    os.utime(directory / "lock")  # As a RocketMQ broker leaves it.
    return sent


def test_after_a_failed_opening_the_next_one_recovers(
    directory: Path, stale: list[bytes], second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once(*_given: Any, **_options: Any) -> None:
        monkeypatch.setattr("mq.store.store.recover", recover)
        at_first_call(monkeypatch, Control, "close", second.begin)
        raise mq.StoreFull("no space left", path=str(directory))

    monkeypatch.setattr("mq.store.store.recover", fail_once)
    with pytest.raises(mq.StoreFull):
        open_small(directory)
    with second.broker() as broker:
        assert was_recovered(broker)
        assert bodies(broker) == stale
        send(broker, "A", 0, b"next")
        assert bodies(broker) == [*stale, b"next"]


def test_after_a_close_the_next_one_sees_that_a_flush_had_failed(
    directory: Path, second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 5)
        sent = bodies(broker)
        control_of(broker).set(lib.MQ_POISONED_WORD, 1)
        at_first_call(monkeypatch, Control, "close", second.begin)
    with second.broker() as after:
        assert was_recovered(after)
        send(after, "A", 0, b"next")
        assert bodies(after) == [*sent, b"next"]


def test_after_a_tail_was_cut_the_next_one_recovers(
    directory: Path, second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        offsets, end, sent = fill(broker, "A", 20), log_end(broker), bodies(broker)
    at_first_call(monkeypatch, OpenLock, "close", second.begin)
    cut_tail(directory, offsets[5], end, LOG_FILE_SIZE, FOR_EVER_MS)
    with second.broker() as after:
        assert was_recovered(after)
        assert bodies(after) == sent[:5]


@pytest.mark.usefixtures("stale")
def test_a_control_file_of_another_boot_is_shared_with_nobody(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = OpenLock(directory)
    inside.enter()  # As an opening that an interrupt left in the middle.
    with monkeypatch.context() as patch:
        patch.setattr("mq.store.shared.control.boot_id", lambda: bytes(16))
        with pytest.raises(mq.StoreLocked, match="try again"):
            open_small(directory)
    inside.close()
