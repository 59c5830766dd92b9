"""A key whose handler was interrupted: two threads that free it leave what comes after it alone."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.once.handled_keys import LocalHandled
from tests.support.insides import set_claims

PATIENCE = 60.0
A_WHILE = 0.3  # seconds that the freeing thread stands still, if nothing has it go on before


def interrupt(once: mq.Once, key: str) -> None:
    """As an interrupt between the beginning and the body leaves it."""
    assert once(key).__enter__()


def is_taken(once: mq.Once, key: str) -> bool:
    """Whether no other thread gets it."""
    told: list[bool] = []

    def ask() -> None:
        try:
            with once(key):
                told.append(False)
        except mq.Retry:
            told.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    (answer,) = told
    return answer


class FreeingThread:
    """The first thread that is started to free a key. It stands still for a while where it is told to. There
    can be no further ones."""

    def __init__(self) -> None:
        self.stands = threading.Event()
        self._goes_on = threading.Event()
        self._ended = threading.Event()
        self._ident = 0
        self._start = _thread.start_new_thread

    def start(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> int:
        if not isinstance(getattr(function, "__self__", None), LocalHandled):
            return self._start(function, arguments)
        if self._ident:
            raise RuntimeError("can't start new thread")

        def run() -> None:
            self._ident = threading.get_ident()
            function(*arguments)
            self._ended.set()

        self._ident = -1  # until it runs
        return self._start(run, ())

    def stand_still(self) -> None:
        if threading.get_ident() == self._ident:
            self.stands.set()
            self._goes_on.wait(A_WHILE)

    def end(self) -> None:
        self._goes_on.set()
        assert self._ended.wait(PATIENCE)


@pytest.mark.parametrize("stands_still", ["before", "after"])
def test_a_late_thread_frees_no_later_claim(
    directory: Path, stands_still: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeing = FreeingThread()
    monkeypatch.setattr("mq.broker.once.handled_keys._thread.start_new_thread", freeing.start)

    class Claims(dict[bytes, Any]):
        """The freeing thread stands still as it takes a claim away."""

        def pop(self, digest: bytes, default: Any = None) -> Any:
            if stands_still == "before":
                freeing.stand_still()
            claim = super().pop(digest, default)
            if stands_still == "after":
                freeing.stand_still()
            return claim

    with mq.open(directory) as broker:
        once = mq.Once(broker, "billing", wait=0)
        set_claims(broker, "billing", Claims)
        interrupt(once, "first")
        assert freeing.stands.wait(PATIENCE)
        with once("first") as fresh:
            assert fresh
            interrupt(once, "second")
            freeing.end()
            assert is_taken(once, "first")
        with once("second") as fresh:
            assert fresh
        assert once.seen("first")
