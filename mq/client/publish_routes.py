"""Where a topic can be sent to now, and whose turn it is.

What the broker said is kept until its route_version says that some topic has changed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from time import monotonic
from typing import TypeVar

from mq.api.broker import Broker, MessageQueue, Queue, queue_of_key
from mq.client.fault import FaultTable
from mq.client.listener import check_function
from mq.client.selector import Selector, next_but
from mq.message import Message

Made = TypeVar("Made")  # an appender


class RoundRobin(threading.local):
    """Round robin where the usual send does not choose: each thread goes through the queues of each topic on
    its own, from a random one on."""

    def __init__(self) -> None:
        # topic -> the version of the route that the turns are over, the next queue
        self.of_topic: dict[str, tuple[int, Callable[[], MessageQueue]]] = {}

    def start(self, topic: str, version: int, queues: Sequence[MessageQueue]) -> Callable[[], MessageQueue]:
        """Begin anew over these queues."""
        first = random.randrange(len(queues))
        turns: Iterator[MessageQueue] = islice(cycle(queues), first, None)
        self.of_topic[topic] = version, turns.__next__
        return turns.__next__


def _not_started() -> MessageQueue:
    raise AssertionError("turns are started before they are taken")


NOT_STARTED: tuple[int | None, Callable[[], MessageQueue]] = None, _not_started


class Routes:
    """The queues of each topic, and the choice among them."""

    def __init__(self, broker: Broker, selector: Selector | None, faults: FaultTable | None) -> None:
        self.round_robin = RoundRobin()
        self._broker = broker
        if selector is not None:
            check_function("selector", selector)
        self._selector = selector
        self._faults = faults
        self._known: dict[str, tuple[int, Sequence[MessageQueue]]] = {}

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """All queues to send to. Raises TopicNotFound or NotPermitted as the broker does."""
        return self._route(topic)[1]

    def restart(self, topic: str) -> Callable[[], MessageQueue]:
        """Start to go through the queues as they are now, from a random one on."""
        return self.round_robin.start(topic, *self._route(topic))

    def appenders(
        self, topic: str, of: Callable[[MessageQueue], Made]
    ) -> Iterator[tuple[MessageQueue, Made]]:
        """All queues with their appenders, which of() makes, in turn and without end, from a random one on.
        For all threads."""
        while True:
            version = self._broker.route_version()
            try:
                pairs = [(queue, of(queue)) for queue in self.queues(topic)]
                break
            except ValueError:
                if version == self._broker.route_version():
                    raise  # not because the topic has got fewer queues just now
        return islice(cycle(pairs), random.randrange(len(pairs)), None)

    def named(
        self, message: Message, queue: MessageQueue | Queue | None, shard_key: str | bytes | int | None
    ) -> MessageQueue | None:
        """The queue that the caller chose in one way or another, if any."""
        topic = message.topic
        if queue is not None:
            if shard_key is not None:
                raise ValueError("queue and shard_key both choose a queue: give one of them")
            chosen = queue.message_queue if isinstance(queue, Queue) else queue
            if not isinstance(chosen, MessageQueue):
                raise TypeError(f"queue is a MessageQueue, not {type(queue).__name__}")
            if chosen.topic != topic:
                raise ValueError(f"{chosen} is no queue of the message's topic {topic!r}")
            self.queues(topic)  # refuses what any other send would be refused
            return chosen
        if self._selector is not None:
            queues = self.queues(topic)
            chosen = self._selector(queues, message, shard_key)
            if chosen not in queues:
                raise ValueError(
                    f"the selector returned {chosen!r}, which is none of the queues it was given"
                )
            return chosen
        if shard_key is not None:
            return queue_of_key(self.queues(topic), shard_key)
        return None

    def choose(self, topic: str, last_broker: str | None = None) -> MessageQueue:
        """The next queue in turn; after a failed attempt preferably one of another broker than the last."""
        version, turn = self.round_robin.of_topic.get(topic, NOT_STARTED)
        if version != self._broker.route_version() or last_broker is not None:
            turn = self.restart(topic)
        if last_broker is None and self._faults is None:
            return turn()
        return next_but(turn, len(self.queues(topic)), last_broker, self._faults, monotonic() * 1000)

    def _route(self, topic: str) -> tuple[int, Sequence[MessageQueue]]:
        version = self._broker.route_version()
        known = self._known.get(topic)
        if known is None or known[0] != version:
            known = self._known[topic] = version, self._broker.publishable(topic)
        return known
