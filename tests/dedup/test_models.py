"""Any sequence of calls: what is sent once and handled once is what a dict would say.

For sends with a table so small that entries go for others all the time, with brokers that come and go, bits
that flip, and a table that is lost, as it is with every start of the machine. For handled keys with two
brokers of one store, and a set that holds few.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from tests.dedup.dedup_actors import SMALL
from tests.support.appending import prepare_one
from tests.support.insides import set_dedup_buckets

KEYS = st.integers(0, 40).map(lambda number: f"key-{number}")
TOPICS = st.sampled_from(["orders", "payments"])


class Sends(RuleBasedStateMachine):
    """The model: topic and key -> where it was stored first."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp())
        self.root = self.parent / "store"
        self.sent: dict[tuple[str, str], str] = {}
        self.count = 0
        self.brokers: list[LocalBroker] = []
        self.open()
        self.open()

    def open(self) -> None:
        broker = mq.open(self.root, default_queue_count=2, **SMALL)
        set_dedup_buckets(broker, 2)
        self.brokers.append(broker)

    @rule(topic=TOPICS, key=KEYS, which=st.integers(0, 1), by_id=st.booleans())
    def send(self, topic: str, key: str, which: int, by_id: bool) -> None:
        broker = self.brokers[which]
        with mq.Producer(broker, dedup_window=3600) as producer:
            if by_id:
                key = f"{int(key[4:]):032X}"
                result = producer.send(mq.Message(topic, b"one"), unique_id=key)
            else:
                result = producer.send(mq.Message(topic, b"one"), dedup_key=key)
        known = self.sent.get((topic, key))
        if known is not None:
            assert result.offset_msg_id == known, f"{key} was stored twice"
        else:
            assert result.offset_msg_id not in self.sent.values()
            self.count += 1
            self.sent[topic, key] = result.offset_msg_id

    @rule(topic=TOPICS, key=KEYS, which=st.integers(0, 1), way=st.sampled_from(["send", "batch", "half"]))
    def send_in_any_case(self, topic: str, key: str, which: int, way: str) -> None:
        """By a reader that does not know windows."""
        broker, message = self.brokers[which], mq.Message(topic, b"theirs", dedup_key=key)
        if way == "half":
            queue = broker.publishable(topic)[0]
            half = prepare_one(broker, queue, "payers", message, b"theirs", 0)
            place = int(half.offset_msg_id[-16:], 16), half.queue_offset
            broker.transactions.ender("payers")(*place, mq.TransactionState.COMMIT)
            stored = next(found for found in broker.query(topic, key) if found.msg_id == half.msg_id)
            stored_id = stored.offset_msg_id
        else:
            with mq.Producer(broker) as producer:
                result = producer.send(message) if way == "send" else producer.send_batch([message])
            stored_id = result.offset_msg_id
        self.sent.setdefault((topic, key), stored_id)
        self.count += 1

    @rule(topic=TOPICS)
    def send_without_a_key(self, topic: str) -> None:
        mq.Producer(self.brokers[0]).send(mq.Message(topic, b"plain", keys="key-1"))
        self.count += 1

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.brokers.pop(which).close()
        self.open()

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        if topic in self.brokers[0].topics():
            self.count -= sum(queue.max_offset for queue in self.brokers[0].topic(topic).queues)
            self.brokers[0].delete_topic(topic)
            self.sent = {key: sent for key, sent in self.sent.items() if key[0] != topic}

    @rule()
    def lose_the_table(self) -> None:
        """As a reboot does; no process has it open then."""
        while self.brokers:
            self.brokers.pop().close()
        (self.root / "mq" / "dedup").unlink(missing_ok=True)
        self.open()
        self.open()

    @rule(at=st.integers(0, 4096 + 2 * (256 + 8) - 1), bit=st.integers(0, 7))
    def flip_a_bit(self, at: int, bit: int) -> None:
        """While it is in use."""
        path = self.root / "mq" / "dedup"
        if path.exists():
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << bit]))

    @invariant()
    def each_is_stored_once(self) -> None:
        broker = self.brokers[0]
        stored = sum(queue.max_offset for topic in broker.topics() for queue in broker.topic(topic).queues)
        assert stored == self.count

    def teardown(self) -> None:
        while self.brokers:
            self.brokers.pop().close()
        found = [str(problem) for problem in problems(self.root)]
        shutil.rmtree(self.parent)
        assert found == []


class Handles(RuleBasedStateMachine):
    """The model: the keys in the order in which they were handled."""

    SIZE = 5

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp())
        self.root = self.parent / "store"
        self.handled: OrderedDict[str, None] = OrderedDict()
        self.brokers: list[LocalBroker] = []
        self.onces: list[mq.Once] = []
        for _ in range(2):
            self.open()

    def open(self) -> None:
        self.brokers.append(mq.open(self.root, **SMALL))
        self.onces.append(mq.Once(self.brokers[-1], "billing", size=self.SIZE, wait=0))

    @rule(keys=st.lists(KEYS, min_size=1, max_size=20), which=st.integers(0, 1), fails=st.booleans())
    def handle(self, keys: list[str], which: int, fails: bool) -> None:
        for key in keys:
            try:
                with self.onces[which](key) as fresh:
                    assert fresh == (key not in self.handled)
                    if fails:
                        raise ValueError
            except ValueError:
                continue
            if fresh:
                self.handled[key] = None
                if len(self.handled) > self.SIZE:
                    self.handled.popitem(last=False)

    @rule(key=KEYS)
    def one_at_a_time(self, key: str) -> None:
        if key in self.handled:
            return
        with self.onces[0](key):
            try:
                with self.onces[1](key):
                    raise AssertionError("both are at it")
            except mq.Retry:
                pass
        self.handled[key] = None
        if len(self.handled) > self.SIZE:
            self.handled.popitem(last=False)

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        self.onces[which].clear()
        self.handled.clear()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.brokers.pop(which).close()
        self.onces.pop(which)
        self.open()

    @rule()
    def come_back(self) -> None:
        while self.brokers:
            self.brokers.pop().close()
            self.onces.pop()
        self.open()
        self.open()

    @invariant()
    def both_know_the_last(self) -> None:
        for once in self.onces:
            found = [key for key in (f"key-{number}" for number in range(41)) if once.seen(key)]
            assert sorted(found) == sorted(self.handled)

    def teardown(self) -> None:
        while self.brokers:
            self.brokers.pop().close()
        shutil.rmtree(self.parent)


def test_sends_are_as_a_dict_would_have_them() -> None:
    run_state_machine_as_test(Sends, settings=settings(max_examples=40, stateful_step_count=25))


def test_handled_keys_are_as_an_ordered_dict_would_have_them() -> None:
    run_state_machine_as_test(Handles, settings=settings(max_examples=40, stateful_step_count=25))
