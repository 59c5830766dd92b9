"""The first message of a topic that nobody made: it makes the topic, unless it is refused or fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from mq.api.results import MessageQueue, SendResult
from mq.message import Message

__all__ = ["FirstSend", "Targets"]


class Targets(Protocol):
    """Knows where messages may go: see mq/broker/topics/registry.py."""

    def is_new(self, topic: str, queue_id: int, broker_name: str | None = None, /) -> bool:
        """Whether a message there makes the topic. Raises what forbids it, such as another broker's name."""
        ...

    def first_send(self, queues: Iterable[tuple[str, int]], /) -> AbstractContextManager[None]:
        """Have topics while a message is sent, and for good if that succeeds."""
        ...


class FirstSend:
    """In the place of an appender, or a preparer, of a queue whose topic is still to be made.

    check(message, body) raises what forbids the message wherever it goes; send stores it. One with a dedup
    key is left to keyed_send, if there is one.
    """

    def __init__(
        self,
        targets: Targets,
        queue: MessageQueue,
        check: Callable[[MessageQueue, Message, bytes], None],
        send: Callable[..., SendResult],
        keyed_send: Callable[..., SendResult] | None = None,
    ) -> None:
        self._targets = targets
        self._queue = queue
        self._check = check
        self._send = send
        self._keyed_send = keyed_send

    def __call__(
        self, message: Message, body: bytes, sys_flag: int, unique_id: str | None = None
    ) -> SendResult | None:
        topic, _, queue_id = self._queue
        if not self._targets.is_new(topic, queue_id):
            return None
        self._check(self._queue, message, body)
        if self._keyed_send is not None and not message.plain and message.dedup_key is not None:
            return self._keyed_send(message, body, sys_flag, unique_id)
        with self._targets.first_send([(topic, queue_id)]):
            return self._send(message, body, sys_flag, unique_id)
