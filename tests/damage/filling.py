"""What the processes do in the tests of a full disk. Each does one thing for each line that it hears."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import time
from array import array
from collections.abc import Callable
from typing import Any

import mq
from tests.support.appending import append_one, prepare_one
from tests.support.processes.children import hear, say
from tests.support.store.sleeping import asleep
from tests.support.threads import threads_named

TRIES_MAX = 100_000
Stored = dict[tuple[str, int, int], str]  # topic, queue id, queue offset -> digest of the body


def body_of(name: str, number: int, size: int) -> bytes:
    text = f"{name} {number} "
    return (text * (size // len(text) + 1)).encode()[:size]


def digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


def until_full(act: Callable[[int], Any], first: int) -> int:
    """Act until mq.StoreFull; with which number that was."""
    for number in range(first, first + TRIES_MAX):
        try:
            act(number)
        except mq.StoreFull as error:
            if not error.path:
                raise AssertionError("StoreFull does not say of what") from error
            return number
    raise AssertionError(f"not full after {TRIES_MAX} times")


def send(root: str, name: str, topic: str, queue_count: int, size: int, options: dict[str, Any]) -> Stored:
    """Send until StoreFull at "fill", ten at "more"; at "close" return what was acknowledged."""
    stored: Stored = {}
    broker = mq.open(root, **options)
    number = 0

    def act(number: int) -> None:
        body = body_of(name, number, size)
        message = mq.Message(topic, body, keys=f"{name}-{number}", tags=name)
        result = append_one(broker, topic, number % queue_count, message, body, 0)
        stored[topic, result.queue.queue_id, result.queue_offset] = digest(body)

    say("open")
    while (line := hear()) != "close":
        if line == "fill":
            number = until_full(act, number)
        elif line == "more":
            for _ in range(10):
                act(number)
                number += 1
        else:
            raise AssertionError(line)
        say(f"{line} {len(stored)}")
    _close(broker)
    return stored


def read(root: str) -> None:
    """ "look": read every queue from its start, compare with what was read before, say how much there is."""
    broker = mq.open(root)
    seen: Stored = {}
    say("open")
    while (line := hear()) == "look":
        found = everything(broker)
        for place, what in seen.items():
            if found.get(place) != what:
                raise AssertionError(f"{place} was {what} and is {found.get(place)}")
        seen = found
        say(str(len(found)))
    assert line == "close", line
    broker.close()


def everything(broker: mq.LocalBroker) -> Stored:
    found: Stored = {}
    for topic in broker.topics():
        for queue in broker.topic(topic).queues:
            offset = queue.min_offset
            while messages := (result := queue.read(offset, count_max=100)).messages:
                for message in messages:
                    found[topic, queue.queue_id, message.queue_offset] = digest(message.body)
                offset = result.next_offset
    return found


def all_of(root: str) -> Stored:
    broker = mq.open(root)
    found = everything(broker)
    _close(broker)
    return found


def _close(broker: mq.LocalBroker) -> None:
    """On a disk that is full closing may say so; it closes all the same."""
    with contextlib.suppress(mq.StoreFull):
        broker.close()


def act_until_full(root: str, what: str, options: dict[str, Any]) -> None:
    """One kind of growth until the disk is full; then, at "again", ten times more."""
    with mq.open(root, **options) as broker:
        body = b"of little size"
        if what in ("queue files", "queue table"):
            broker.create_topic("wide", 3000 if what == "queue files" else 60_000)
            queues = broker.topic("wide").queues

        def act(number: int) -> None:
            if what == "queue files":
                message = mq.Message("wide", body)
                append_one(broker, "wide", number, message, body, 0)
            elif what == "config":
                broker.create_topic(f"{'a-topic-of-a-long-name-' * 4}{number}", 1)
            elif what == "queue table":
                # Asking for its end gives a queue its place in the shared table.
                for queue in queues[number * 50 : number * 50 + 50]:
                    assert queue.max_offset == 0
            elif what == "index":
                message = mq.Message("keyed", body, keys=[f"{number}-{key}" for key in range(100)])
                append_one(broker, "keyed", 0, message, body, 0)
                found = broker.query("keyed", f"{number}-50")
                # Twice where the first attempt stored it and had no room to index it.
                assert [one.body for one in found] in ([body], [body, body])
            else:
                raise AssertionError(what)

        number = until_full(act, 0)
        say(f"full {number}")
        assert hear() == "again"
        for more in range(10):
            act(number + more)
        say("done")
        assert hear() == "close"


def find_when_full(disk: Any, options: dict[str, Any]) -> None:
    """Send until there is no space, which the index notices first, and find what was sent."""
    with mq.open(disk.root, **options) as broker:
        topics = [broker.create_topic(name, 1) for name in ("orders", "other")]
        old = topics[0].send(b"old", keys="old")
        assert [each.body for each in broker.query("orders", "old")] == [b"old"]
        for thread in threads_named("mq-prepare"):
            asleep(os.getpid(), thread.native_id)  # It takes no room before some hundred more are sent.
        disk.load(150 << 10)  # An index file does not fit in that.
        try:
            ids = list[str]()

            def act(number: int) -> None:
                result = topics[number % 2].send(b"%d" % number, keys=["all", f"key-{number}"])
                ids.append(result.msg_id)

            count = until_full(act, 0)
            assert count > 40, count
            for number in (0, len(ids) // 2, len(ids) - 1):
                assert broker.message(ids[number]).body == b"%d" % number
                found = broker.query(topics[number % 2].name, f"key-{number}")
                assert [each.body for each in found] == [b"%d" % number]
            assert broker.message(old.msg_id).body == b"old"
            assert [each.body for each in broker.query("orders", "old")] == [b"old"]
            of_orders = [b"%d" % number for number in range(0, len(ids), 2)]
            assert [each.body for each in broker.query("orders", "all", count_max=len(ids))] == of_orders[
                ::-1
            ]
            with contextlib.suppress(mq.MessageNotFound):
                raise AssertionError(f"found {broker.message('the id of no message')}")
        finally:
            disk.unload()


def open_on_full_disk(root: str) -> str:
    """Opening where there is no space left: it works, or says StoreFull."""
    try:
        broker = mq.open(root)
    except mq.StoreFull as error:
        return f"StoreFull {error.path}"
    count = len(everything(broker))
    try:
        broker.close()
    except mq.StoreFull:
        return f"{count}, and closing was StoreFull"
    return str(count)


def send_and_be_killed(root: str, options: dict[str, Any]) -> Stored:
    """Says what is stored and waits to be killed."""
    broker = mq.open(root, **options)
    stored: Stored = {}

    def act(number: int) -> None:
        body = body_of("k", number, 900)
        result = append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)
        stored["orders", 0, result.queue_offset] = digest(body)

    broker.create_topic("orders", 1)
    until_full(act, 0)
    say(repr(stored))
    time.sleep(600)
    os._exit(3)


def send_up_to_a_limit(root: str, options: dict[str, Any], limit: int) -> Stored:
    """Files may not grow beyond `limit`; then they may."""
    with mq.open(root, **options) as broker:
        broker.create_topic("orders", 1)
        stored: Stored = {}

        def act(number: int) -> None:
            body = body_of("limit", number, 100_000)
            result = append_one(broker, "orders", 0, mq.Message("orders", body), body, 0)
            stored["orders", 0, result.queue_offset] = digest(body)

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        number = until_full(act, 0)
        assert everything(broker) == stored
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        for more in range(10):
            act(number + more)
        assert everything(broker) == stored
        return stored


def is_first_send_refused(disk: Any, left: int, options: dict[str, Any]) -> bool:
    """Send the first message of a store where so many bytes are left, and once more where there are more."""
    refused = False
    with (
        mq.open(disk.root, duties=False, **options) as broker,
        mq.Producer(broker, retries=0) as producer,
    ):
        disk.load(left)
        try:
            producer.send(mq.Message("fresh", b"x"))
        except mq.StoreFull:
            refused = True
            assert broker.topics() == []
        disk.unload()
        producer.send(mq.Message("fresh", b"x"))
        assert broker.topics() == ["fresh"]
    return refused


def send_to_fresh_topics(disk: Any, options: dict[str, Any]) -> set[str]:
    """First sends in every way, with more and more room; the ways that were never refused."""
    with (
        mq.open(disk.root, duties=False, **options) as broker,
        mq.Producer(broker, retries=0, dedup_window=60) as producer,
    ):
        ways = ways_to_send(broker, producer)
        # So that what belongs to no single topic is there.
        for way in ("send", "key", "prepare"):
            ways[way](mq.Message("older", b"x"))
        stored, never_refused = {"older"}, set(ways)
        for way, send in ways.items():
            for pages in (0, 1, 2, 3, 5, 8, 12, 20):
                topic = f"{way}-{pages}"
                disk.load(pages << 12)
                try:
                    send(mq.Message(topic, b"x" * 50_000))
                    stored.add(topic)
                except mq.StoreFull:
                    never_refused.discard(way)
                assert set(broker.topics()) == stored
                disk.unload()
        for topic in stored:
            count = sum(queue.max_offset for queue in broker.topic(topic).queues)
            assert count or topic.startswith("prepare"), topic
    return never_refused


def ways_to_send(broker: mq.LocalBroker, producer: mq.Producer) -> dict[str, Callable[[mq.Message], Any]]:
    def queue_of(message: mq.Message) -> mq.MessageQueue:
        return mq.MessageQueue(message.topic, broker.name, 1)

    def bulk(message: mq.Message) -> None:
        size, none = array("i", [len(message.body)]), array("i", [0])
        broker.bulk.append([queue_of(message)], none, [message.body], size, [], none)

    return {
        "send": producer.send,
        "queue": lambda message: producer.send(message, queue=queue_of(message)),
        "batch": lambda message: producer.send_batch([message] * 3),
        "async": lambda message: producer.send_async(message).result(),
        "one-way": producer.send_oneway,
        "key": lambda message: producer.send(message, dedup_key=message.topic),
        "prepare": lambda message: prepare_one(broker, queue_of(message), "payers", message, message.body, 0),
        "bulk": bulk,
    }
