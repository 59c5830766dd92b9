"""A local mirror of one queue: what was pulled and not consumed yet, and what may be committed. Pure.

Messages are kept as they were pulled, many side by side, and handed out as runs. A run is one thread's
to work through. What may be committed is the lowest offset that is not consumed: when everything is, the
next one to pull, so that stretches which a filter left out are committed too.

    pulled:       put           ready, in the order of the queue
    ready:        take          open, in somebody's hands; the rest of it can be cut off and is ready again
    open:         finish        consumed; what was not is ready again at once, or held until its time
    giving up:    drain         forgets what nobody has begun; the holes below what was consumed stay

Its user has a lock around it. Only `left` of a run is taken from without one: an iterator gives each
message to one thread.

A signal handler may raise between any two steps. A message that is not consumed is in two places then sooner
than in none. So what `lowest` says holds at any moment, and a cache that begins there again has all of them.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from mq.message import MessageExt

_record_of = attrgetter("record")
_begin_of = attrgetter("begin")
_due_of = attrgetter("due")


def _never() -> bool:
    return False


class MessageRun:
    """Messages of one queue, in order. `left` gives those that are still to be begun.

    `started` is when it was taken, `due` when it may be (0: at any time). `failed` are those of its messages
    that are not consumed so far. `is_void` says that its result is not wanted any more. `batch` messages are
    given to the listener at a time.
    """

    __slots__ = (
        "batch",
        "begin",
        "cut_off",
        "due",
        "failed",
        "is_dense",
        "is_lost",
        "is_void",
        "left",
        "messages",
        "size",
        "started",
    )

    def __init__(self, begin: int, messages: list[MessageExt], is_dense: bool, size: int) -> None:
        self.begin = begin
        self.messages = messages
        self.is_dense = is_dense  # every offset from `begin` on has its message here
        self.size = size  # in bytes, about
        self.left: Iterator[MessageExt] = iter(messages)
        self.cut_off: list[MessageExt] = []  # of what was left, until it is ready again
        self.started = 0.0
        self.due = 0.0
        self.failed: list[MessageExt] = []
        self.batch = 1
        self.is_void = False
        self.is_lost: Callable[[], bool] = _never

    @property
    def end(self) -> int:
        """The offset after the last message."""
        messages = self.messages
        if self.is_dense or not messages:
            return self.begin + len(messages)
        return messages[-1].queue_offset + 1

    @property
    def in_hand(self) -> list[MessageExt]:
        """The messages that are with the listener, if it is at it and all of the run is begun: the last."""
        messages = self.messages
        return messages[(len(messages) - 1) // self.batch * self.batch :]

    def rest(self, count: int) -> MessageRun:
        """A run of the messages after the first so many, which are in this one still: see shorten."""
        messages = self.messages
        rest = messages[count:]
        begin = self.begin + count if self.is_dense else rest[0].queue_offset
        return MessageRun(begin, rest, self.is_dense, self.size * len(rest) // len(messages))

    def shorten(self, rest: MessageRun) -> None:
        """Take out what is in the run after this one."""
        del self.messages[-len(rest.messages) :]
        self.size -= rest.size


class ProcessQueue:
    """The messages of one queue between being pulled and being consumed."""

    __slots__ = ("_held", "_weighs", "begun", "count", "held_size", "next", "open", "ready", "size")

    def __init__(self, offset: int, *, weighs: bool = True) -> None:
        self._weighs = weighs  # False: nobody asks for `size`, which stays 0
        self.next = offset  # to be pulled
        self.count = 0  # messages in here
        self.size = 0  # their bytes
        self.open: list[MessageRun] = []  # in somebody's hands, by offset
        self.ready: deque[MessageRun] = deque()  # nobody has begun them; by offset
        self._held: list[MessageRun] = []  # wait for their time, by that; of one message each
        self.held_size = 0  # their bytes, whether or not it weighs
        self.begun = offset  # the end of what anybody ever took

    def put(self, messages: list[MessageExt], end: int) -> None:
        """Take in what was pulled from `next` on: these are all that are wanted before `end`."""
        if messages:
            begin = self.next
            is_dense = len(messages) == end - begin
            if not is_dense:
                begin = messages[0].queue_offset
            size = sum(map(len, map(_record_of, messages))) if self._weighs else 0
            self.ready.append(MessageRun(begin, messages, is_dense, size))
            self.count += len(messages)
            self.size += size
        self.next = end

    def take(self, count_max: int, now: float) -> MessageRun | None:
        """The next messages to consume, at most so many; None where there are none, or their time has not
        come."""
        is_held = bool(self._held) and self._held[0].due <= now
        if is_held:
            run = self._held[0]
        elif self.ready:
            run = self.ready[0]
        else:
            return None
        run.started = now
        opened = self.open
        if not opened or opened[-1].begin < run.begin:
            opened.append(run)
        else:
            insort(opened, run, key=_begin_of)
        if is_held:
            self._held.pop(0)
            self.held_size -= len(run.messages[0].record)
        elif len(run.messages) > count_max:
            self.ready[0] = rest = run.rest(count_max)
            run.shorten(rest)
        else:
            self.ready.popleft()
        if run.begin >= self.begun:
            self.begun = run.end
        return run

    def finish(self, run: MessageRun, again: Sequence[MessageExt] = (), due: float | None = None) -> None:
        """A run is consumed, but for the messages `again`. With `due` each of these is taken again from then
        on; without it they, which are then the run's last, come next."""
        messages = run.messages
        size = run.size
        if again:
            share = size // len(messages)
            size -= share * len(again)
            if due is not None:
                for message in again:
                    self._hold(message, share, due)
            else:
                begin = again[0].queue_offset
                if self.begun == run.end:
                    self.begun = begin
                self._put_back(MessageRun(begin, list(again), False, share * len(again)))
        self.open.remove(run)
        self.count -= len(messages) - len(again)
        self.size -= size

    def cut(self, run: MessageRun) -> None:
        """Take from a run what is not begun: it is ready again. A thread at work on it finds no more."""
        cut_off, messages = run.cut_off, run.messages
        cut_off.extend(run.left)  # One call of C: see above.
        if cut_off:
            if messages and messages[-1] is cut_off[-1]:  # Else that was done by a call that was cut short.
                is_last = self.begun == run.end
                rest = run.rest(len(messages) - len(cut_off))
                if is_last:
                    self.begun = rest.begin
                if all(each.begin != rest.begin for each in self.ready):
                    self._put_back(rest)
                run.shorten(rest)
            run.cut_off = []

    def settle(self, run: MessageRun, in_hand: int) -> None:
        """All messages of a run but the last `in_hand` are consumed."""
        messages = run.messages
        done = len(messages) - in_hand
        if done > 0:
            size = run.size * in_hand // len(messages)
            run.begin = messages[done].queue_offset
            run.messages = messages[done:]
            self.count -= done
            self.size -= run.size - size
            run.size = size

    def drain(self) -> None:
        """Forget what nobody has begun, for another to pull. What lies below something begun is kept, and
        must be consumed before the queue can be given up: otherwise that would be delivered twice."""
        for run in self.open:
            if run.end == self.begun:
                self.cut(run)
                break
        while self.ready and self.ready[-1].begin >= self.begun:
            run = self.ready[-1]
            self.next = run.begin
            self.ready.pop()
            self.count -= len(run.messages)
            self.size -= run.size

    @property
    def lowest(self) -> int:
        """The lowest offset that is not consumed: what may be committed."""
        lowest = self.next
        if self.ready:
            lowest = self.ready[0].begin
        for run in self.open:
            if run.messages:  # All of it may have been cut off before any was begun.
                lowest = min(lowest, run.begin)
                break
        for run in self._held:
            lowest = min(lowest, run.begin)
        return lowest

    @property
    def given(self) -> int:
        """Where the next that is handed out begins."""
        return self.ready[0].begin if self.ready else self.next

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken in is consumed."""
        return not self.ready and not self._held and not any(run.messages for run in self.open)

    def can_take(self, now: float) -> bool:
        return bool(self.ready) or bool(self._held and self._held[0].due <= now)

    @property
    def held_count(self) -> int:
        """How many messages wait for their time."""
        return len(self._held)

    @property
    def due(self) -> float | None:
        """When the first of those that are held may be taken."""
        return self._held[0].due if self._held else None

    def offsets(self) -> set[int]:
        """The offsets of all messages in here."""
        runs = chain(self.open, self.ready, self._held)
        return {message.queue_offset for run in runs for message in run.messages}

    def _hold(self, message: MessageExt, size: int, due: float) -> None:
        run = MessageRun(message.queue_offset, [message], True, size)
        run.due = due
        self.held_size += len(message.record)
        insort(self._held, run, key=_due_of)

    def _put_back(self, run: MessageRun) -> None:
        place = sum(each.begin < run.begin for each in self.ready)
        self.ready.insert(place, run)
