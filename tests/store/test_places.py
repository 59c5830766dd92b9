"""The places of deleted queues are used again: under numbers that no holder of an old one can mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.native import ffi, lib
from mq.store.queue.reader import Reader
from mq.store.shared.group_file import GroupFile
from mq.store.shared.group_slots import (
    SLOT_SIZE,
    SLOTS_AT,
    offsets_in,
    place_of,
    queue_byte,
    slot_word,
    use_of,
)
from mq.store.shared.queue_table import Numbers
from tests.support import assigned
from tests.support.appending import append_one
from tests.support.insides import control_of, store_of
from tests.support.processes.fail_build import fail_build, fail_points

MANY = lib.MQ_SPARE_PLACES + 100  # so many queues deleted, and the next ones take their places


def numbers_of(broker: LocalBroker, topic: str, count: int) -> list[int]:
    """Have a topic of so many queues, each with a place in the table."""
    broker.create_topic(topic, count)
    numbers = Numbers(store_of(broker))
    return [numbers.find(topic, queue_id, add=True) for queue_id in range(count)]


def used(broker: LocalBroker) -> int:
    return store_of(broker).word(lib.MQ_PLACE_COUNT)


def come_and_go(broker: LocalBroker, topic: str = "old", count: int = MANY) -> list[int]:
    """The numbers of queues that are deleted, so that places are used again from now on."""
    numbers = numbers_of(broker, topic, count)
    broker.delete_topic(topic)
    return numbers


def test_queues_that_come_and_go_take_no_more_places(directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("kept", 1).send(b"kept")
        seen: set[int] = set()
        for number in range(5):
            numbers = come_and_go(broker, f"topic{number}")
            assert not seen & set(numbers)
            seen |= set(numbers)
        assert used(broker) <= 2 * MANY + 1
        [message] = broker.topic("kept").queues[0].read(0).messages
        assert message.body == b"kept"


def test_a_queue_in_the_place_of_another_has_its_own_messages_and_offsets(directory: Path) -> None:
    with mq.open(directory) as broker, mq.open(directory) as other:
        by_place: dict[int, int] = {}
        for topic in ("first", "second", "third"):
            queues = broker.create_topic(topic, MANY).queues
            for queue in queues[:: MANY // 50]:
                body = f"{topic}{queue.queue_id}".encode()
                for each in (broker, other):
                    append_one(each, topic, queue.queue_id, mq.Message(topic, b"x"), body, 0)
                for each in (other, broker):
                    found = each.topic(topic).queues[queue.queue_id].read(0).messages
                    assert [message.body for message in found] == [body, body]
                assert assigned.committed(broker, "g", queue.message_queue) is None
            assert broker.group("g").lag(topic) == 2 * len(queues[:: MANY // 50])
            for queue in queues[:: MANY // 50]:
                assigned.commit(broker, "g", queue.message_queue, 1)
            assert set(other.group("g").offsets(topic).values()) == {1}
            assert len(other.group("g").offsets(topic)) == len(queues[:: MANY // 50])
            for number in (Numbers(store_of(broker)).find(topic, queue.queue_id) for queue in queues):
                by_place[place_of(number)] = by_place.get(place_of(number), 0) + 1
            other.delete_topic(topic)
        assert max(by_place.values()) > 1


def test_an_old_number_is_refused_wherever_it_is_used(directory: Path) -> None:
    with mq.open(directory) as broker:
        old = come_and_go(broker)
        new = numbers_of(broker, "new", MANY)
        append_one(broker, "new", 0, mq.Message("new", b"x"), b"new", 0)
        assert {place_of(number) for number in old} & {place_of(number) for number in new}
        [stale, *_] = [number for number in old if any(place_of(number) == place_of(each) for each in new)]
        log, control = store_of(broker).live(), control_of(broker)
        assert not control.is_live(stale)
        receipt, result = ffi.new("mq_receipt *"), ffi.new("mq_pull_result *")
        none = ffi.NULL
        assert lib.mq_append(log, stale, -1, 0, 0, b"x", 1, b"", 0, none, none, receipt) == lib.MQ_GONE
        buffer, sizes = ffi.new("char[]", 4096), ffi.new("int32_t[]", 32)
        pulled = lib.mq_pull(log, stale, -1, 0, 32, 4096, none, -1, buffer, 4096, sizes, result)
        assert pulled == lib.MQ_STALE
        assert lib.mq_queue_max(log, stale) == lib.MQ_GONE
        assert lib.mq_queue_trim(log, stale, 0) == lib.MQ_GONE
        assert control.next_offset(stale) < 0
        assert len(broker.topic("new").queues[0].read(0).messages) == 1


def test_another_process_finds_queues_however_many_were_made(directory: Path) -> None:
    """Fewer than the table tells one by one, and more."""
    with mq.open(directory) as broker, mq.open(directory) as other:
        known = Numbers(store_of(other))
        for count in (MANY, lib.MQ_SPARE_PLACES, 3 * MANY, 1, 3 * MANY):
            numbers = numbers_of(broker, "topic", count)
            assert [known.find("topic", queue_id) for queue_id in range(count)] == numbers
            assert {number for number, (topic, _) in known.named().items() if topic == "topic"} == {*numbers}
            broker.delete_topic("topic")
            assert known.find("topic", 0) == -1


def test_a_late_commit_for_a_deleted_queue_is_none_for_the_next_one(directory: Path) -> None:
    with mq.open(directory) as broker:
        old = numbers_of(broker, "old", MANY)
        for queue in broker.topic("old").queues:
            assigned.commit(broker, "g", queue.message_queue, 0)
        broker.delete_topic("old")
        new = numbers_of(broker, "new", MANY)
        file = GroupFile.existing(store_of(broker), directory / "mq" / "groups" / "g")
        assert file is not None
        late, number = next(
            (late, number) for late in old for number in new if place_of(late) == place_of(number)
        )
        assert use_of(number) == use_of(late) + 1
        assert file.committed(number) is None
        with file.changing():
            file.raise_to(number, 3)
        with pytest.raises(mq.NotPermitted, match="deleted"):
            file.ready(late)
        assert file.committed(number) == 3
        assert file.committed(late) is None
        # A process that has not noticed yet.
        assert not lib.mq_slot_commit(file.pointer + slot_word(late), use_of(late) << 32, 0, 70)
        assert file.apply_reset(late, use_of(late) << 32) == -1
        assert file.committed(number) == 3
        slots = bytes(file.bytes[SLOTS_AT : SLOTS_AT + file.slots_ready * SLOT_SIZE])
        assert offsets_in(slots)[number] == 3
        with file.changing():
            file.raise_to(number, 4)
        assert file.committed(number) == 4
        assert queue_byte(number, 0) != queue_byte(late, 0)
        file.close()


def test_a_consumer_goes_on_in_a_topic_made_again_in_places_of_others(directory: Path) -> None:
    with mq.open(directory) as broker:
        come_and_go(broker)
        with mq.PullConsumer(broker, "g") as consumer:
            broker.create_topic("orders", 1)
            consumer.subscribe("orders")
            for number in range(3):
                broker.topic("orders").send(b"%d" % number)
                got: list[bytes] = []
                for _ in range(60):
                    got += [message.body for message in consumer.poll(1.0)]
                    if got:
                        break
                assert got == [b"%d" % number]
                consumer.commit()
                broker.delete_topic("orders")
                come_and_go(broker)
                broker.create_topic("orders", 1)


def test_a_full_table_says_so_and_has_room_again(directory: Path) -> None:
    with mq.open(directory) as broker:
        for topic in ("first", "second"):
            numbers_of(broker, topic, 65_536)
        assert used(broker) == lib.MQ_QUEUE_MAX
        with pytest.raises(mq.MQError, match="131,072 queues, its limit: delete topics"):
            numbers_of(broker, "third", 1)
        broker.delete_topic("first")
        numbers_of(broker, "third", 10)
        broker.topic("third").send(b"x")


@pytest.mark.crash
@pytest.mark.parametrize("point", ["PLACE_TAKEN", "PLACE_FILLED", "PLACE_TOLD"])
@pytest.mark.parametrize("passage", [1, MANY + 3], ids=["new", "used-again"])
def test_a_death_while_adding_a_queue_leaves_a_sound_table(directory: Path, point: str, passage: int) -> None:
    program = f"""
