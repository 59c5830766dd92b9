"""The lead of a consumer's threads: who has it, and who has lost it."""

from __future__ import annotations

import threading

import pytest

from mq.client.engine import thread_pool
from mq.client.engine.thread_pool import ThreadPool, Worker

SOON = 30.0  # for what is to happen at once


def test_a_leader_that_was_relieved_leads_no_more_beside_the_next_one() -> None:
    """The next one runs something brief by then: there would be two leaders, who rebalance both."""
    leads: dict[str, bool] = {}
    names = iter(["first", "second"])
    relieved, next_runs, first_is_over = threading.Event(), threading.Event(), threading.Event()
    second_is_over = threading.Event()
    lock = threading.Lock()

    def lead(worker: Worker) -> str | None:
        name = next(names, None)
        if name is not None:
            leads[name] = pool.perform_while_leading(name)
            (first_is_over if name == "first" else second_is_over).set()
        if second_is_over.is_set():
            with lock:
                pool.end()
        return None

    def perform(name: str) -> None:
        if name == "first":
            assert next_runs.wait(SOON)
        else:
            next_runs.set()
            assert first_is_over.wait(SOON)

    # Of two threads, none is left to relieve the second leader.
    pool = ThreadPool(
        "billing", 1, lock, lead=lead, take=lambda: None, perform=perform, stuck=lambda _: relieved.set()
    )
    pool.start()
    assert second_is_over.wait(SOON)
    pool.join(lambda: SOON)
    assert relieved.is_set()
    assert leads == {"first": False, "second": True}


def test_the_watcher_takes_no_work_of_its_own() -> None:
    """Nobody would relieve the leader, were that to hang as well."""
    relieved, is_over = threading.Event(), threading.Event()
    requests, lock = ["other"], threading.Lock()

    def lead(_worker: Worker) -> str | None:
        if not is_over.is_set():
            pool.perform_while_leading("brief")
        return None

    def take() -> str | None:
        return requests.pop() if requests and threading.current_thread().name.endswith("-2") else None

    def relieve(_request: str) -> None:
        relieved.set()
        is_over.set()

    def perform(_request: str) -> None:
        is_over.wait(SOON)

    pool = ThreadPool("billing", 1, lock, lead=lead, take=take, perform=perform, stuck=relieve)
    pool.start()
    is_relieved = relieved.wait(SOON)
    is_over.set()
    with lock:
        pool.end()
    pool.join(lambda: SOON)
    assert is_relieved


def test_a_watcher_that_leads_is_watched_over_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads where the one that it was to look after has given up the lead before its first look."""
    relieved, is_over = threading.Event(), threading.Event()
    names, lock, late = iter(["quick", "hangs"]), threading.Lock(), list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if thread.name.endswith(("-2", "-3")):  # The third one is to take the lead that was given up.
            late.append(thread)
        else:
            thread.start()

    def lead(_worker: Worker) -> str | None:
        name = next(names, None)
        if name is None:
            return None
        pool.perform_while_leading(name)
        if name == "hangs":
            return None
        with lock:
            pool.yield_lead()
        return "long"

    def perform(name: str) -> None:
        if name != "quick":
            if name == "long":
                late[0].start()
            is_over.wait(SOON)

    monkeypatch.setattr(thread_pool, "start", start)
    pool = ThreadPool(
        "billing", 3, lock, lead=lead, take=lambda: None, perform=perform, stuck=lambda _: relieved.set()
    )
    pool.start()
    is_relieved = relieved.wait(SOON)
    is_over.set()
    late[1].start()
    with lock:
        pool.end()
    pool.join(lambda: SOON)
    assert is_relieved
