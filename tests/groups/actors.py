"""What the processes of the tests of groups do: see tests/support/processes/nursery.py.

Paths are strings here, since arguments travel as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mq
from tests.groups.trace import ACK, EVENT, LOOK, Kind
from tests.support.insides import groups_of
from tests.support.processes.halts import cut_short
from tests.support.processes.nursery import stopping
from tests.support.processes.pauses import beat, pulse
from tests.support.processes.trace import Log

__all__ = [
    "consumer",
    "dies_after_hand_back",
    "key_sender",
    "members",
    "observer",
    "puller",
    "pulse",
    "sender",
    "waiters",
]

TOPIC = "events"
RETRY = "%RETRY%"
BODY = struct.Struct(">II")
PAUSE = 0.005

Sizes = dict[str, Any]


class Trace:
    """Writes what this process goes through."""

    def __init__(self, path: str, process: int) -> None:
        self._log = Log(path, EVENT)
        self._process = process

    def moment(self, kind: Kind) -> None:
        self._log.add((kind, self._process, 0, 0, time.monotonic_ns(), 0, 0, 0))

    def of(self, kind: Kind, *messages: mq.MessageExt) -> None:
        now = time.monotonic_ns()
        self._log.add(*(self._event(kind, now, message) for message in messages))

    def _event(self, kind: Kind, now: int, message: mq.MessageExt) -> tuple[int, ...]:
        run, sequence = BODY.unpack_from(message.body)
        # A message that comes again shows the topic it was sent to, not the one that it lies in.
        lies_in = mq.MessageExt(message.record, message.broker_name).topic
        queue = -1 - message.queue_id if lies_in.startswith(RETRY) else message.queue_id
        return kind, self._process, queue, message.queue_offset, now, run, sequence, message.reconsume_times


def sender(
    root: str,
    trace: str,
    run: int,
    *,
    sizes: Sizes,
    queues: int,
    pause: float,
    seed: int,
    heart: str | None = None,
) -> None:
    """Sends numbered messages to all queues, alone or in batches, until stopped. heart: for its beat."""
    if heart is not None:
        beat(heart)
    chance = random.Random(seed)
    log = Log(trace, ACK)
    sequence = 0
    with mq.open(root, **sizes) as broker, mq.Producer(broker) as producer:
        broker.create_topic(TOPIC, queues)
        targets = [mq.MessageQueue(TOPIC, broker.name, number) for number in range(queues)]
        while not stopping:
            count = chance.choice((1, 1, 1, 5))
            messages = [
                mq.Message(TOPIC, BODY.pack(run, sequence + at).ljust(100), tags=f"t{at}")
                for at in range(count)
            ]
            queue = chance.choice(targets)

            def send() -> None:
                if len(messages) == 1:  # noqa: B023 - called at once
                    result = producer.send(messages[0], queue=queue)  # noqa: B023 - as above
                else:
                    result = producer.send_batch(messages, queue=queue)  # noqa: B023 - as above
                first = result.queue_offset
                log.add(*((run, sequence + at, queue.queue_id, first + at) for at in range(count)))  # noqa: B023 - as above

            cut_short(send, chance)
            sequence += count
            time.sleep(pause * chance.random())


def key_sender(root: str, trace: str, *, sizes: Sizes, queues: int, keys: int, count: int) -> None:
    """Sends `count` messages of each of `keys` keys, the messages of a key in order into one queue."""
    log = Log(trace, ACK)
    chance = random.Random(keys)
    numbers = [0] * keys
    with mq.open(root, **sizes) as broker, mq.Producer(broker) as producer:
        broker.create_topic(TOPIC, queues)
        turns = [key for key in range(keys) for _ in range(count)]
        chance.shuffle(turns)
        for key in turns:
            body = BODY.pack(key, numbers[key]).ljust(100)
            result = producer.send(mq.Message(TOPIC, body, keys=f"k{key}"), shard_key=key)
            log.add((key, numbers[key], result.queue.queue_id, result.queue_offset))
            numbers[key] += 1


def consumer(
    root: str,
    trace: str,
    process: int,
    *,
    sizes: Sizes,
    group: str,
    ordered: bool = False,
    threads: int = 4,
    batch_size: int | None = None,
    fails: int = 0,
    work: float = 0.0,
    seed: int = 0,
    heart: str | None = None,
) -> None:
    """A push consumer that writes down what its listener does, until stopped; then it leaves in good order.

    fails: every so many-th message fails the first time. work: seconds that a listener takes, now and then.
    heart: it notes its beat there.
    """
    if heart is not None:
        beat(heart)
    log = Trace(trace, process)
    chance = random.Random(seed)

    def listen(*messages: mq.MessageExt) -> None:
        log.of(Kind.ENTERED, *messages)
        if work and chance.random() < 0.2:
            time.sleep(work * chance.random())
        if fails and any(
            message.reconsume_times == 0 and BODY.unpack_from(message.body)[1] % fails == 1
            for message in messages
        ):
            log.of(Kind.RAISED, *messages)
            raise mq.Retry(delay_level=1)
        log.of(Kind.RETURNED, *messages)

    with mq.open(root, **sizes) as broker:
        push = mq.PushConsumer(broker, group, ordered=ordered, threads=threads)
        if batch_size is None:
            push.subscribe(TOPIC, listener=listen)
        else:
            push.subscribe(TOPIC, listener=lambda messages: listen(*messages), batch_size=batch_size)
        push.start()
        log.moment(Kind.STARTED)
        while not stopping:
            time.sleep(PAUSE)
        log.moment(Kind.LEAVING)
        push.close()
        log.moment(Kind.LEFT)


def puller(
    root: str,
    trace: str,
    process: int,
    *,
    sizes: Sizes,
    group: str,
    auto_commit: bool = True,
    work: float = 0.0,
    seed: int = 0,
) -> None:
    """A pull consumer that writes down what it works on, until stopped; then it leaves in good order."""
    log = Trace(trace, process)
    chance = random.Random(seed)
    with (
        mq.open(root, **sizes) as broker,
        mq.PullConsumer(broker, group, auto_commit=auto_commit, auto_commit_interval=0.2) as pull,
    ):
        pull.subscribe(TOPIC)
        log.moment(Kind.STARTED)
        while not stopping:
            messages = pull.poll(0.05, count_max=chance.choice((1, 8, 32)))
            log.of(Kind.ENTERED, *messages)
            if work and chance.random() < 0.2:
                time.sleep(work * chance.random())
            log.of(Kind.RETURNED, *messages)
            if not auto_commit:
                pull.commit()
        log.moment(Kind.LEAVING)
    log.moment(Kind.LEFT)


def observer(root: str, trace: str, *, sizes: Sizes, groups: Sequence[str]) -> None:
    """Writes down every offset of these groups that it sees change, until stopped."""
    log = Log(trace, LOOK)
    known: dict[tuple[int, mq.MessageQueue], int] = {}
    with mq.open(root, **sizes) as broker:
        while not stopping:
            for number, group in enumerate(groups):
                for topic in (TOPIC, RETRY + group):
                    for queue, offset in broker.consumer_groups.offsets(group, topic).items():
                        if known.get((number, queue)) != offset:
                            known[number, queue] = offset
                            place = queue.queue_id if topic == TOPIC else -1 - queue.queue_id
                            log.add((number, place, offset, time.monotonic_ns()))
            time.sleep(0.002)


def members(root: str, answer: str, *, sizes: Sizes, group: str, count: int, heart: str) -> None:
    """Several consumers in one process, which keep in `answer` what each has, until stopped."""
    # They keep each other waiting for processors, but not for so long.
    beat(heart, 0.25)
    with mq.open(root, **sizes) as broker:
        consumers = [mq.PushConsumer(broker, group, threads=1) for _ in range(count)]
        for push in consumers:
            push.subscribe(TOPIC, listener=_nothing)
            push.start()
        before: object = None
        while not stopping:
            now = [sorted(queue.queue_id for queue in push.assignment()) for push in consumers]
            if now != before:
                before = now
                write(answer, now)
            time.sleep(PAUSE)
        for push in consumers:
            push.close()


def waiters(root: str, trace: str, process: int, *, sizes: Sizes, group: str, count: int, ready: str) -> None:
    """Consumers of as many groups that wait for messages and note when they come."""
    log = Trace(trace, process)
    with mq.open(root, **sizes) as broker:
        consumers = []
        for number in range(count):
            push = mq.PushConsumer(broker, f"{group}{number}")
            push.subscribe(TOPIC, listener=lambda message: log.of(Kind.ENTERED, message))
            push.start()
            consumers.append(push)
        Path(ready).touch()
        _until_stopped()
        for push in consumers:
            push.close()


def dies_after_hand_back(root: str, trace: str, process: int, *, sizes: Sizes, group: str) -> None:
    """Its listener fails; it dies when the message is handed back and the offset not yet committed."""
    log = Trace(trace, process)
    with mq.open(root, **sizes) as broker:
        send_back = groups_of(broker).send_back

        def send_back_and_die(*arguments: Any) -> bool:
            is_stored = send_back(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
            return is_stored

        vars(groups_of(broker))["send_back"] = send_back_and_die

        def fail(message: mq.MessageExt) -> None:
            log.of(Kind.ENTERED, message)
            raise mq.Retry(delay_level=1)

        push = mq.PushConsumer(broker, group)
        push.subscribe(TOPIC, listener=fail)
        push.start()
        threading.Event().wait(300)


def _until_stopped() -> None:
    """Without waking up in between."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    if not stopping:
        os.read(told, 1)


def _nothing(_: mq.MessageExt) -> None:
    pass


def write(path: str, what: object) -> None:
    """Whole or not at all."""
    fresh = Path(path + ".new")
    fresh.write_text(json.dumps(what))
    fresh.rename(path)
