"""Any sequence of calls: a broker answers as lists in a dict would.

The model knows topics, each a dict from queue to the messages sent to it. After every step what can be read
is what was sent, with dense offsets; at the end the directory of a LocalBroker is verified.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mq
from mq.api.broker import READ_SIZE_MAX
from mq.filter.tags import parse, tag_hash
from mq.store.check import problems
from tests.contract.conftest import open_broker

TOPICS = ["a", "b-2", "c|%"]
BODIES = st.binary(min_size=1, max_size=300) | st.sampled_from([b"x" * 5000, b"y" * 70_000])
TAGS = st.sampled_from([None, "Aa", "BB", "标签", "paid"])
QUERY_COUNT_MAX = 64
RECORD_SIZE_MAX = 71_000
KEYS = st.lists(st.sampled_from(["k1", "k2", "Aa", "BB"]), max_size=2)
PROPERTIES = st.none() | st.dictionaries(
    st.sampled_from(["p", "größe"]), st.text("ab \n", min_size=1).filter(str.strip)
)
FLAGS = st.sampled_from([0, 1, -1, (1 << 31) - 1])
Values = tuple[bytes, "str | None", tuple[str, ...], int]


@st.composite
def contents(draw: st.DrawFn) -> Callable[[str], mq.Message]:
    body, tags, keys = draw(BODIES), draw(TAGS), draw(KEYS)
    properties, flag = draw(PROPERTIES), draw(FLAGS)
    return lambda topic: mq.Message(topic, body, tags=tags, keys=keys, properties=properties, flag=flag)


class Sent:
    """What the model knows of one message."""

    def __init__(self, message: mq.Message, msg_id: str, offset_msg_id: str) -> None:
        self.message = message
        self.msg_id = msg_id
        self.offset_msg_id = offset_msg_id

    def is_like(self, found: mq.MessageExt) -> bool:
        given = self.message
        properties = {
            name: value
            for name, value in found.properties.items()
            if name not in {"TAGS", "KEYS", "UNIQ_KEY"}
        }
        return (
            (found.topic, found.body, found.tags, found.keys, found.flag, found.msg_id, found.offset_msg_id)
            == (given.topic, given.body, given.tags, given.keys, given.flag, self.msg_id, self.offset_msg_id)
        ) and properties == given.properties


class Machine(RuleBasedStateMachine):
    kind = ""

    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.broker = open_broker(self.kind, self.directory / "store")
        self.producer = mq.Producer(self.broker)
        self.model: dict[str, dict[int, list[Sent]]] = {}
        self.write_counts: dict[str, int] = {}

    def teardown(self) -> None:
        self.producer.close()
        self.broker.close()
        if self.kind == "local":
            assert [str(problem) for problem in problems(self.directory / "store")] == []
        shutil.rmtree(self.directory)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def create(self, topic: str, count: int) -> None:
        queues = self.model.get(topic, {})
        if any(messages for queue_id, messages in queues.items() if queue_id >= count):
            with pytest.raises(mq.NotPermitted, match="shrink=True"):  # No group has consumed them.
                self.broker.create_topic(topic, count)
            return
        queues = self.model.setdefault(topic, {})
        assert len(self.broker.create_topic(topic, count).queues) == count
        self.write_counts[topic] = count
        for queue_id in range(count):
            queues.setdefault(queue_id, [])

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        if topic in self.model:
            self.broker.delete_topic(topic)
            del self.model[topic], self.write_counts[topic]
        else:
            with pytest.raises(mq.TopicNotFound):
                self.broker.delete_topic(topic)

    @rule(topic=st.sampled_from(TOPICS), content=contents(), key=st.none() | st.text(max_size=3))
    def send(self, topic: str, content: Callable[[str], mq.Message], key: str | None) -> None:
        message = content(topic)
        self._sent([message], self.producer.send(message, shard_key=key))

    @rule(topic=st.sampled_from(TOPICS), batch=st.lists(contents(), min_size=1, max_size=40))
    def send_batch(self, topic: str, batch: list[Callable[[str], mq.Message]]) -> None:
        messages = [content(topic) for content in batch]
        size = sum(len(message.body) + len(message.encoded) + 22 for message in messages)
        if size > self.broker.message_size_max:
            with pytest.raises(mq.MessageTooLarge):
                self.producer.send_batch(messages)
        else:
            self._sent(messages, self.producer.send_batch(messages))

    def _sent(self, messages: list[mq.Message], result: mq.SendResult) -> None:
        topic, _, queue_id = result.queue
        if topic not in self.model:
            self.write_counts[topic] = 4
            self.model[topic] = {each: [] for each in range(4)}
        assert queue_id < self.write_counts[topic]
        queue = self.model[topic][queue_id]
        assert result.queue_offset == len(queue)
        offset_ids = result.offset_msg_id.split(",")
        assert len(messages) == len(result.msg_ids) == len(offset_ids)
        queue += map(Sent, messages, result.msg_ids, offset_ids)

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(),
        expression=st.sampled_from(["*", "Aa", "BB || paid", "标签", "none"]),
        count_max=st.integers(1, 50),
    )
    def read(self, data: st.DataObject, expression: str, count_max: int) -> None:
        topic = data.draw(st.sampled_from(sorted(self.model)))
        queue_id = data.draw(st.integers(0, self.write_counts[topic] - 1))
        sent = self.model[topic][queue_id]
        offset = data.draw(st.integers(-1, len(sent) + 1))
        result = (
            self.broker.topic(topic).queues[queue_id].read(offset, count_max=count_max, expression=expression)
        )
        assert (result.min_offset, result.max_offset) == (0, len(sent))
        if not 0 <= offset <= len(sent):
            assert result.status is mq.PullStatus.OFFSET_ILLEGAL
            assert result.next_offset == min(max(offset, 0), len(sent))
        elif offset == len(sent):
            assert result.status is mq.PullStatus.NO_NEW_MESSAGE
            assert result.next_offset == offset
        else:
            assert offset < result.next_offset <= len(sent)
            wanted = parse(expression)
            passed = sent[offset : result.next_offset]
            matching = [each for each in passed if wanted is None or each.message.tags in wanted.tags]
            assert [found.msg_id for found in result.messages] == [each.msg_id for each in matching]
            assert all(each.is_like(found) for each, found in zip(matching, result.messages, strict=True))
            assert bool(matching) == (result.status is mq.PullStatus.FOUND)
            # Neither is it cut short without a reason: the count, the bytes, or the end.
            same_hash = [
                each
                for each in passed
                if wanted is None or tag_hash(each.message.tags or "") in wanted.hashes
            ]
            assert len(same_hash) <= count_max
            size = sum(found.store_size for found in result.messages)
            is_full = size + RECORD_SIZE_MAX > READ_SIZE_MAX
            assert len(same_hash) == count_max or result.next_offset == len(sent) or is_full

    @precondition(lambda self: any(queue for queues in self.model.values() for queue in queues.values()))
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        everything = [each for queues in self.model.values() for queue in queues.values() for each in queue]
        wanted = data.draw(st.sampled_from(everything))
        assert wanted.is_like(self.broker.message(wanted.msg_id))
        assert wanted.is_like(self.broker.message(wanted.offset_msg_id))
        for key in wanted.message.keys:
            queues = self.model[wanted.message.topic].values()
            having = [each for queue in queues for each in queue if key in each.message.keys]
            newest = sorted(having, key=lambda each: each.offset_msg_id, reverse=True)
            found = self.broker.query(wanted.message.topic, key, count_max=QUERY_COUNT_MAX)
            # The log still has what was sent to a topic of that name before it was deleted.
            known = {each.msg_id for each in having}
            alive = [message.msg_id for message in found if message.msg_id in known]
            assert alive == [each.msg_id for each in newest][: len(alive)]
            assert len(alive) == len(having) or len(found) == QUERY_COUNT_MAX

    @precondition(lambda self: self.kind == "local")
    @rule()
    def reopen(self) -> None:
        self.producer.close()
        self.broker.close()
        self.broker = open_broker(self.kind, self.directory / "store")
        self.producer = mq.Producer(self.broker)

    @invariant()
    def every_queue_holds_what_was_sent_to_it(self) -> None:
        assert self.broker.topics() == sorted(self.model)
        for topic, queues in self.model.items():
            assert [queue.max_offset for queue in self.broker.topic(topic).queues] == [
                len(queues[queue_id]) for queue_id in range(self.write_counts[topic])
            ]


class MemoryMachine(Machine):
    kind = "memory"


class LocalMachine(Machine):
    kind = "local"


@pytest.mark.parametrize("machine", [MemoryMachine, LocalMachine])
def test_a_broker_answers_as_lists_in_a_dict_would(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=30))
