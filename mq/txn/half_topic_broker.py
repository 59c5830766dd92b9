"""What a Producer sees of a broker when its messages are half messages: each goes to the half topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mq.api.broker import Appender, Appenders, Broker, MessageQueue, SendResult
from mq.message import Message

__all__ = ["HalfTopicBroker"]


class HalfTopicBroker:
    """Has what a producer asks of a broker, and no more."""

    def __init__(self, broker: Broker, group: str) -> None:
        self.name = broker.name
        self.message_size_max = broker.message_size_max
        self.route_version = broker.route_version
        self.publishable = broker.publishable
        self.appender: Callable[[MessageQueue], Appender] = partial(broker.transactions.preparer, group=group)
        self._broker = broker
        self._prepare = Appenders(self.appender)

    def append_once(
        self,
        queue: MessageQueue,
        message: Message,
        body: bytes,
        sys_flag: int,
        _key: str | None,
        window_ms: int,
        unique_id: str | None = None,
        _wait: float = 0.0,
    ) -> SendResult:
        """A message with a dedup key: a transaction begins in any case."""
        assert not window_ms
        return self._prepare(queue, message, body, sys_flag, unique_id)

    def __repr__(self) -> str:
        return repr(self._broker)
