"""What a Producer sees of a broker when its messages are half messages: each goes to the half topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mq.api.broker import Appender, Broker, MessageQueue

__all__ = ["HalfTopicBroker"]


class HalfTopicBroker:
    """Has what a producer asks of a broker, and no more."""

    def __init__(self, broker: Broker, group: str) -> None:
        self.name = broker.name
        self.message_size_max = broker.message_size_max
        self.route_version = broker.route_version
        self.publishable = broker.publishable
        self.appender: Callable[[MessageQueue], Appender] = partial(broker.transactions.preparer, group=group)
        self.oneway_appender = self.appender
        self._broker = broker

    def __repr__(self) -> str:
        return repr(self._broker)
