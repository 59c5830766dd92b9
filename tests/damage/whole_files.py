"""A small store with a file of every kind, each of which is damaged as a whole, in every way, in every state.

The store lies in memory and is put back for each case, into the very inodes that it had, or into new ones: a
copy. What damage then leads to is compared with what was sent.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mq
from mq.broker.broadcast.offsets import BroadcastOffsets
from mq.broker.check import problems
from tests.damage.harm import Snapshot
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import set_dedup_buckets
from tests.support.processes.children import Child, call, hear, say

SIZES: dict[str, Any] = {
    "commitlog_file_size": 1 << 13,
    "queue_file_units": 8,
    "index_slot_count": 16,
    "index_unit_count": 64,
    "consume_queue_ext_file_size": 256,
}
QUEUES = {"orders": 3, "events": 1}
SPARE_COUNT = 64  # topics: from so many on, changes of topics go to a journal
WATCHERS = "watchers"
WAYS = ("missing", "empty", "short", "long", "zeroed", "noise", "older copy", "much older copy")
SMALL_ENOUGH = 1 << 20  # Of larger files, which are sparse, there is no older copy.
NOISE_MAX = 1 << 16
Place = tuple[str, int, int]  # topic, queue id, queue offset
Files = dict[str, bytes]
Offsets = dict[tuple[str, str, int], int]  # group, topic, queue id


def open_store(root: Path, *, duties: bool = False) -> mq.LocalBroker:
    return mq.open(root, duties=duties, enable_consume_queue_ext=True, **SIZES)


def send(broker: mq.LocalBroker, topic: str, queue_id: int, number: int) -> int:
    message = mq.Message(topic, b"%04d" % number + b"." * 300, tags="paid", keys=f"key-{number}")
    return append_one(broker, topic, queue_id, message, message.body, 0).queue_offset


def undecided(_: object) -> mq.TransactionState:
    return mq.TransactionState.UNKNOWN


def use(broker: mq.LocalBroker, number: int) -> None:
    """Have each file used that is made anew only when it is."""
    with mq.Producer(broker, dedup_window=3600) as producer:
        producer.send(mq.Message("others", b"once"), dedup_key=f"key-{number}")
    with mq.Once(broker, "billing", size=20)(f"key-{number}"):
        pass
    assigned.commit(broker, "billing", broker.topic("others").queues[0].message_queue, 1)
    with mq.TransactionProducer(broker, "writers", undecided) as writer:
        writer.send(mq.Message("others", b"half"), lambda *_: mq.TransactionState.COMMIT)
    watch(broker, min(1 + number, 2))


def watch(broker: mq.LocalBroker, offset: int | None = None) -> int | None:
    """Start a broadcasting consumer, and have it commit this offset; the one that it began with, None where
    it cannot start."""
    try:
        offsets = broker.consumer_groups.broadcast_offsets(WATCHERS, "box", None)
    except mq.StoreCorrupted:
        return None
    assert isinstance(offsets, BroadcastOffsets)
    try:
        offsets.begin("others", "first")
        queue = broker.topic("others").queues[0].message_queue
        found = offsets.get(queue)
        if offset is not None:
            offsets.put(queue, offset)
            offsets.save()
        return found
    finally:
        offsets.close()


def offsets_of(broker: mq.LocalBroker) -> Offsets:
    """What every group has committed, and every broadcasting consumer."""
    groups = broker.consumer_groups
    found = {
        (group, topic, queue.queue_id): offset
        for group in broker.groups()
        for topic in groups.topics(group)
        for queue, offset in groups.offsets(group, topic).items()
    }
    watched = watch(broker)
    return found if watched is None else {**found, (WATCHERS, "others", 0): watched}


def first_part(root: Path, topic_count: int) -> None:
    """A queue that is quiet from then on, and what makes files of every other kind."""
    with open_store(root, duties=True) as broker:
        set_dedup_buckets(broker, 8)
        spare = {f"spare-{number:02}": 1 for number in range(topic_count)}
        for topic, count in {**QUEUES, "others": 1, **spare}.items():
            broker.create_topic(topic, count)
        for number in range(30):
            send(broker, "orders", number % 3, number)
        use(broker, 0)
        broker.consumer_groups.reset(WATCHERS, {broker.topic("others").queues[0].message_queue: 0})
        broker.topic("others").send(b"later", delay_level=18)
        broker.topic("others").send(b"much later", delay_ms=86_400_000)
        for number in range(30, 40):
            send(broker, "events", 0, number)
        (others,) = broker.topic("others").queues
        before_soon = others.max_offset
        broker.topic("others").send(b"soon", delay_level=1)
        consumer = mq.PushConsumer(broker, "filtered")
        consumer.subscribe("events", sql="amount > 1", listener=print)
        with consumer:
            consumer.start()
        deadline = time.monotonic() + 60
        while not (root / "timerwheel").exists() or others.max_offset == before_soon:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert (root / "config" / "delayOffset.json").exists()


def second_part(root: Path) -> None:
    with open_store(root) as broker:
        for number in range(40, 60):
            send(broker, "events", 0, number)
        send(broker, "orders", 1, 60)
        for number in range(61, 86):
            send(broker, "events", 0, number)
        broker.query("events", "key-84")
        broker.consumer_groups.reset(WATCHERS, {broker.topic("others").queues[0].message_queue: 1})
        watch(broker, 1)


def lose_log_file(root: Path) -> None:
    files = sorted(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))
    file = files[len(files) // 2]
    file.write_bytes(bytes(file.stat().st_size))
    with open_store(root):
        pass
    assert (root / "mq" / "losses.json").exists()


def third_part(broker: mq.LocalBroker) -> None:
    broker.create_topic("fresh", 1)
    send(broker, "fresh", 0, 90)
    watch(broker, 2)
    send(broker, "orders", 0, 86)
    for number in range(87, 90):
        send(broker, "events", 0, number)
    for queue in broker.topic("orders").queues:
        assigned.commit(broker, "billing", queue.message_queue, 5)
    broker.query("events", "key-89")


def fill_and_close(root: str) -> None:
    with open_store(Path(root)) as broker:
        third_part(broker)


def fill_and_wait(root: str) -> None:
    """Until it is killed."""
    broker = open_store(Path(root))
    third_part(broker)
    say("ready")
    hear()
    broker.close()


def read_all(broker: mq.LocalBroker) -> tuple[dict[Place, bytes], set[Place]]:
    """Every message that is delivered, and those of which it is said that they are not."""
    found: dict[Place, bytes] = {}
    refused: set[Place] = set()
    for topic in broker.topics():
        for queue in broker.topic(topic).queues:
            offset = queue.min_offset
            for _ in range(300):
                try:
                    result = queue.read(offset)
                except mq.StoreCorrupted as error:
                    lost = offset if error.queue_offset is None else error.queue_offset
                    refused.add((topic, queue.queue_id, lost))
                    offset = lost + 1
                    continue
                for message in result.messages:
                    found[topic, queue.queue_id, message.queue_offset] = message.record
                if result.next_offset <= offset:
                    break
                offset = result.next_offset
    return found, refused


def small_files(root: Path) -> Files:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size < SMALL_ENOUGH
    }


@dataclass
class Prepared:
    """An undamaged store in one state, what is in it, and what was earlier."""

    root: Path
    state: str
    has_loss: bool = False  # a file of its log was lost, and that was found and told before
    has_journal: bool = False  # of its topics
    snapshot: Snapshot = field(init=False)
    older: Files = field(init=False)
    much_older: Files = field(init=False)
    records: dict[Place, bytes] = field(init=False)
    ends: dict[tuple[str, int], int] = field(init=False)
    committed: Offsets = field(init=False)
    lost: set[Place] = field(init=False)

    def __post_init__(self) -> None:
        first_part(self.root, SPARE_COUNT if self.has_journal else 0)
        self.much_older = small_files(self.root)
        second_part(self.root)
        if self.has_loss:
            lose_log_file(self.root)
        self.older = small_files(self.root)
        if self.state == "killed":
            with Child(fill_and_wait, str(self.root)) as child:
                assert child.hear() == "ready"
                child.kill()
        else:
            call(fill_and_close, str(self.root))
        self.snapshot = Snapshot(self.root, self.root.with_name("aside"))
        with open_store(self.root) as broker:
            self.records, self.lost = read_all(broker)
            self.committed = offsets_of(broker)
            self.ends = {
                (topic, queue.queue_id): queue.max_offset
                for topic in QUEUES
                for queue in broker.topic(topic).queues
            }
        assert bool(self.lost) == self.has_loss
        assert sum(self.ends.values()) > 80
        assert self.damage("lock", "nothing")

    def damage(self, name: str, way: str) -> bool:
        """Put all back, then damage one file; whether there was something to damage."""
        self.snapshot.restore(copied=self.state == "copied")
        path, size = self.root / name, self.snapshot.files[name].size
        if way == "missing":
            path.unlink()
        elif way in ("empty", "short", "zeroed"):
            os.truncate(path, size // 2 if way == "short" else 0)
            os.truncate(path, size if way == "zeroed" else path.stat().st_size)
        elif way == "long":
            with path.open("ab") as file:
                file.write(b"\x5a" * 100)
        elif way == "noise":
            with path.open("r+b") as file:
                file.write(random.Random(name).randbytes(min(size, NOISE_MAX)))
        elif way != "nothing":
            data = (self.older if way == "older copy" else self.much_older).get(name)
            if data is None or data.rstrip(b"\0") == self.snapshot.files[name].data:
                return False
            with path.open("r+b") as file:
                file.truncate(0)
                file.write(data)
        return size > 0 or way in ("missing", "long", "nothing")


LOGGERS = ("mq.store", "mq.groups")


class Told(logging.Handler):
    """What the loggers `mq.store` and `mq.groups` say."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    def __enter__(self) -> Told:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)


