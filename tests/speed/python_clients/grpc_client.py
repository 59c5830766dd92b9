"""RocketMQ's Python client over gRPC (`rocketmq-python-client`): rate and processor time for each message.

A program for an interpreter of its own: grpc_client.py PROXY TOPIC COUNT SIZE. It sends COUNT messages one by
one, lets a simple consumer receive and acknowledge them, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid

from rocketmq import ClientConfiguration, Credentials, Message, Producer, SimpleConsumer

CONSUME_SECONDS_MAX = 300.0
RECEIVE_COUNT = 32
INVISIBLE_SECONDS = 60


def main(proxy: str, topic: str, count: int, size: int) -> None:
    body = b"x" * size
    configuration = ClientConfiguration(proxy, Credentials())
    producer = Producer(configuration, (topic,))
    producer.startup()

    def send() -> None:
        message = Message()
        message.topic = topic
        message.body = body
        producer.send(message)

    send()
    sending = Span()
    for _ in range(count):
        send()
    answer = sending.figures("send", count)
    producer.shutdown()

    consumer = SimpleConsumer(configuration, f"grpc-{uuid.uuid4().hex}")
    consumer.startup()
    consumer.subscribe(topic)
    taken = receive(consumer)
    consuming = Span()
    until = time.monotonic() + CONSUME_SECONDS_MAX
    begun = taken
    while taken < count:
        if time.monotonic() > until:
            sys.exit(f"{taken} of {count} messages came")
        taken += receive(consumer)
    print(json.dumps({**answer, **consuming.figures("consume", taken - begun)}), flush=True)
    os._exit(0)


def receive(consumer: SimpleConsumer) -> int:
    """Receive and acknowledge some messages."""
    for _ in range(30):
        try:
            messages = consumer.receive(RECEIVE_COUNT, INVISIBLE_SECONDS)
            break
        except Exception:  # noqa: BLE001 - its own errors, until the proxy knows the new consumer's settings
            time.sleep(1.0)
    else:
        sys.exit("the proxy answers no receive")
    for message in messages:
        consumer.ack(message)
    return len(messages)


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
