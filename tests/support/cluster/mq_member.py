"""Push consumers of mq as a process.

    python -m tests.support.cluster.mq_member ADDRESS TOPIC NAME GROUP=JOURNAL...

ADDRESS is that of a cluster, or a directory. A group whose name starts with "ordered" is consumed in order.
The begin and the end of each listener call are appended to the group's journal
(tests/support/cluster/journal.py). The process ends with its standard input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import mq
from tests.support.cluster.journal import write

WORK_SECONDS = 0.005  # of a listener: without it, two owners of a queue would hardly be seen


def listener(journal: Path, name: str) -> Callable[[mq.MessageExt], None]:
    def work(message: mq.MessageExt) -> None:
        words = message.broker_name, message.queue_id, message.queue_offset, message.body.decode()
        write(journal, "begin", name, *words)
        time.sleep(WORK_SECONDS)
        write(journal, "end", name, *words)

    return work


def main() -> None:
    address, topic, name, *journals = sys.argv[1:]
    with ExitStack() as stack:
        # A cluster on a machine under load may take longer than the default limit of a request.
        remote = address.startswith("rocketmq://")
        broker = stack.enter_context(mq.open(address, timeout=30.0) if remote else mq.open(address))
        for each in journals:
            group, _, journal = each.partition("=")
            consumer = stack.enter_context(
                mq.PushConsumer(broker, group, ordered=group.startswith("ordered"))
            )
            consumer.subscribe(topic, listener=listener(Path(journal), f"{name}-{group}"))
            consumer.start()
        print("started", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
