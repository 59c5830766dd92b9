"""A process that sends until it is killed: python -m tests.oracle.killed_sender DIR STOP_AT

It prints "ready" once the store is open, then a line for each acknowledged message, in order: queue id,
queue offset, unique id and offset id. After STOP_AT messages it kills itself; below 0 it never does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.oracle.sending import Sent, open_store, send_as_batch, send_one_by_one

TOPIC = "orders"
SINGLE_COUNT = 25
BATCH_COUNT = 7


def main(directory: Path, stop_at: int) -> None:
    broker = open_store(directory)
    broker.create_topic(TOPIC, queue_count=3)
    print("ready", flush=True)
    first = 0
    while first != stop_at:
        # A single send is told at once, a batch as a whole: as a sender knows it.
        for number in range(SINGLE_COUNT):
            tell(send_one_by_one(broker, TOPIC, first + number, 1))
        tell(send_as_batch(broker, TOPIC, first + SINGLE_COUNT, BATCH_COUNT))
        first += SINGLE_COUNT + BATCH_COUNT
    os.kill(os.getpid(), signal.SIGKILL)


def tell(sent: list[Sent]) -> None:
    for one in sent:
        line = [one.queue_id, one.queue_offset, one.msg_id, one.offset_msg_id]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
