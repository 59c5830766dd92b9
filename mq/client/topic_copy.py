"""Copying a topic from one broker to another: a directory to a cluster, and back.

Each queue is copied into the queue of the same place in line, in its order, by one thread: body, tag, keys,
properties and the unique id stay; times, offsets and what RocketMQ adds of its own are the target's. A copy
that died goes on after the messages that the target's queue has last, which it finds on the source by their
unique ids: at the offset of a consumer group, as a rule. So the target's topic is this copy's alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Reversible, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from time import monotonic, sleep
from typing import Final, NamedTuple

from mq.api.broker import READ_SIZE_MAX, Broker, MessageQueue
from mq.api.queues import Puller
from mq.errors import NotPermitted, TopicNotFound
from mq.message import Message, MessageExt
from mq.properties import OWN_NAMES, RESERVED_NAMES, TRANSIENT_PREFIX

__all__ = ["CopiedQueue", "TopicCopy"]

BATCH_COUNT = 32
THREADS_MAX = 8
SHOWN_SECONDS = 30.0
COMPRESSION_FLAGS = 0x701  # of sys_flag: whether the body is compressed, and how


class CopiedQueue(NamedTuple):
    """What became of one queue: messages copied now, those there are in the target's queue, and those that
    the source deleted before they were copied."""

    source: MessageQueue
    target: MessageQueue
    copied: int
    there: int
    lost: int


class TopicCopy:
    """`group` is the consumer group on the source that remembers how far the copy is.

    progress is called with a number of messages, now and then and from several threads, which are copied by
    now, or were by an earlier run.
    """

    def __init__(
        self,
        source: Broker,
        target: Broker,
        topic: str,
        *,
        group: str,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._topic = topic
        self._group = group
        self._progress = progress
        self._is_over = threading.Event()
        self.queues: Final = self._paired()
        self.ends: Final = {queue: source.max_offset(queue) for queue, _ in self.queues}
        self.begins: Final = {queue: source.min_offset(queue) for queue, _ in self.queues}

    @property
    def total(self) -> int:
        """How many messages there are to copy, those of earlier runs included."""
        return sum(self.ends.values()) - sum(self.begins.values())

    def run(self) -> list[CopiedQueue]:
        """Copy what the source holds now. Raises NotPermitted where the target's topic has other messages,
        or in the end another number; and what sending and reading do. The next run goes on from there."""
        with ThreadPoolExecutor(min(THREADS_MAX, len(self.queues)), "mq-copy") as threads:
            begun = [threads.submit(self._copy, *pair) for pair in self.queues]
            try:
                return [each.result() for each in begun]
            except BaseException:
                self._is_over.set()
                raise

    def _paired(self) -> list[tuple[MessageQueue, MessageQueue]]:
        """The queues of both ends, in line. The target's topic is made where it is not there."""
        sources = sorted(self._source.readable(self._topic))
        try:
            topic = self._target.topic(self._topic)
        except TopicNotFound:
            topic = self._target.create_topic(self._topic, len(sources))
        targets = sorted(queue.message_queue for queue in topic.queues)
        if len(targets) < len(sources):
            raise NotPermitted(
                f"topic {self._topic!r} has {len(targets)} queues on the target and {len(sources)} on the"
                " source: give it as many, so that the order within each queue stays"
            )
        return list(zip(sources, targets, strict=False))

    def _copy(self, source: MessageQueue, target: MessageQueue) -> CopiedQueue:
        claim = self._source.consumer_groups.assigned(self._group).claim(source)
        pull, append = self._source.puller(source), self._target.appender(target)
        end = self.ends[source]
        before = self._target.max_offset(target) - self._target.min_offset(target)
        offset, lost = self._resumed(source, target, claim.committed())
        claim.correct(offset)
        self._progress(offset - self.begins[source])
        copied = 0
        while offset < end and not self._is_over.is_set():
            found = pull(offset, min(BATCH_COUNT, end - offset), READ_SIZE_MAX, None, 0.0)
            if found.next_offset <= offset:
                break
            for message in found.messages:
                while append(*_sendable(message)) is None:
                    append = self._target.appender(target)
            copied += len(found.messages)
            lost += found.next_offset - offset - len(found.messages)
            self._progress(found.next_offset - offset)
            offset = found.next_offset
            claim.commit(offset)
        claim.release()
        there = self._there(target, before + copied)
        if there != before + copied:
            raise NotPermitted(
                f"{target.topic}/{target.queue_id} had {before:,} messages, {copied:,} were copied, and it"
                f" has {there:,}: somebody else sends to it, so the copy is no copy"
            )
        return CopiedQueue(source, target, copied, there, lost)

    def _there(self, target: MessageQueue, expected: int) -> int:
        """How many messages the target's queue has. A cluster's broker shows one some ms after it took it."""
        deadline = monotonic() + SHOWN_SECONDS
        while True:
            there = self._target.max_offset(target) - self._target.min_offset(target)
            if there >= expected or monotonic() > deadline:
                return there
            sleep(0.005)

    def _resumed(self, source: MessageQueue, target: MessageQueue, committed: int | None) -> tuple[int, int]:
        """Where to go on, and how many messages before that the source deleted uncopied: after the message
        that the target's queue has last. The committed offset says where that probably is; a copy that was
        killed may have stored more, and the target may be another one."""
        begin = self.begins[source]
        if self._target.max_offset(target) == 0:
            return begin, 0
        tail = self._last_ids(target)
        after = self._after(source, tail, committed) if tail else None
        if after is not None:
            return after, 0
        # What the target has last, retention has taken: here, or there.
        if committed is not None and (not tail or committed <= begin > 0):
            return max(begin, committed), max(0, begin - committed)
        raise NotPermitted(
            f"topic {self._topic!r} of the target has messages that are not of this copy, {tail[-1:]} last:"
            " copy to a target without the topic"
        )

    def _after(self, source: MessageQueue, tail: Sequence[str], committed: int | None) -> int | None:
        """The queue offset after the messages with these unique ids, or the last of them that the source has
        in a row. An id may be there more than once."""
        begin, pull = self.begins[source], self._source.puller(source)
        expected = (committed or 0) - len(tail)
        if expected >= begin and _ids(pull, expected, expected + len(tail)) == tail:
            return committed
        offset, seen, most, after = begin, deque[str](maxlen=len(tail)), 0, None
        while offset < self.ends[source] and most < len(tail):
            found = pull(offset, BATCH_COUNT, READ_SIZE_MAX, None, 0.0)
            for message in found.messages:
                seen.append(message.msg_id)
                if (count := _common(seen, tail)) > most:
                    most, after = count, message.queue_offset + 1
            if found.next_offset <= offset:
                break
            offset = found.next_offset
        return after

    def _last_ids(self, target: MessageQueue) -> list[str]:
        """The unique ids of the newest messages that the target's queue has, the newest last."""
        end = self._target.max_offset(target)
        begin = max(self._target.min_offset(target), end - BATCH_COUNT)
        return _ids(self._target.puller(target), begin, end)


