"""A small store whose every message is known, and the look at all of it after damage.

The look opens the store, asks for everything in every way there is, and compares each message that comes back
with the one that was sent. Damage may make the answer shorter or an error of mq; all else is a Wrong.
"""

from __future__ import annotations

import os
import pickle
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import mq
from mq.store.check import problems
from tests.support.appending import append_many, append_one
from tests.support.insides import was_recovered
from tests.support.processes.children import say

SIZES: dict[str, Any] = {
    "commitlog_file_size": 1 << 14,
    "queue_file_units": 32,
    "index_slot_count": 16,
    "index_unit_count": 64,
}
TOPICS = {"orders": 3, "x" * 127: 1}
KEYS = [f"key-{number}" for number in range(9)]
Place = tuple[str, int, int]  # topic, queue id, queue offset
T = TypeVar("T")


class Wrong(AssertionError):
    """Something that damage must never lead to."""


@dataclass
class Known:
    """Every message of a store: its record by place, its place by each id."""

    records: dict[Place, bytes] = field(default_factory=dict)
    ids: dict[str, Place] = field(default_factory=dict)
    keys: dict[str, set[Place]] = field(default_factory=dict)
    lenient: bool = False  # Records that were never sent may be there, with valid checksums.

    def add(self, message: mq.MessageExt) -> None:
        place = message.topic, message.queue_id, message.queue_offset
        self.records[place] = message.record
        self.ids[message.msg_id] = self.ids[message.offset_msg_id] = place
        for key in message.keys:
            self.keys.setdefault(key, set()).add(place)

    def without(self, place: Place) -> None:
        """Another message took this place, after the store lost the one that was there."""
        if self.records.pop(place, None) is not None:
            self.ids = {name: at for name, at in self.ids.items() if at != place}
            for places in self.keys.values():
                places.discard(place)


def some_messages(seed: int, count: int) -> Iterator[tuple[int, mq.Message]]:
    """(queue id, message), of all sorts."""
    random_ = random.Random(seed)
    for number in range(count):
        topic = random_.choice(list(TOPICS))
        message = mq.Message(
            topic,
            random_.randbytes(random_.choice((1, 20, 100, 300, 700, 2000))),
            tags=random_.choice((None, "paid", "refunded", "größer")),
            keys=random_.sample(KEYS, random_.randrange(4)),
            properties=random_.choice((None, {"region": "EU", "n": str(number)})),
            flag=random_.choice((0, 0, 7, -1)),
        )
        yield random_.randrange(TOPICS[topic]), message


def fill(broker: mq.LocalBroker, seed: int, count: int, known: Known | None = None) -> Known:
    """Send messages, some in batches, and compare what the store then has with what was sent."""
    known = Known() if known is None else known
    for topic, queue_count in TOPICS.items():
        broker.create_topic(topic, queue_count)
    sent: dict[Place, tuple[mq.Message, str]] = {}
    for queue_id, message in some_messages(seed, count):
        if len(message.body) == 20:
            batch = [message, mq.Message(message.topic, b"second", keys=KEYS[0])]
            results = append_many(broker, message.topic, queue_id, batch).split()
            pairs = list(zip(batch, results, strict=True))
        else:
            pairs = [(message, append_one(broker, message.topic, queue_id, message, message.body, 0))]
        for one, result in pairs:
            sent[one.topic, queue_id, result.queue_offset] = one, result.msg_id
    for (topic, queue_id, offset), (message, msg_id) in sent.items():
        queue = mq.Queue(broker, mq.MessageQueue(topic, broker.name, queue_id))
        (stored,) = queue.read(offset, count_max=1).messages
        assert (stored.topic, stored.body, stored.flag, stored.tags) == (
            topic, message.body, message.flag, message.tags,
        )  # fmt: skip
        assert (set(stored.keys), stored.msg_id) == (set(message.keys), msg_id)
        assert message.properties.items() <= stored.properties.items()
        known.add(stored)
    return known


def make(root: str, seed: int, count: int = 60) -> Known:
    """A closed store."""
    with mq.open(root, **SIZES) as broker:
        return fill(broker, seed, count)


def make_and_wait(root: str, seed: int, count: int = 60) -> Known:
    """A store to be left by kill -9: says when all is sent, and never closes."""
    broker = mq.open(root, **SIZES)
    say(pickle.dumps(fill(broker, seed, count)).hex())
    while True:
        time.sleep(60)


