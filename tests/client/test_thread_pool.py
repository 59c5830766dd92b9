"""The lead of a consumer's threads: who has it, and who has lost it."""

from __future__ import annotations

import threading

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
