"""Push consumers of mq as a process: `python -m tests.cluster.mq_member ADDRESS TOPIC NAME GROUP=JOURNAL...`

A group whose name starts with "ordered" is consumed in order. Each message that comes is appended to the
group's journal by one write, so that what several members write, killed or not, stands there in the order in
which it happened. The process ends with its standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack

import mq


def writer(journal: str, name: str) -> Callable[[mq.MessageExt], None]:
    lines = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def write(message: mq.MessageExt) -> None:
        line = f"{name} {message.broker_name} {message.queue_id} {message.queue_offset} "
        os.write(lines, line.encode() + message.body + b"\n")

    return write


def main() -> None:
    address, topic, name, *journals = sys.argv[1:]
    with ExitStack() as stack:
        broker = stack.enter_context(mq.open(address))
        for each in journals:
            group, _, journal = each.partition("=")
            consumer = stack.enter_context(
                mq.PushConsumer(broker, group, ordered=group.startswith("ordered"))
            )
            consumer.subscribe(topic, listener=writer(journal, name))
            consumer.start()
        print("started", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
