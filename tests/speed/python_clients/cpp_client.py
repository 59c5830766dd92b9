"""RocketMQ's Python client over its C++ library (`rocketmq` 0.4.4): rate and processor time a message.

A program for an interpreter of its own: cpp_client.py NAME_SERVER TOPIC COUNT SIZE. It sends COUNT messages
one by one, lets a new push consumer take them, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid

from rocketmq.client import Message, Producer, PushConsumer

CONSUME_SECONDS_MAX = 300.0


def main(name_server: str, topic: str, count: int, size: int) -> None:
    body = "x" * size
    producer = Producer("cpp")
    producer.set_namesrv_addr(name_server)
    producer.start()

    def send() -> None:
        message = Message(topic)
        message.set_body(body)
        producer.send_sync(message)

    send()
    sending = Span()
    for _ in range(count):
        send()
    answer = sending.figures("send", count)
    producer.shutdown()

    taken = 0
    done = threading.Event()

    def take(_: object) -> None:
        nonlocal taken
        taken += 1
        if taken == count:
            done.set()

    consumer = PushConsumer(f"cpp-{uuid.uuid4().hex}")
    consumer.set_namesrv_addr(name_server)
    consumer.subscribe(topic, take)
    consuming = Span()
    consumer.start()
    if not done.wait(CONSUME_SECONDS_MAX):
        sys.exit(f"{taken} of {count} messages came")
    print(json.dumps({**answer, **consuming.figures("consume", count)}), flush=True)
    # Its threads do not end.
    os._exit(0)


class Span:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, what: str, count: int) -> dict[str, float]:
        return {
            f"{what}_rate": count / (time.perf_counter() - self._begin),
            f"{what}_cpu_us": (time.process_time() - self._cpu) / count * 1e6,
        }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
