"""Which brokers to leave alone for a while: RocketMQ's latency table.

A slow answer makes a broker unavailable for a time that grows with how slow it was; a failed one counts
as if it had taken 10 s. An entry's time only ever moves later: a fast answer does not end a pause,
waiting does. Time comes in as an argument, in milliseconds of any clock that does not go back.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

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

    def record(
        self, broker: str, latency_ms: float, now_ms: float, *, failed: bool = False, reachable: bool = True
    ) -> None:
        """Take note of an attempt that ended now."""
        available_from = now_ms + pause_after(_FAILED_MS if failed else latency_ms)
        known = self._faults.get(broker)
        if known is None:
            self._faults[broker] = Fault(latency_ms, available_from, reachable)
            return
        self._faults[broker] = replace(
            known,
            latency_ms=latency_ms,
            available_from_ms=max(known.available_from_ms, available_from),
            reachable=reachable,
        )

    def is_available(self, broker: str, now_ms: float) -> bool:
        known = self._faults.get(broker)
        return known is None or now_ms >= known.available_from_ms

    def is_reachable(self, broker: str) -> bool:
        known = self._faults.get(broker)
        return known is None or known.reachable