def _ids(pull: Puller, begin: int, end: int) -> list[str]:
    """The unique ids of the messages of a queue in [begin, end)."""
    found: list[str] = []
    while begin < end:
        page = pull(begin, end - begin, READ_SIZE_MAX, None, 0.0)
        found += [message.msg_id for message in page.messages]
        if page.next_offset <= begin:
            break
        begin = page.next_offset
    return found


def _common(ids: Reversible[str], others: Reversible[str]) -> int:
    """How many of the last ones are the same."""
    pairs = zip(reversed(ids), reversed(others), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _sendable(message: MessageExt) -> tuple[Message, bytes, int, str]:
    """What an appender is given: the message as its producer had it, but for a delay, which is over; its
    body as it is stored, how that is compressed, and its unique id."""
    body = message.stored_body
    sent = Message(
        message.topic,
        body,
        tags=message.tags,
        keys=message.keys,
        properties=_own_properties(message),
        flag=message.flag,
        dedup_key=message.dedup_key,
    )
    return sent, body, message.sys_flag & COMPRESSION_FLAGS, message.msg_id


def _own_properties(message: MessageExt) -> dict[str, str]:
    """What the producer gave as such."""
    return {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_NAMES and name not in OWN_NAMES and not name.startswith(TRANSIENT_PREFIX)
    }
