"""A producer: sends the events of its paths in order, at a given rate."""

import json
import time
import zlib

import mq
from examples.pipeline.plan import CHANGES, PRODUCER_COUNT, Plan
from examples.replay import kind_of, recorded_events

__all__ = ["produce"]


def produce(plan: Plan, number: int) -> None:
    started = time.monotonic()
    sent = 0
    with mq.open(plan.store) as broker, mq.Producer(broker, group="history") as producer:
        for event in recorded_events(plan.events):
            if zlib.crc32(event["path"].encode()) % PRODUCER_COUNT != number:
                continue
            due = started + sent * PRODUCER_COUNT / plan.rate
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            body = json.dumps(event).encode()
            message = mq.Message(CHANGES, body, tags=kind_of(event), keys=event["commit"])
            producer.send(message, shard_key=event["path"])
            sent += 1
