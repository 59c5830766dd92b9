"""Two things measured in turns, and the ratios of the pairs.

A slow minute of the machine falls on both halves of a pair, so a ratio of one pair says more than a ratio of
two medians taken apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.speed.spread import median

CHUNK_SECONDS = 0.002
CHUNK_COUNT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Measurement:
    """The samples of one case. `unit` is that of both sides; without a peer the samples stand for themselves.

    `context` holds further figures worth a line, each the median of what the turns gave.
    """

    unit: str
    ours: tuple[float, ...]
    peer: tuple[float, ...] = ()
    context: dict[str, float] = field(default_factory=dict)

    def figures(self) -> tuple[float, ...]:
        """One figure a round: ours / peer, or ours alone."""
        if not self.peer:
            return self.ours
        assert len(self.ours) == len(self.peer)
        return tuple(ours / peer for ours, peer in zip(self.ours, self.peer, strict=True))


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of one side measured, and what else it saw."""

    figure: float
    context: dict[str, float] = field(default_factory=dict)


def paired(
    unit: str,
    ours: Callable[[], Turn | float],
    peer: Callable[[], Turn | float],
    rounds: int,
    on_turn: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Ours, peer, ours, peer, ...: one pair to warm up, then `rounds` pairs that count."""
    assert rounds >= 1
    ours_turns: list[Turn] = []
    peer_turns: list[Turn] = []
    for number in range(rounds + 1):
        on_turn("warm-up" if number == 0 else f"round {number} of {rounds}")
        ours_turns.append(_turn(ours()))
        peer_turns.append(_turn(peer()))
    return Measurement(
        unit,
        tuple(turn.figure for turn in ours_turns[1:]),
        tuple(turn.figure for turn in peer_turns[1:]),
        _context("ours", ours_turns[1:]) | _context("peer", peer_turns[1:]),
    )


def alone(
    unit: str,
    ours: Callable[[], Turn | float],
    rounds: int,
    on_turn: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """One thing, held against a fixed limit: one turn to warm up, then `rounds` that count."""
    assert rounds >= 1
    turns: list[Turn] = []
    for number in range(rounds + 1):
        on_turn("warm-up" if number == 0 else f"round {number} of {rounds}")
        turns.append(_turn(ours()))
    return Measurement(unit, tuple(turn.figure for turn in turns[1:]), (), _context("ours", turns[1:]))


def rate(
    run: Callable[[int], int],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    chunk_count_max: int = CHUNK_COUNT_MAX,
) -> float:
    """Items a second of `run(count)`, which does up to `count` items and returns how many it did.

    Calls it for about `seconds`, or until it did fewer than asked. The clock is read once a chunk of about
    `CHUNK_SECONDS`, so that it costs nothing.
    """
    done, chunk = 0, 1
    begin = mark = clock()
    while True:
        did = run(chunk)
        now = clock()
        done += did
        if did < chunk or now - begin >= seconds:
            return done / (now - begin)
        if now - mark < CHUNK_SECONDS:
            chunk = min(chunk * 2, chunk_count_max)
        mark = now


def _turn(result: Turn | float) -> Turn:
    return result if isinstance(result, Turn) else Turn(result)


def _context(side: str, turns: list[Turn]) -> dict[str, float]:
    return {f"{side} {name}": median([turn.context[name] for turn in turns]) for name in turns[0].context}
