"""Forked processes for a case: work in a child, and several that run together.

A broker is never carried over a fork: a child opens its own, and the process that forks has none open.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tests.speed.peers.queue import Sender

ResultT = TypeVar("ResultT")
JOIN_SECONDS = 120.0

_fork = multiprocessing.get_context("fork")


class ChildFailed(Exception):
    """A child raised, or died without a word."""


def in_child(work: Callable[[], ResultT]) -> ResultT:
    """The result of `work()`, run in a forked child."""
    return together([lambda _: work()])[0]


def together(jobs: Sequence[Callable[[Callable[[], object]], ResultT]]) -> list[ResultT]:
    """Run each job in a child of its own and return their results, in order.

    A job gets `ready`: it returns once every job has called it as often, so that all begin at the same time.
    """
    barrier = _fork.Barrier(len(jobs))
    pipes = [_fork.Pipe(duplex=False) for _ in jobs]
    children: list[multiprocessing.context.ForkProcess] = []
    for job, (_, sending) in zip(jobs, pipes, strict=True):
        child = _fork.Process(target=_run, args=(job, barrier.wait, sending), daemon=True)
        child.start()
        children.append(child)
        sending.close()
    try:
        return _results([receiving for receiving, _ in pipes])
    finally:
        barrier.abort()
        for child in children:
            child.join(JOIN_SECONDS)
            if child.is_alive():
                child.kill()
                child.join()


def killed_while(work: Callable[[Callable[[], object]], object], seconds: float) -> None:
    """Run `work` in a child and kill -9 it `seconds` after it called `ready`."""
    started = _fork.Event()
    child = _fork.Process(target=work, args=(started.set,), daemon=True)
    child.start()
    while not started.wait(0.1):
        if child.exitcode is not None:
            raise ChildFailed(f"the child ended by itself, exit code {child.exitcode}")
    time.sleep(seconds)
    if child.exitcode is not None:
        raise ChildFailed(f"the child ended by itself, exit code {child.exitcode}")
    child.kill()
    child.join()


def total_rate(
    open_sender: Callable[[], Sender], *, processes: int, threads: int, seconds: float, chunk_count: int
) -> float:
    """Messages a second of `threads` in each of `processes`, all sending for `seconds`.

    Counted over the whole time from the first that began to the last that ended.
    """

    def job(ready: Callable[[], object]) -> list[tuple[int, float, float]]:
        sender = open_sender()
        sender.send_each(1)

        def send() -> tuple[int, float, float]:
            begin, done = time.perf_counter(), 0
            while True:
                done += sender.send_each(chunk_count)
                if (now := time.perf_counter()) - begin >= seconds:
                    return done, begin, now

        with ThreadPoolExecutor(threads, thread_name_prefix="sender") as crew:
            ready()
            spans = [sending.result() for sending in [crew.submit(send) for _ in range(threads)]]
        # No process closes while others still send: closing is not measured.
        ready()
        sender.close()
        return spans

    spans = [span for result in together([job] * processes) for span in result]
    begin, end = min(begin for _, begin, _ in spans), max(end for _, _, end in spans)
    assert len(spans) == processes * threads
    return sum(done for done, _, _ in spans) / (end - begin)


def allow_files() -> None:
    """Let this process, and those that it starts, have as many files open as it may, not 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(
    job: Callable[[Callable[[], object]], Any], ready: Callable[[], object], sending: Connection
) -> None:
    try:
        sending.send((True, job(ready)))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent raises it
        sending.send((False, f"{type(error).__name__}: {error}"))
    sending.close()
    # Nothing of the parent is this child's to clean up.
    os._exit(0)


def _results(pipes: list[Connection]) -> list[Any]:
    """What came through each pipe. The first failure is raised at once: the others may be waiting for it."""
    results: dict[Connection, Any] = {}
    while len(results) < len(pipes):
        for receiving in connection.wait([pipe for pipe in pipes if pipe not in results]):
            assert isinstance(receiving, Connection)
            try:
                done, value = receiving.recv()
            except EOFError:
                raise ChildFailed("the child died") from None
            if not done:
                raise ChildFailed(value)
            results[receiving] = value
    return [results[pipe] for pipe in pipes]