@dataclass
class Outcome:
    lost: set[Place] = field(default_factory=set)
    refused: set[Place] = field(default_factory=set)
    told: str = ""
    problems: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lowered: set[tuple[str, str, int]] = field(default_factory=set)  # group, topic, queue id
    said: str = ""  # by the log, from opening on, and by verify before and after it

    def is_told_by_open(self) -> bool:
        return all(names(self.told, place) for place in self.lost)

    def unnamed(self) -> set[tuple[str, str, int]]:
        """Offsets that went down without a word."""
        lines = self.said.splitlines()
        return {
            (group, topic, queue_id)
            for group, topic, queue_id in self.lowered
            if not any("consumerOffset.json" in line or group in line for line in lines)
        }

    def is_told_by_verify(self) -> bool:
        text = "\n".join(self.problems)
        return all(names(text, place) for place in self.lost)


def names(text: str, place: Place) -> bool:
    """Whether a text tells that this message is lost."""
    topic, queue_id, offset = place
    for piece in text.replace("\n", ", ").split(", "):
        before, _, numbers = piece.partition(f"{topic}/{queue_id} queue offset")
        if not numbers or (before and not before.endswith(("messages: ", " "))):
            continue
        ends = [
            int(word.rstrip(";"))
            for word in numbers.removeprefix("s").split()[:3]
            if word != "to" and word.rstrip(";").isdigit()
        ]
        if ends and ends[0] <= offset <= ends[-1]:
            return True
    return False


