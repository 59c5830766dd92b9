"""What a process runs that is stopped at a given line of joining a group, claiming a queue, or releasing it.

See tests/groups/test_stopped_changes.py.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import mq
from mq.api.group import Claim, Membership, Subscription
from mq.broker.groups.member_table import MemberTable
from mq.broker.local import LocalBroker

GROUP, TOPIC = "readers", "orders"
MODULES = "mq.broker.groups.", "mq.store.shared.group_file", "mq.store.shared.lease"


class Lines:
    """Counts the lines of what changes groups that a call runs, in any thread, and stops at one of them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.seen: list[str] = []
        self._stop_at = stop_at

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self.seen.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}:{frame.f_lineno}")
            if len(self.seen) - 1 == self._stop_at:
                signal.raise_signal(signal.SIGSTOP)  # Of this thread: it stops here.
        return self._line

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self._line if frame.f_globals.get("__name__", "").startswith(MODULES) else None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Of this thread alone: threads that run beside it have no part in the call."""
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)


class Joiner:
    """One member: what it does step by step, each in a thread that nothing is handed over from."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.membership: Membership | None = None
        self.claim: Claim | None = None

    def join(self) -> None:
        self.membership = self._broker.consumer_groups.join(
            GROUP,
            client_id="stopped",
            model="clustering",
            consume_type="push",
            ordered=False,
            subscriptions=[Subscription(TOPIC, "*")],
        )

    def subscribe(self) -> None:
        assert self.membership is not None
        self.membership.subscribe([Subscription(TOPIC, "*")])

    def take(self) -> None:
        assert self.membership is not None
        self.claim = self.membership.claim(mq.MessageQueue(TOPIC, self._broker.name, 0))

    def release(self) -> None:
        assert self.claim is not None
        self.claim.release()

    def leave(self) -> None:
        assert self.membership is not None
        self.membership.leave()

    def owns(self) -> bool:
        """Whether it may still consume of the queue, and whether it may commit."""
        return self.claim is not None and self.claim.is_current() and self.claim.commit(1)


STEPS = ("join", "subscribe", "take", "release", "leave")


def ready(broker: LocalBroker, step: str) -> Joiner:
    """One that has done everything before a step."""
    joiner = Joiner(broker)
    for before in STEPS[: STEPS.index(step)]:
        if before != "release":
            getattr(joiner, before)()
    return joiner


def run(call: Callable[[], object], stop_at: int = -1) -> list[str]:
    """Make a call in a thread of its own, and stop at a line of it. The lines that it ran."""
    lines, errors = Lines(stop_at), list[BaseException]()

    def traced() -> None:
        try:
            with lines.counted():
                call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=traced)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return lines.seen


def run_locked(call: Callable[[], object]) -> None:
    """Make a call, and stop while it has the group locked."""
    evict_dead = MemberTable.evict_dead

    def stopped(self: MemberTable, fd: int, pid: int | None = None) -> list[str]:
        signal.raise_signal(signal.SIGSTOP)
        return evict_dead(self, fd, pid)

    MemberTable.evict_dead = stopped  # type: ignore[method-assign]  # for this call
    try:
        call()
    finally:
        MemberTable.evict_dead = evict_dead  # type: ignore[method-assign]  # as above
