"""When a lease is over: a right that its owner renews, and that passes on when it does not.

Ends of leases are nanoseconds of CLOCK_MONOTONIC, which stands still while the machine is suspended. Nobody
acts on a lapsed lease that was not seen so for a while: a machine that was halted evicts nobody.
"""

from __future__ import annotations

from mq.store.native import lib

__all__ = ["LEASE_MAX", "Lapse", "end_of", "grace", "is_over", "now_ns"]

LEASE_MAX = 3600.0  # seconds
LOOK_GAP = 1.0  # Looks that are farther apart tell nothing of what was in between.


def now_ns() -> int:
    return int(lib.mq_duties_now())


def end_of(lease: float) -> int:
    """When a lease of so many seconds is over that begins now."""
    return now_ns() + int(lease * 1e9)


def is_over(until: int, now: int) -> bool:
    """Whether a lease that was renewed until then is not any more. One in a distant future is damage."""
    return not now < until < now + int(LEASE_MAX * 1e9)


def grace(lease: float) -> float:
    """For how many seconds a lease must have been seen lapsed: longer than a live process takes to renew it
    once it runs again."""
    return min(max(lease / 10, 0.05), 1.0)


class Lapse:
    """What one process has seen of one lease. lease: how long its own are, in seconds."""

    def __init__(self, lease: float) -> None:
        self._grace = grace(lease)
        self._seen: object = None  # which one was over,
        self._since = 0  # since when, in looks that follow each other,
        self._looked_at = 0

    def is_sure(self, lapsed: object, now: int) -> bool:
        """Whether a lease has been seen lapsed for long enough. lapsed: what tells this lease, as it was
        renewed last, from any other; None for one that is not over."""
        if lapsed is None:
            self._seen = None
            return False
        gap = int((2 * self._grace + LOOK_GAP) * 1e9)
        if self._seen != lapsed or now - self._looked_at > gap:
            self._seen, self._since = lapsed, now
        self._looked_at = now
        return now - self._since >= int(self._grace * 1e9)
