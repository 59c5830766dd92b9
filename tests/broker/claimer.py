"""A process that joins, claims, commits, releases and leaves at random until it is killed, and says so.

    python -m tests.broker.claimer DIRECTORY SEED TRACE

Lines of the trace: pid, what, queue id, committed offset. "enter" comes after a claim was had, "exit" before
it is released: what the trace shows to overlap did overlap.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import mq
from mq.api.group import Claim, Subscription


class Claimer:
    def __init__(self, directory: Path, seed: int, trace: Path) -> None:
        self._random = random.Random(seed)
        self._broker = mq.open(directory)
        self._queues = [queue.message_queue for queue in self._broker.topic("orders").queues]
        self._trace = os.open(trace, os.O_WRONLY | os.O_APPEND)
        self._held: dict[mq.MessageQueue, Claim] = {}

    def _say(self, what: str, claim: Claim) -> None:
        line = f"{os.getpid()} {what} {claim.queue.queue_id} {claim.committed() or 0}\n"
        os.write(self._trace, line.encode())

    def live(self, name: str) -> None:
        """Be a member for a while."""
        membership = self._broker.consumer_groups.join(
            "billing",
            client_id=name,
            model="clustering",
            consume_type="push",
            ordered=False,
            subscriptions=[Subscription("orders")],
        )
        waiter = self._broker.waiter()
        for _ in range(self._random.randrange(5, 60)):
            version = membership.version()
            assert name in [member.client_id for member in membership.members()]
            queue = self._random.choice(self._queues)
            claim = self._held.pop(queue, None)
            if claim is not None and self._random.random() < 0.5:
                self._say("exit", claim)
                claim.release()
                continue
            if claim is None and (claim := membership.claim(queue)) is not None:
                self._say("enter", claim)
            if claim is None:
                waiter.wait([], [(membership, version)], 0.01)
                continue
            self._held[queue] = claim
            for _ in range(self._random.randrange(1, 20)):
                assert claim.commit((claim.committed() or 0) + 1)
            self._say("at", claim)
        for claim in self._held.values():
            self._say("exit", claim)
        self._held.clear()
        membership.leave()


if __name__ == "__main__":
    claimer = Claimer(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    life = 0
    while True:
        life += 1
        claimer.live(f"{os.getpid()}-{life}")
