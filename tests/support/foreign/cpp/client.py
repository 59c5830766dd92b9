"""A producer and a consumer of RocketMQ's Python client over its C++ library, told what to do by their
arguments, for an interpreter that has `rocketmq` 0.4.4. They print a JSON object for each thing
that happened.

    client.py send    NAME_SERVER TOPIC WAY BODY...
                                    WAY: sync, async, oneway, batch, orderly, delayed, or a tag
    client.py consume NAME_SERVER GROUP TOPIC MODEL KIND EXPRESSION [FAILING]
                                    MODEL: clustering, broadcasting, orderly; KIND: tag; until stdin ends
    client.py pull    NAME_SERVER GROUP TOPIC COUNT
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from rocketmq.client import Message, MessageModel, Producer, PullConsumer, PushConsumer

FIVE_SECONDS = 2  # delay level
WAIT_SECONDS = 60


def say(**what: Any) -> None:
    # One write: several threads of the library say something at a time.
    os.write(1, json.dumps(what).encode() + b"\n")


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def sent(result: Any) -> None:
    say(sent=result.msg_id, status=int(result.status), offset=result.offset)


def came(message: Any) -> None:
    say(
        body=text(message.body), tag=text(message.tags), keys=text(message.keys), queue=message.queue_id,
        offset=message.queue_offset, times=message.reconsume_times,
    )  # fmt: skip


def message_of(topic: str, body: str, way: str) -> Any:
    message = Message(topic)
    message.set_keys(body)
    message.set_body(body)
    if way == "delayed":
        message.set_delay_time_level(FIVE_SECONDS)
    elif way not in ("sync", "async", "oneway", "batch", "orderly"):
        message.set_tags(way)
    return message


def send(name_server: str, topic: str, way: str, *bodies: str) -> None:
    producer = Producer(
        "cpp-producers", timeout=30_000
    )  # of ms; a busy machine may take longer than three seconds
    producer.set_namesrv_addr(name_server)
    producer.start()
    messages = [message_of(topic, body, way) for body in bodies]
    if way == "batch":
        sent(producer.send_batch(messages))
    elif way == "async":
        under = threading.Semaphore(0)

        def arrived(result: Any) -> None:
            sent(result)
            under.release()

        for message in messages:
            producer.send_async(message, arrived, print)
        for _ in messages:
            assert under.acquire(timeout=WAIT_SECONDS)
    else:
        for message in messages:
            if way == "oneway":
                producer.send_oneway(message)
            elif way == "orderly":
                sent(producer.send_orderly(message, 1))
            else:
                sent(producer.send_sync(message))
    producer.shutdown()


def consume(
    name_server: str, group: str, topic: str, model: str, kind: str, expression: str, failing: str = ""
) -> None:
    assert kind == "tag", "this client selects by tags alone"
    chosen = MessageModel.BROADCASTING if model == "broadcasting" else MessageModel.CLUSTERING
    consumer = PushConsumer(group, orderly=model == "orderly", message_model=chosen)
    consumer.set_namesrv_addr(name_server)

    def take(message: Any) -> None:
        came(message)
        if failing and text(message.body) == failing:
            raise ValueError(failing)

    consumer.subscribe(topic, take, expression)
    consumer.start()
    say(started=group)
    sys.stdin.read()
    consumer.shutdown()


def pull(name_server: str, group: str, topic: str, count: str) -> None:
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(name_server)
    consumer.start()
    taken = 0
    while taken < int(count):
        for message in consumer.pull(topic):
            came(message)
            taken += 1
    consumer.shutdown()


if __name__ == "__main__":
    {"send": send, "consume": consume, "pull": pull}[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]  # by name
    # The library's threads do not end.
    os._exit(0)