import mq
from mq.store.shared.queue_table import Numbers
from tests.support.insides import store_of
broker = mq.open({str(directory)!r}, duties=False)
numbers = Numbers(store_of(broker))
for topic in ("old", "new"):
    broker.create_topic(topic, {MANY})
    for queue_id in range({MANY}):
        numbers.find(topic, queue_id, add=True)
    if topic == "old":
        broker.delete_topic(topic)
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(fail_build()), str(Path(__file__).parents[2])]),
        "MQ_FAIL": f"{fail_points()[point]}:{passage}:kill",
    }
    with mq.open(directory, duties=False) as broker:
        broker.create_topic("kept", 1).send(b"kept")
        died = subprocess.run([sys.executable, "-c", program], check=False, env=environment, cwd="/")
        assert died.returncode == -signal.SIGKILL
        numbers = numbers_of(broker, "new", MANY)
        assert len({place_of(number) for number in numbers}) == MANY
        with mq.open(directory, duties=False) as third:
            for queue_id in (0, 1, 2, 3, MANY - 1):
                append_one(third, "new", queue_id, mq.Message("new", b"x"), b"%d" % queue_id, 0)
                [message] = broker.topic("new").queues[queue_id].read(0).messages
                assert message.body == b"%d" % queue_id
        [message] = broker.topic("kept").queues[0].read(0).messages
        assert message.body == b"kept"
    with mq.open(directory, duties=False) as again:
        assert Numbers(store_of(again)).find("new", 0) == numbers[0]


def test_an_answer_for_a_queue_that_lost_its_place_meanwhile_is_asked_again(directory: Path) -> None:
    """With an old number, and the version of the topics that it was right for, one gets the new queue."""
    with mq.open(directory) as broker:
        queue = broker.create_topic("orders", 1).queues[0].message_queue
        reader = Reader(store_of(broker), "mq", (-1,), lambda _queue: None)  # It hears of no change.
        before = reader.number(queue)
        broker.delete_topic("orders")
        come_and_go(broker)
        come_and_go(broker, "more")
        broker.create_topic("orders", 1).send(b"new")
        assert Numbers(store_of(broker)).find("orders", 0) != before
        assert [message.body for message in reader.pull(queue, 0, 32, 1 << 20, None, 0.0).messages] == [
            b"new"
        ]
        reader.close()