def look(prepared: Prepared, *, verify_first: bool = False) -> Outcome:
    """Open the store as it is, read it, send to it, use it, open it again. verify_first: look for problems
    also before that: what the store then writes hides older copies of offsets."""
    found = Outcome()
    before = list(problems(prepared.root)) if verify_first else []
    with Told() as told:
        broker = open_store(prepared.root)
        found.told = told.text
        with broker:
            records, sent = _use_open(prepared, broker, found)
    found.problems = list(problems(prepared.root))
    found.said = "\n".join([*before, told.text, *found.problems])
    with open_store(prepared.root) as broker:
        again, refused = read_all(broker)
        found.wrong += _compare(records, again)
        found.wrong += [f"{place} is not there" for place in sent if place not in again]
        if not found.refused <= refused:
            found.wrong.append("what was refused is not any more")
        found.wrong += _raised(prepared.committed, offsets_of(broker))
    return found


def _use_open(
    prepared: Prepared, broker: mq.LocalBroker, found: Outcome
) -> tuple[dict[Place, bytes], set[Place]]:
    """What the store had, and what was sent to it."""
    records, found.refused = read_all(broker)
    found.lost = prepared.records.keys() - records.keys()
    found.wrong += _compare(prepared.records, records)
    offsets = offsets_of(broker)
    found.wrong += _raised(prepared.committed, offsets)
    found.lowered = {each for each, at in prepared.committed.items() if offsets.get(each, -1) < at}
    sent: set[Place] = set()
    for number, ((topic, queue_id), end) in enumerate(prepared.ends.items(), 1000):
        offset = send(broker, topic, queue_id, number)
        sent.add((topic, queue_id, offset))
        if offset != end:
            found.wrong.append(f"{topic}/{queue_id}: queue offset {offset} given, and not {end}")
    if not found.lost and not prepared.lost:
        use(broker, 2000)
        for number in (0, 41, 88):
            topic = "orders" if number < 30 else "events"
            if [m.body[:4] for m in broker.query(topic, f"key-{number}")] != [b"%04d" % number]:
                found.wrong.append(f"key-{number} is not found")
    return records, sent


def _raised(committed: Offsets, offsets: Offsets) -> Iterator[str]:
    """Offsets that went up beyond what was committed: what is between is skipped."""
    for each, offset in offsets.items():
        if offset > committed.get(each, 0):
            yield f"the offset of {each} went up to {offset} from {committed.get(each)}"


def look_at_timers(prepared: Prepared) -> list[str]:
    """Open the store with a leader, for longer and longer, until what waits to be delivered is there and
    nothing is wrong; what is still wrong after that."""
    wanted = sorted([len(b"later"), len(b"much later")])
    wrong: list[str] = []
    for seconds in (0.02, 0.1, 0.5, 2.0, 10.0):
        with open_store(prepared.root, duties=True) as broker:
            time.sleep(seconds)
            waiting = sorted(len(broker.message(one.msg_id).body) for one in broker.delayed())
        wrong = list(problems(prepared.root))
        if waiting != wanted:
            wrong.append(f"messages of {waiting} bytes wait")
        if not wrong:
            break
    return wrong


def _compare(before: dict[Place, bytes], after: dict[Place, bytes]) -> Iterator[str]:
    for place, record in before.items():
        if place in after and after[place] != record:
            yield f"{place}: not what was sent"
