"""A thread that waits for a key gets an error when its broker closes; a forked child closes its parent's
claims."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.dedup import table as dedup_table
from mq.store.directory.file_locks import lock_byte
from tests.dedup import dedup_actors
from tests.support.insides import set_claims, store_of
from tests.support.processes.children import call

PATIENCE = 60.0
LONG = 3600.0


def answers(wait: Callable[[], object], waits: threading.Event, close: Callable[[], None]) -> str:
    """The result of a waiting thread when the broker is closed meanwhile."""
    told: list[str] = []

    def run() -> None:
        try:
            told.append(repr(wait()))
        except BaseException as error:  # noqa: BLE001 - it is what is asked for
            told.append(type(error).__name__)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE)
    close()
    thread.join(PATIENCE)
    (answer,) = told
    return answer


def test_a_thread_waits_for_another_that_handles_its_key(directory: Path) -> None:
    broker = mq.open(directory)
    once = mq.Once(broker, "billing", wait=LONG)
    held, waits = once("key"), threading.Event()
    assert held.__enter__()

    class Claims(dict[bytes, Any]):  # of the handlers of keys
        def setdefault(self, digest: bytes, claim: Any = None) -> Any:
            waits.set()
            return super().setdefault(digest, claim)

    set_claims(broker, "billing", Claims)
    assert answers(once("key").__enter__, waits, broker.close) == "BrokerClosed"


def test_a_process_waits_for_another_that_handles_its_key(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mq.open(directory) as other:  # Its locks are its own, like those of another process.
        with mq.Once(other, "billing")("key") as fresh:
            assert fresh
            broker, waits = mq.open(directory), threading.Event()
            once = mq.Once(broker, "billing", wait=LONG)

            def lock(fd: int, byte: int, *, timeout: float = 0.0) -> bool:
                waits.set()
                return lock_byte(fd, byte, timeout=timeout)

            monkeypatch.setattr("mq.broker.once.handled_keys.lock_byte", lock)
            assert answers(once("key").__enter__, waits, broker.close) == "BrokerClosed"
            monkeypatch.undo()
        assert mq.Once(other, "billing").seen("key")


def test_a_thread_waits_for_another_that_sends_its_key(directory: Path) -> None:
    with mq.open(directory) as broker:
        keys = dedup_table.SentKeys(store_of(broker), clock_ms=lambda: 0)
        digest = dedup_table.digest_of("key", "orders", "key")
        number, first, waits = keys.number(digest), dedup_actors.held(keys, digest, 0.0), threading.Event()
        closer = threading.Thread(target=keys.close)

        def wait() -> object:
            waits.set()
            return dedup_actors.held(keys, digest, LONG)

        def close() -> None:
            closer.start()
            with suppress(mq.BrokerClosed):
                while closer.is_alive():  # Another bucket is to be had until close() has begun.
                    keys.locked(number + 1, 0.0)
            assert closer.is_alive(), "the lock was closed before it was given back"
            first.close()

        assert answers(wait, waits, close) == "BrokerClosed"
        closer.join(PATIENCE)
        assert not closer.is_alive(), "the lock is left behind"


def test_of_two_that_close_neither_is_done_before_a_send_is(directory: Path) -> None:
    """What comes after frees what the send still reads."""
    with mq.open(directory) as broker:
        keys = dedup_table.SentKeys(store_of(broker), clock_ms=lambda: 0)
        digest = dedup_table.digest_of("key", "orders", "key")
        number, sending = keys.number(digest), dedup_actors.held(keys, digest, 0.0)
        closers = [threading.Thread(target=keys.close) for _ in range(2)]
        closers[0].start()
        with suppress(mq.BrokerClosed):
            while closers[0].is_alive():  # As above.
                keys.locked(number + 1, 0.0)
        closers[1].start()
        closers[1].join(0.2)
        assert all(closer.is_alive() for closer in closers)
        sending.close()
        for closer in closers:
            closer.join(PATIENCE)
        assert not any(closer.is_alive() for closer in closers)


def test_a_forked_child_closes_while_the_parent_sends_a_key(tmp_path: Path) -> None:
    assert call(dedup_actors.fork_while_a_key_is_sent, str(tmp_path / "store")) == 0
