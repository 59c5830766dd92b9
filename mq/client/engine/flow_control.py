"""Flow control: when a queue has so much waiting here that no more is pulled. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mq.client.engine.process_queue import ProcessQueue

FULL_AGAIN = 0.75  # of a limit: below that a queue that was full is pulled from again


@dataclass(frozen=True, slots=True)
class Limits:
    """When to pull no more of a queue: messages, bytes, and offsets between the first and the last."""

    count_max: int
    size_max: int
    span_max: int | None

    def over(self, cache: ProcessQueue) -> str:
        """The limit that a queue is over, in words, or nothing."""
        if cache.count > self.count_max:
            return f"flow control: {cache.count:,} messages"
        if cache.size > self.size_max:
            return f"flow control: {cache.size >> 20:,} MiB"
        if self.span_max is not None and cache.next - cache.lowest > self.span_max:
            return f"flow control: {cache.next - cache.lowest:,} offsets from the lowest unconsumed on"
        return ""

    def still_full(self, cache: ProcessQueue) -> bool:
        """Whether it is too early to pull again from a queue that was over a limit."""
        return (
            cache.count > FULL_AGAIN * self.count_max
            or cache.size > FULL_AGAIN * self.size_max
            or (self.span_max is not None and cache.next - cache.lowest > self.span_max)
        )
