"""A bulk that says how many messages it has is found whole after a power cut, or not at all.

The log is cut between any two records and inside of any, over bulks that end where others begin and that lie
in several files.
"""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from tests.support.store.small_store import (
    FOR_EVER_MS,
    LOG_FILE_SIZE,
    contents,
    crash_of,
    fill,
    messages_of,
    open_small,
    overwrite_log,
    recovered,
    send,
    zero_log_from,
)


def append(broker: LocalBroker, count: int, *, said: int | None) -> None:
    """A bulk for the queues of A in turn, whose first message says that it has so many."""
    queues = [queue.message_queue for queue in broker.topic("A").queues]
    bodies = [b"bulk" * 20] * count
    properties = [b""] * count
    if said is not None:
        properties[0] = b"MQ_BULK\x01%d\x02KEYS\x01head\x02" % said
    broker.bulk.append(
        queues,
        array("i", [place % len(queues) for place in range(count)]),
        bodies,
        array("i", map(len, bodies)),
        properties,
        array("i", map(len, properties)),
    )


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[mq.MessageExt], list[tuple[int, int]]]:
    """A crashed store, all its messages in log order, and its bulks: which messages they are."""
    root = tmp_path_factory.mktemp("written")
    bulks = []
    with open_small(root / "live") as broker:
        broker.create_topic("A", 2)
        at = 0
        for count, said in ((5, 5), (3, 3), (30, 30), (2, None), (9, 9)):
            fill(broker, "A", 2, 2)
            append(broker, count, said=said)
            if said:
                bulks.append((at + 2, at + 2 + count))
            at += 2 + count
        messages = sorted(
            (message for queue in broker.topic("A").queues for message in messages_of(queue)),
            key=lambda message: message.log_offset,
        )
        assert len(messages) == at
        assert messages[-1].log_offset > 2 * LOG_FILE_SIZE
        return crash_of(broker, root / "crashed"), messages, bulks


def test_wherever_the_log_is_cut_a_bulk_is_whole_or_not_there(
    tmp_path: Path, written: tuple[Path, list[mq.MessageExt], list[tuple[int, int]]]
) -> None:
    crashed, messages, bulks = written
    after = tmp_path / "after"
    for place, message in enumerate(messages):
        shutil.copytree(crashed, after)
        # At its first byte or its last one.
        zero_log_from(after, message.log_offset + place % 2 * (message.store_size - 1))
        wanted = next((first for first, behind in bulks if first < place < behind), place)
        with open_small(after) as broker:
            found = [each for queue in broker.topic("A").queues for each in messages_of(queue)]
            assert sorted(each.log_offset for each in found) == [
                each.log_offset for each in messages[:wanted]
            ]
            assert len(broker.query("A", "head")) == sum(behind <= wanted for _, behind in bulks)
            send(broker, "A", 0, b"next")
        assert list(problems(after)) == []
        shutil.rmtree(after)


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    broker = open_small(tmp_path / "before")
    broker.create_topic("A", 1)
    return broker


def test_what_was_stored_later_is_never_taken_for_the_rest_of_a_bulk(
    broker: LocalBroker, directory: Path
) -> None:
    """A broker that does not know bulks cut one, and went on."""
    with broker:
        fill(broker, "A", 3)
        append(broker, 3, said=100)
        queue = broker.topic("A").queues[0]
        last = messages_of(queue)[-1]
        while messages_of(queue)[-1].store_time_ms == last.store_time_ms:
            send(broker, "A", 0, b"later")
        whole = contents(broker)
        crash_of(broker, directory)
    with open_small(directory) as after:
        assert contents(after) == whole


def test_a_clean_end_is_believed(broker: LocalBroker, directory: Path) -> None:
    with broker:
        append(broker, 3, said=4)
        whole = contents(broker)
    shutil.copytree(broker.path, directory, ignore=shutil.ignore_patterns("mq"))
    with open_small(directory) as after:
        assert recovered(after).log_end > 0
        assert contents(after) == whole


def test_a_record_that_rotted_does_not_take_its_bulk_with_it(broker: LocalBroker, directory: Path) -> None:
    """What follows was on disk: so was the bulk."""
    with broker:
        append(broker, 3, said=3)
        damaged = messages_of(broker.topic("A").queues[0])[1]
        fill(broker, "A", 3)
        crash_of(broker, directory, physic_time=FOR_EVER_MS)
    overwrite_log(directory, damaged.log_offset + 90, b"?")
    with open_small(directory) as after:
        assert recovered(after).damaged == [damaged.log_offset]
        queue = after.topic("A").queues[0]
        assert (queue.min_offset, queue.max_offset) == (0, 6)
    shutil.rmtree(directory)  # It is damaged, and mq verify says so.


def test_a_message_that_looks_like_the_beginning_of_a_bulk_is_rejected() -> None:
    with pytest.raises(mq.MessageInvalid, match="reserved"):
        mq.Message("A", b"x", properties={"MQ_BULK": "7"})