class Look:
    """Asks one store for everything; collects names of errors, and raises Wrong."""

    def __init__(self, root: str | os.PathLike[str], known: Known) -> None:
        self.root = Path(root)
        self.known = known
        self.errors: dict[str, int] = {}
        self.delivered: set[Place] = set()

    def attempt(self, what: str, function: Callable[[], T]) -> T | None:
        """The result, or None for an error that mq may raise. Anything else goes up."""
        try:
            return function()
        except mq.MQError as error:
            name = type(error).__name__
            if not str(error):
                raise Wrong(f"{what}: {name} without a word") from error
            self.errors[name] = self.errors.get(name, 0) + 1
            return None

    def accept(self, what: str, message: mq.MessageExt, place: Place | None = None) -> Place:
        found = message.topic, message.queue_id, message.queue_offset
        if place is not None and place != found:
            raise Wrong(f"{what}: asked for {place}, got the message of {found}")
        if self.known.records.get(found) != message.record:
            if self.known.lenient:
                return found
            raise Wrong(f"{what}: the message of {found} is not what was sent")
        self.delivered.add(found)
        return found

    def all(self, *, send: bool = True) -> None:
        """Everything, twice: with the store as it was found, and after a message more and a reopening."""
        for turn in range(2 if send else 1):
            broker = self.attempt("open", lambda: mq.open(self.root))
            if broker is None:
                break
            try:
                self.read(broker)
                if turn == 0 and send:
                    self.send(broker)
            finally:
                self.attempt("close", broker.close)
        for problem in problems(self.root):
            assert isinstance(problem, str)
            assert problem

    def read(self, broker: mq.LocalBroker) -> None:
        topics = self.attempt("topics", broker.topics) or []
        for topic in topics:
            bound = self.attempt("topic", lambda topic=topic: broker.topic(topic))  # type: ignore[misc]  # bound early
            queues = self.attempt("queues", lambda bound=bound: bound.queues) if bound else ()  # type: ignore[misc]  # bound early
            # Damage may make a count of queues enormous; those beyond are empty.
            for queue in (queues or ())[:8]:
                self.queue(queue)
        for msg_id, place in list(self.known.ids.items())[::3]:
            found = self.attempt("message", lambda msg_id=msg_id: broker.message(msg_id))  # type: ignore[misc]  # bound early
            if found is not None:
                self.accept(f"message({msg_id})", found, place)
        for topic in TOPICS:
            for key in KEYS[::2]:
                messages = self.attempt("query", lambda t=topic, k=key: broker.query(t, k))  # type: ignore[misc]  # bound early
                for message in messages or ():
                    place = self.accept(f"query({key})", message)
                    if not self.known.lenient and place not in self.known.keys.get(key, ()):
                        raise Wrong(f"query({key}): {place} has no such key")

    def queue(self, queue: mq.Queue) -> None:
        low = self.attempt("min_offset", lambda: queue.min_offset)
        high = self.attempt("max_offset", lambda: queue.max_offset)
        self.attempt("offset_at", lambda: queue.offset_at(1_000_000_000_000))
        if low is None or high is None:
            return
        if low < 0 or high < 0:
            raise Wrong(f"{queue}: offsets {low} … {high}")
        for expression in ("*", "paid"):
            self.offsets(queue, max(low, 0), expression)
        batch = self.attempt("read_arrow", lambda: queue.read_arrow(low))
        for row in batch.select(["topic", "queueId", "queueOffset", "body"]).to_pylist() if batch else ():
            place = row["topic"], row["queueId"], row["queueOffset"]
            known = self.known.records.get(place)
            if self.known.lenient:
                continue
            if known is None or mq.MessageExt(known, "mq").body != row["body"]:
                raise Wrong(f"read_arrow: the message of {place} is not what was sent")

    def offsets(self, queue: mq.Queue, offset: int, expression: str) -> None:
        """Read on and on; behind each damaged message there may be whole ones."""
        for _ in range(200):
            try:
                result = queue.read(offset, expression=expression)
            except mq.StoreCorrupted as error:
                self.errors["read"] = self.errors.get("read", 0) + 1
                if error.queue_offset is not None and error.queue_offset < offset:
                    raise Wrong(f"{queue}: reading {offset} complains of {error.queue_offset}") from error
                offset = offset + 1 if error.queue_offset is None else error.queue_offset + 1
                continue
            except mq.MQError:
                return
            for message in result.messages:
                place = self.accept(f"{queue}.read({offset})", message)
                if place[:2] != (queue.topic, queue.queue_id) or place[2] < offset:
                    raise Wrong(f"{queue}.read({offset}) gave the message of {place}")
                if expression not in ("*", message.tags):
                    raise Wrong(f"{queue}.read({offset}, {expression!r}) gave the tag {message.tags!r}")
            if result.next_offset <= offset:
                return
            offset = result.next_offset

    def send(self, broker: mq.LocalBroker) -> None:
        """One message more to every queue; from now on it belongs to what is known."""
        for topic, queue_count in TOPICS.items():
            for queue_id in range(queue_count):
                message = mq.Message(topic, b"sent after the damage", keys="late")
                result = self.attempt(
                    "send",
                    lambda m=message, q=queue_id: append_one(broker, m.topic, q, m, m.body, 0),  # type: ignore[misc]  # bound early
                )
                if result is None:
                    continue
                place = topic, queue_id, result.queue_offset
                queue = mq.Queue(broker, mq.MessageQueue(topic, broker.name, queue_id))
                found: Any = self.attempt("read", lambda q=queue, p=place: q.read(p[2], count_max=1))  # type: ignore[misc]  # bound early
                if found is None:
                    # Stored, and not to be read: an error, at least no lie.
                    self.known.without(place)
                    continue
                if not found.messages:
                    raise Wrong(f"the message sent to {place} is not there")
                (stored,) = found.messages
                if (stored.body, stored.msg_id) != (message.body, result.msg_id):
                    raise Wrong(f"{place}: another message than the one just sent")
                self.known.without(place)
                self.known.add(stored)


def look(root: str, known: Known, *, send: bool = True) -> tuple[int, dict[str, int]]:
    """How many of the known messages are still delivered, and how often each error was met."""
    view = Look(root, known)
    view.all(send=send)
    return len(view.delivered), view.errors


def is_believed(root: str) -> bool:
    """Whether opening the store recovers nothing."""
    with mq.open(root) as broker:
        return not was_recovered(broker)
