"""Processes that have a store open while its files change under them."""

from __future__ import annotations

from pathlib import Path

import mq
from tests.damage.known import Known, Look
from tests.support.appending import append_one
from tests.support.processes.children import hear, say


def keep_looking(root: str, known: Known) -> dict[str, int]:
    """A look at everything for each line that it hears, through one broker that stays open; "end" ends it."""
    view = Look(root, known)
    with mq.open(root) as broker:
        say("open")
        while hear() != "end":
            view.delivered.clear()
            view.read(broker)
            say(str(len(view.delivered)))
    return view.errors


def send_through_damage(root: str, count: int) -> int:
    """How many of `count` messages were stored, each read back at once; errors of mq are no failure."""
    stored = 0
    with mq.open(root) as broker:
        say("open")
        hear()
        queue = broker.topic("orders").queues[0]
        for number in range(count):
            body = b"%d while files change" % number
            try:
                result = append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)
                messages = queue.read(result.queue_offset, count_max=1).messages
            except mq.MQError:
                continue
            if messages and messages[0].body != body:
                raise AssertionError(f"{body!r} came back as {messages[0].body!r}")
            stored += 1
    return stored


def files_of(root: str, parts: tuple[str, ...]) -> list[Path]:
    return [path for part in parts for path in sorted((Path(root) / part).rglob("*")) if path.is_file()]
