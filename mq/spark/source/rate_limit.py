"""The rate limit of a trigger: by messages, by bytes, or by both.

Pure: no store, no clock. Every queue with a backlog gives at least one message, as far as the limit reaches;
the rest is shared in proportion to the backlogs. If the limit is smaller than the number of queues, they take
turns: `turn` is the queue that the next trigger begins with, so no queue starves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mq.api.results import MessageQueue
from mq.spark.source.ranges import Positions

__all__ = ["Admitted", "Fit", "admit", "admit_bytes"]

# (queue, start, end, bytes_max): the end of the records that fit into bytes_max, and their size in bytes.
Fit = Callable[[MessageQueue, int, int, int], tuple[int, int]]


class Admitted(NamedTuple):
    """The positions up to which messages are taken, and the queue whose turn is next."""

    positions: Positions
    turn: MessageQueue | None


def admit(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    rows_max: int | None,
    turn: MessageQueue | None = None,
) -> Admitted:
    """The positions after at most rows_max messages."""
    waiting = _waiting(start, end)
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return Admitted({queue: max(offset, start.get(queue, offset)) for queue, offset in end.items()}, turn)
    order = _order(waiting, turn)
    shares = dict.fromkeys(order[:rows_max], 1)
    if len(order) > rows_max:
        turn = order[rows_max]
    elif rest := rows_max - len(order):
        total -= len(order)
        parts = {queue: divmod((rows - 1) * rest, total) for queue, rows in waiting.items()}
        rest -= sum(whole for whole, _ in parts.values())
        # The remainder goes, one message each, to the queues that were rounded down most.
        by_rounding = sorted(waiting, key=lambda queue: (-parts[queue][1], queue))
        for queue, (whole, _) in parts.items():
            shares[queue] += whole
        for queue in by_rounding[:rest]:
            shares[queue] += 1
    return Admitted(
        {queue: start.get(queue, offset) + shares.get(queue, 0) for queue, offset in end.items()}, turn
    )


def admit_bytes(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    bytes_max: int,
    fit: Fit,
    turn: MessageQueue | None = None,
) -> Admitted:
    """The positions after as many messages as fit into bytes_max bytes.

    A single message larger than that comes alone.
    """
    waiting = _waiting(start, end)
    positions = {queue: max(offset, start.get(queue, offset)) for queue, offset in end.items()}
    order = _order(waiting, turn)
    at = {queue: start[queue] for queue in order}
    left, refused = bytes_max, None
    for queue in order:
        reached, size = fit(queue, at[queue], at[queue] + 1, left)
        if reached == at[queue] and refused is None:
            if queue is order[0]:
                at[queue] += 1
                turn = order[1] if len(order) > 1 else turn
                left = 0
                break
            refused = turn = queue
        at[queue], left = reached, left - size
    total, rest = sum(end[queue] - at[queue] for queue in order), left
    for queue in order:
        if total and left:
            share = min(left, rest * (end[queue] - at[queue]) // total)
            at[queue], size = fit(queue, at[queue], end[queue], share)
            left -= size
    for queue in sorted(order, key=lambda queue: at[queue] - end[queue]):
        if left:
            at[queue], size = fit(queue, at[queue], end[queue], left)
            left -= size
    return Admitted({**positions, **at}, turn)


def _waiting(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The backlog of each queue that has one."""
    return {
        queue: offset - start[queue] for queue, offset in end.items() if offset > start.get(queue, offset)
    }


def _order(waiting: Mapping[MessageQueue, int], turn: MessageQueue | None) -> list[MessageQueue]:
    order = sorted(waiting)
    if turn is None:
        return order
    return [queue for queue in order if queue >= turn] + [queue for queue in order if queue < turn]
