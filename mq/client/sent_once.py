"""What a producer with a dedup_window does with messages that have a key: see Directory.append_once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mq.api.local import directory
from mq.api.queues import OnceAppender
from mq.api.results import MessageQueue, SendResult
from mq.client.publish_routes import Routes
from mq.client.send_buffer import PendingSend
from mq.message import Message

__all__ = ["KeyedSend", "SentOnce"]

WINDOW_MAX = 1e9  # seconds; retention is what ends it before


class SentOnce:
    """window is in seconds; None where the producer has none, and refuses keys."""

    def __init__(self, broker: object, window: float | None) -> None:
        self._window_ms: int | None = None
        if window is not None:
            if isinstance(window, bool) or not isinstance(window, (int, float)):
                raise TypeError(f"dedup_window is a number of seconds, not {type(window).__name__}")
            if not 0 < window <= WINDOW_MAX:
                raise ValueError(
                    f"dedup_window is {window} s, must be more than 0 and at most {WINDOW_MAX:g}"
                )
            self._window_ms = max(1, int(window * 1000))
            self._directory = directory(broker, "dedup_window")

    @property
    def has_window(self) -> bool:
        return self._window_ms is not None

    @property
    def window_ms(self) -> int:
        """Raises ValueError where there is none."""
        if self._window_ms is None:
            raise ValueError(
                "a dedup_key or unique_id needs to be told how long it counts: mq.Producer(dedup_window=...)"
            )
        return self._window_ms

    def start(self, turns: dict[str, Any] | None, routes: Routes, topic: str) -> None:
        """Have the usual message of a topic that has a key sent in C from now on, in these turns."""
        if turns is not None and topic not in turns:
            turns[topic] = routes.appenders(topic, self._appender)

    def _appender(self, queue: MessageQueue) -> OnceAppender:
        return self._directory.once_appender(queue, self.window_ms)

    def storing(
        self,
        message: Message,
        body: bytes,
        sys_flag: int,
        key: str | None,
        given_id: str | None,
        wait: float,
    ) -> Callable[[MessageQueue, str | None], SendResult]:
        """A function that stores the message once, as often as it is called. Raises ValueError where there is
        no window."""
        window_ms = self.window_ms
        if key is None and not message.plain:
            key = message.dedup_key
        append_once = self._directory.append_once
        return lambda to, unique_id: append_once(
            to, message, body, sys_flag, key, window_ms, given_id or unique_id, wait
        )


class KeyedSend(PendingSend):
    """A message on its way that is stored once, and therefore not in a batch."""

    __slots__ = ("dedup_key", "unique_id")

    def __init__(
        self,
        message: Message,
        queue: MessageQueue,
        is_bound: bool,
        timeout: float,
        dedup_key: str | None,
        unique_id: str | None,
    ) -> None:
        super().__init__(message, queue, is_bound, timeout)
        self.dedup_key = dedup_key
        self.unique_id = unique_id
