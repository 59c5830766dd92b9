"""Whether a broker that failed can be reached again: it is probed every 2 s until it answers.

A probe asks the master for the end of a queue, and may take 200 ms. The event loop sends it: no thread, and
no timer while nothing is probed. A master that is in no known route any more is not probed.

RocketMQ: client/latency/LatencyFaultToleranceImpl.java, client/impl/producer/DefaultMQProducerImpl.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mq.api.results import MessageQueue
from mq.errors import MQError
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.namespace import Namespace
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.offsets import GetMaxOffset

__all__ = ["Reachability"]

log = logging.getLogger("mq.remoting")

DETECT_SECONDS = 2.0  # RocketMQ's detectInterval
PROBE_SECONDS = 0.2  # its detectTimeout


class Reachability:
    """The probes of one broker object."""

    def __init__(self, brokers: Brokers, namespace: Namespace) -> None:
        self._brokers = brokers
        self._namespace = namespace

    def when_reachable(self, queue: MessageQueue, reached: Callable[[], object]) -> Callable[[], object]:
        """See Queues.when_reachable."""
        self._brokers.remoting.check_open()
        probes = _Probes(self._brokers, self._namespace.wire_queue(queue), reached)
        self._brokers.remoting.events.post(probes.start)
        return probes.end


class _Probes:
    """The probes of one broker. The loop runs all but end()."""

    def __init__(self, brokers: Brokers, queue: MessageQueue, reached: Callable[[], object]) -> None:
        self._brokers = brokers
        self._queue = queue  # as on the wire
        self._reached = reached
        self._number = 0  # of the current probe; answers to earlier ones are dropped
        self._is_ended = False

    def start(self) -> None:
        self._later(DETECT_SECONDS, self._probe)

    def end(self) -> None:
        self._is_ended = True

    def _probe(self) -> None:
        name = self._queue.broker_name
        address = self._brokers.cluster.address(name)
        if self._is_ended:
            return
        if address is None:
            self._reached()
            return
        this = self._number

        def answered(answer: Frame | MQError) -> None:
            self._answered(answer, address, this)

        request = framed(GetMaxOffset(self._queue.topic, self._queue.queue_id))
        try:
            # Within the usual time limit, after which a silent connection is closed: 200 ms are too few.
            self._brokers.remoting.call_async(address, request, answered)
        except MQError as error:
            log.debug("broker %s is probed no more: %s", name, error)
            return
        self._later(PROBE_SECONDS, lambda: self._failed(this, f"{address} is silent"))

    def _answered(self, answer: Frame | MQError, address: str, this: int) -> None:
        if this != self._number:
            return
        try:
            if isinstance(answer, MQError):
                raise answer
            checked(answer, GetMaxOffset, address)
        except MQError as error:
            self._failed(this, error)
            return
        self._number += 1
        log.info("broker %s at %s can be reached again", self._queue.broker_name, address)
        self._reached()

    def _failed(self, this: int, why: object) -> None:
        if this == self._number:
            self._number += 1
            log.debug("broker %s cannot be reached: %s", self._queue.broker_name, why)
            self.start()

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        self._brokers.remoting.events.loop.call_later(seconds, call)
