"""What writers send, one call after the other: messages, batches, and bulks, which go to several queues."""

from __future__ import annotations

import random
from array import array

import mq
from mq.broker.local import LocalBroker
from mq.store.native import lib
from tests.support.insides import store_of
from tests.support.processes.trace import (
    ACK,
    QUEUE_COUNT,
    TOPIC,
    Ack,
    Log,
    bulk_tag,
    key_of,
    log_offset,
    message_of,
)

__all__ = ["Sender"]


class Sender:
    """Sends numbered messages and writes down what was acknowledged, each before the next."""

    def __init__(self, broker: LocalBroker, trace: str, run: int, seed: int, *, durable: bool) -> None:
        self._broker = broker
        self._producer = mq.Producer(broker, compress_over=1 << 30)
        self._queues = [mq.MessageQueue(TOPIC, broker.name, number) for number in range(QUEUE_COUNT)]
        self._log = Log(trace, ACK)
        self._run = run
        self._sequence = 0
        self._random = random.Random(seed)
        self._durable = durable

    def send(self, count: int, size_max: int) -> None:
        """One message, or a batch."""
        sequence, size, queue = self._next(size_max)
        messages = [message_of(self._run, sequence, place, count, size) for place in range(count)]
        if count == 1:
            result = self._producer.send(messages[0], queue=queue)
        else:
            result = self._producer.send_batch(messages, queue=queue)
        self._acknowledged(result, sequence, count, size)

    def send_many(self, times: int, size_max: int) -> None:
        for _ in range(times):
            self.send(1, size_max)

    def send_async(self, count: int, size_max: int) -> None:
        """Several messages that are on their way at a time."""
        futures = []
        for _ in range(count):
            sequence, size, queue = self._next(size_max)
            message = message_of(self._run, sequence, 0, 1, size)
            futures.append((self._producer.send_async(message, queue=queue), sequence, size))
        for future, sequence, size in futures:
            self._acknowledged(future.result(30), sequence, 1, size)

    def send_bulk(self, count: int, size_max: int) -> None:
        """Messages for several queues, perhaps such that are there whole or not at all after a power cut. The
        share of each queue is acknowledged as a batch is."""
        is_whole = self._random.random() < 0.5
        _, size, _ = self._next(size_max)
        queues = self._random.sample(self._queues, self._random.randint(1, min(count, QUEUE_COUNT)))
        first = self._sequence + 1
        self._sequence += len(queues)
        tag = bulk_tag(first, count) if is_whole else ""
        places = array("i", [number % len(queues) for number in range(count)])
        shares = [places.count(place) for place in range(len(queues))]
        messages = [
            message_of(self._run, first + place, number // len(queues), shares[place], size, tag)
            for number, place in enumerate(places)
        ]
        properties = [message.encoded for message in messages]
        if is_whole:
            properties[0] = f"MQ_BULK\x01{count}\x02".encode() + properties[0]
        stored = self._broker.bulk.append(
            queues,
            places,
            [message.body for message in messages],
            array("i", [len(message.body) for message in messages]),
            properties,
            array("i", map(len, properties)),
        )
        if self._durable:
            self._broker.bulk.sync(stored)
        for place, queue in enumerate(queues):
            found = self._broker.query(TOPIC, key_of(self._run, first + place))
            if not found and store_of(self._broker).word(lib.MQ_LOG_MIN) > stored.log_offset:
                continue  # It was deleted already.
            (head,) = found
            at = queue.queue_id, head.queue_offset, head.log_offset
            self._log.add(Ack(self._run, first + place, shares[place], size, *at, int(self._durable)))

    def flushed(self) -> None:
        """Everything acknowledged so far is on disk."""
        self._log.add(Ack(self._run, 0, 0, 0, 0, 0, 0, 1))

    def _next(self, size_max: int) -> tuple[int, int, mq.MessageQueue]:
        self._sequence += 1
        size = self._random.choice((0, 16, 64, size_max)) // 16 * 16
        return self._sequence, size, self._random.choice(self._queues)

    def _acknowledged(self, result: mq.SendResult, sequence: int, count: int, size: int) -> None:
        durable = int(self._durable and result.status is mq.SendStatus.SEND_OK)
        queue = result.queue
        offset = result.queue_offset
        self._log.add(
            Ack(self._run, sequence, count, size, queue.queue_id, offset, log_offset(result), durable)
        )
