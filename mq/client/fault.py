"""Which brokers to leave alone for a while: RocketMQ's latency table.

The table is pure, and FaultAvoidance fills it: from a producer's attempts, and, with a detector, from probes
that the broker object sends in the background to a broker that failed.

A slow answer makes a broker unavailable for a time that grows with how slow it was; a failed one counts
as if it had taken 10 s. An entry's time only ever moves later: a fast answer does not end a pause,
waiting does. A broker that failed may also be unreachable: until a send to it succeeds, or a probe. The
table's times are arguments, in milliseconds of any clock that does not go back.

RocketMQ: client/latency/LatencyFaultToleranceImpl.java, MQFaultStrategy.java.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from mq.api.broker import Broker, MessageQueue
from mq.errors import MQError, RemotingError, RequestTimeout

# A latency of at least this many ms makes a broker unavailable for that many.
_PAUSES = ((50, 0), (100, 0), (550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (15_000, 30_000))
_LATENCIES = [latency for latency, _ in _PAUSES]
_FAILED_MS = 10_000


def pause_after(latency_ms: float) -> int:
    """For how long an answer that took latency_ms makes its broker unavailable."""
    at = bisect_right(_LATENCIES, latency_ms)
    return _PAUSES[at - 1][1] if at else 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is known of one broker."""

    latency_ms: float
    available_from_ms: float
    reachable: bool


class FaultTable:
    """What is known of every broker that was sent to. Entries are replaced, never changed, so readers of
    other threads see an old one or a new one."""

    def __init__(self) -> None:
        self._faults: dict[str, Fault] = {}
        self._lock = threading.Lock()  # held to change anything
        self._probed: set[str] = set()  # the brokers that are being probed

    def record(
        self, broker: str, latency_ms: float, now_ms: float, *, failed: bool = False, reachable: bool = True
    ) -> None:
        """Take note of an attempt that ended now."""
        available_from = now_ms + pause_after(_FAILED_MS if failed else latency_ms)
        with self._lock:
            known = self._faults.get(broker)
            if known is not None:
                available_from = max(known.available_from_ms, available_from)
            self._faults[broker] = Fault(latency_ms, available_from, reachable)

    def is_available(self, broker: str, now_ms: float) -> bool:
        known = self._faults.get(broker)
        return known is None or now_ms >= known.available_from_ms

    def is_reachable(self, broker: str) -> bool:
        known = self._faults.get(broker)
        return known is None or known.reachable

    def begin_probes(self, broker: str) -> bool:
        """Whether the caller has to have this broker probed: it is unreachable, and not probed yet."""
        with self._lock:
            if self.is_reachable(broker) or broker in self._probed:
                return False
            self._probed.add(broker)
            return True

    def end_probes(self, broker: str) -> None:
        """A probe of this broker succeeded, or there is nothing to be probed any more."""
        with self._lock:
            self._probed.discard(broker)
            known = self._faults.get(broker)
            if known is not None:
                self._faults[broker] = replace(known, reachable=True)


class FaultAvoidance:
    """What a producer learns of its brokers. From any thread.

    The probes refer to the table alone: they keep neither the producer nor its broker object. Without a
    detector, a broker that answered with an error is unreachable until a send to it succeeds.
    """

    def __init__(self, broker: Broker, *, has_detector: bool) -> None:
        self.table = FaultTable()
        self._broker = broker
        self._has_detector = has_detector
        self._probes: dict[str, Callable[[], object]] = {}  # by broker name: what ends them
        self._is_closed = False

    def note(self, queue: MessageQueue, started: float, failure: Exception | None) -> None:
        """Take note of an attempt that ended now; `started` is a time of monotonic()."""
        name, now_ms = queue.broker_name, monotonic() * 1000
        failed = isinstance(failure, (RemotingError, RequestTimeout))
        reachable = failure is None or not (was_answered(failure) or (failed and self._has_detector))
        self.table.record(name, now_ms - started * 1000, now_ms, failed=failed, reachable=reachable)
        if self._has_detector and not self._is_closed and self.table.begin_probes(name):
            self._probe(queue)

    def close(self) -> None:
        """Probe nothing more."""
        self._is_closed = True
        for end in list(self._probes.values()):
            end()

    def _probe(self, queue: MessageQueue) -> None:
        name = queue.broker_name
        try:
            end = self._probes[name] = self._broker.when_reachable(
                queue, partial(self.table.end_probes, name)
            )
        except MQError:  # The broker object was closed: no send comes after this one.
            self.table.end_probes(name)
            return
        if self._is_closed:
            end()


def was_answered(error: Exception) -> bool:
    """Whether the broker itself answered, with an error."""
    return isinstance(error, RemotingError) and error.code is not None
