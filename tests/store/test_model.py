"""Any sequence of sending, reading, closing, deleting and damage by hand, against a dict of lists.

Two brokers of one process share the directory. The model is what is in each queue; retention alone takes from
it, at the front. At the end of each run every invariant of the store is checked.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.directory.checkpoint import Checkpoint, write_checkpoint
from tests.support.appending import append_many
from tests.support.insides import log_end
from tests.support.store.small_store import (
    LOG_FILE_SIZE,
    log_files,
    messages_of,
    open_small,
    send,
)

TOPICS = ["A", "B"]
QUEUES = 2
TAGS = [None, "paid", "refunded"]

topics = st.sampled_from(TOPICS)
queue_ids = st.integers(0, QUEUES - 1)
bodies = st.integers(1, 600)
which = st.integers(0, 1)


class Kept:
    """One queue: what was ever sent to it, as (body, tag, key), and how much of that is gone."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, str | None, str]] = []
        self.gone = 0


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="mq-model-"))
        self.path = self.root / "store"
        self.brokers: list[LocalBroker | None] = [None, None]
        self.queues: dict[str, list[Kept]] = {}
        self.count = 0
        self.mode = "async"

    @initialize(mode=st.sampled_from(["async", "sync"]))
    def open_first(self, mode: str) -> None:
        # One for all: a broker in sync mode does not see yet what one in async mode has not flushed.
        self.mode = mode
        self.open(0)
        self.create_topic("A")

    @rule(place=which)
    def open(self, place: int) -> None:
        if self.brokers[place] is None:
            self.brokers[place] = self.open_patient()

    def open_patient(self) -> LocalBroker:
        """One whose duties delete nothing: retention is due where the model says so."""
        return open_small(self.path, flush=self.mode, retention_hours=1e5)

    @rule(place=which)
    def close(self, place: int) -> None:
        broker, self.brokers[place] = self.brokers[place], None
        if broker is not None:
            broker.close()

    def close_all(self) -> None:
        for place in range(2):
            self.close(place)

    def chosen(self, place: int) -> LocalBroker:
        """The one at this place if it is open, else any."""
        return self.brokers[place] or self.any_broker()

    def any_broker(self) -> LocalBroker:
        for broker in self.brokers:
            if broker is not None:
                return broker
        self.brokers[0] = broker = self.open_patient()
        return broker

    @rule(topic=topics)
    def create_topic(self, topic: str) -> None:
        self.any_broker().create_topic(topic, QUEUES)
        self.queues.setdefault(topic, [Kept() for _ in range(QUEUES)])

    @rule(topic=topics, again=st.booleans())
    def delete_topic(self, topic: str, again: bool) -> None:
        if topic in self.queues:
            self.any_broker().delete_topic(topic)
            del self.queues[topic]
        if again:
            self.create_topic(topic)

    def numbered(self, size: int) -> tuple[bytes, str]:
        self.count += 1
        return (b"%d " % self.count).ljust(size, b"x"), f"key{self.count}"

    @rule(topic=topics, queue_id=queue_ids, size=bodies, tag=st.sampled_from(TAGS), place=which)
    def send(self, topic: str, queue_id: int, size: int, tag: str | None, place: int) -> None:
        if topic not in self.queues:
            return
        broker = self.chosen(place)
        body, key = self.numbered(size)
        kept = self.queues[topic][queue_id]
        sent = send(broker, topic, queue_id, body, tags=tag, keys=key)
        assert sent.queue_offset == len(kept.messages)
        kept.messages.append((body, tag, key))
        assert broker.message(sent.msg_id).body == body
        assert broker.message(sent.offset_msg_id).body == body

    @rule(topic=topics, queue_id=queue_ids, sizes=st.lists(bodies, min_size=1, max_size=4), place=which)
    def send_batch(self, topic: str, queue_id: int, sizes: list[int], place: int) -> None:
        if topic not in self.queues:
            return
        broker = self.chosen(place)
        kept = self.queues[topic][queue_id]
        batch = [self.numbered(size) for size in sizes]
        sent = append_many(
            broker, topic, queue_id, [mq.Message(topic, body, keys=key) for body, key in batch]
        )
        assert sent.queue_offset == len(kept.messages)
        kept.messages += [(body, None, key) for body, key in batch]
        for msg_id, (body, _) in zip(sent.msg_ids, batch, strict=True):
            assert broker.message(msg_id).body == body

    @rule(topic=topics, queue_id=queue_ids, place=which)
    def roll(self, topic: str, queue_id: int, place: int) -> None:
        """Fill what is left of the log's file, and a file of the queue."""
        for size in (2000, 2000, 1, 1):
            self.send(topic, queue_id, size, None, place)

    @rule(
        topic=topics,
        queue_id=queue_ids,
        offset=st.integers(-1, 40),
        count_max=st.integers(1, 9),
        tag=st.sampled_from(TAGS),
        place=which,
    )
    def read(
        self, topic: str, queue_id: int, offset: int, count_max: int, tag: str | None, place: int
    ) -> None:
        if topic not in self.queues:
            return
        broker = self.chosen(place)
        kept = self.queues[topic][queue_id]
        high = len(kept.messages)
        result = broker.topic(topic).queues[queue_id].read(offset, count_max=count_max, expression=tag or "*")
        assert (result.min_offset, result.max_offset) == (kept.gone, high)
        found = [(message.queue_offset, message.body) for message in result.messages]
        if not kept.gone <= offset <= high:
            assert result.status is mq.PullStatus.OFFSET_ILLEGAL
            assert result.next_offset == (kept.gone if offset < kept.gone else high)
            return
        assert found == [
            (at, kept.messages[at][0])
            for at in range(offset, result.next_offset)
            if tag is None or kept.messages[at][1] == tag
        ]
        if offset == high:
            assert result.status is mq.PullStatus.NO_NEW_MESSAGE
        elif found:
            assert result.status is mq.PullStatus.FOUND
            assert len(found) <= count_max
        else:
            assert result.status is mq.PullStatus.NO_MATCHED_MESSAGE
            assert result.next_offset > offset

    @rule(topic=topics, number=st.integers(0, 60))
    def query(self, topic: str, number: int) -> None:
        if topic not in self.queues:
            return
        want = [
            body
            for kept in self.queues[topic]
            for body, _, key in kept.messages[kept.gone :]
            if key == f"key{number}"
        ]
        assert [message.body for message in self.any_broker().query(topic, f"key{number}")] == want

    @rule(oldest=st.integers(1, 4))
    def expire(self, oldest: int) -> None:
        broker = self.any_broker()
        end = log_end(broker)
        files = [file for file in log_files(self.path) if int(file.name) < end]
        moment = time.time() - 100 * 3600
        for file in files[:oldest]:
            os.utime(file, (moment, moment))
        count = broker.expire(retention_hours=72)
        note(f"{count} of {len(files)} files went")
        kept_files = {int(file.name) for file in log_files(self.path)}
        assert count <= max(0, len(files) - 1)
        for topic, queues in self.queues.items():
            for queue_id, kept in enumerate(queues):
                queue = broker.topic(topic).queues[queue_id]
                low = queue.min_offset
                assert kept.gone <= low <= len(kept.messages)
                kept.gone = low
        assert all(
            message.log_offset // LOG_FILE_SIZE * LOG_FILE_SIZE in kept_files
            for message in self.all_messages(broker)
        )

    def all_messages(self, broker: LocalBroker) -> list[mq.MessageExt]:
        return [
            message
            for topic in self.queues
            for queue in broker.topic(topic).queues
            for message in messages_of(queue)
        ]

    @rule()
    def flush(self) -> None:
        self.any_broker().flush()

    def may_forget_offsets(self) -> bool:
        """A queue whose messages are all gone is known by its own files alone."""
        return any(
            kept.gone and kept.gone == len(kept.messages)
            for queues in self.queues.values()
            for kept in queues
        )

    @rule(kind=st.sampled_from(["queues", "queue file", "index", "crash", "copy"]), data=st.data())
    def damage(self, kind: str, data: st.DataObject) -> None:
        self.any_broker()
        self.close_all()
        if kind == "index":
            files = sorted((self.path / "index").glob("*"))
            lost = data.draw(st.lists(st.sampled_from(files), unique=True)) if files else []
            for file in lost:
                file.unlink()
        elif kind == "crash":
            self.crash(data)
        elif kind == "copy":
            aside = self.root / "aside"
            self.path.rename(aside)
            shutil.copytree(aside, self.path)
            shutil.rmtree(aside)
        elif not self.may_forget_offsets():
            self.lose_queues(kind, data)

    def crash(self, data: st.DataObject) -> None:
        """Of the machine, with everything on disk: nothing may be lost."""
        (self.path / "abort").write_text("1")
        checkpoint = data.draw(st.sampled_from(["kept", "gone", "zero"]))
        if checkpoint == "gone":
            (self.path / "checkpoint").unlink(missing_ok=True)
        elif checkpoint == "zero":
            write_checkpoint(self.path, Checkpoint(), sync=False)
        if data.draw(st.booleans()):
            shutil.rmtree(self.path / "mq")

    def lose_queues(self, kind: str, data: st.DataObject) -> None:
        root = self.path / "consumequeue"
        if kind == "queues":
            lost = data.draw(st.sampled_from([root, *sorted(root.glob("*")), *sorted(root.glob("*/*"))]))
            shutil.rmtree(lost)
            # Without mq/, nothing but the whole log would tell that a single queue ever was.
            if lost == root and data.draw(st.booleans()):
                shutil.rmtree(self.path / "mq")
        elif files := sorted(root.glob("*/*/*")):
            data.draw(st.sampled_from(files)).unlink()

    @invariant()
    def everything_is_there(self) -> None:
        for broker in self.brokers:
            if broker is None:
                continue
            assert broker.topics() == sorted(self.queues)
            for topic, queues in self.queues.items():
                for queue, kept in zip(broker.topic(topic).queues, queues, strict=True):
                    stored = messages_of(queue)
                    assert [(m.queue_offset, m.body) for m in stored] == [
                        (offset, kept.messages[offset][0]) for offset in range(kept.gone, len(kept.messages))
                    ]

    def teardown(self) -> None:
        try:
            self.any_broker()
            self.everything_is_there()
            self.close_all()
            assert list(problems(self.path)) == []
        finally:
            self.close_all()
            shutil.rmtree(self.root)


TestStore = StoreMachine.TestCase
# Each run opens and closes many stores: fewer of them than of other properties.
TestStore.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=40)
