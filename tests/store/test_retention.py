"""Expired messages are deleted by whole files; a reader sees only that they are gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mq
from mq.broker.local import LocalBroker
from mq.store import retention
from mq.store.retention import SET_BACK_MS, Aged, Away, age_ms, expired
from tests.support.eventually import eventually
from tests.support.insides import control_of, store_of
from tests.support.store.peer import Peer
from tests.support.store.small_store import (
    LOG_FILE_SIZE,
    QUEUE_FILE_UNITS,
    contents,
    fill,
    log_files,
    messages_of,
    open_small,
    queue_files,
    send,
    written,
)

HOUR_MS = 3_600_000
ILLEGAL = mq.PullStatus.OFFSET_ILLEGAL


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        yield broker


def age(directory: Path, count: int, hours: float) -> None:
    """As if the oldest files had been written to last so long ago."""
    for file in log_files(directory)[:count]:
        moment = time.time() - hours * 3600
        os.utime(file, (moment, moment))


AGES = st.lists(st.integers(0, 10), min_size=0, max_size=12)


def files_of(ages: list[int]) -> list[Aged]:
    return [Aged(number * LOG_FILE_SIZE, 100 - age) for number, age in enumerate(ages)]


@given(ages=AGES, retention_ms=st.integers(0, 11), force_count=st.integers(0, 14))
def test_the_oldest_go_up_to_the_first_that_is_young_and_never_the_last(
    ages: list[int], retention_ms: int, force_count: int
) -> None:
    count = expired(files_of(ages), 100, retention_ms, force_count=force_count)
    assert 0 <= count <= max(0, len(ages) - 1)
    assert count >= min(force_count, len(ages) - 1)
    for place, age in enumerate(ages[:-1]):
        if place < count:
            assert age >= retention_ms or place < force_count
        elif place == count:
            assert age < retention_ms


ENDS = st.integers(0, 250) | st.integers(SET_BACK_MS, SET_BACK_MS + 250)


@given(
    changed_ms=st.integers(0, 100),
    now_ms=st.integers(100, 200),
    times=st.lists(st.tuples(st.integers(0, 250), ENDS), max_size=8),
)
def test_messages_do_not_age_while_no_process_has_the_store_open(
    changed_ms: int, now_ms: int, times: list[tuple[int, int]]
) -> None:
    """By counting: every ms from the change to now that is of no absence; what ends a day ahead is none."""
    absences = [Away(*sorted(each)) for each in times]
    ended = [each for each in absences if each.end_ms <= now_ms + SET_BACK_MS]
    away = {ms for each in ended for ms in range(each.begin_ms, min(each.end_ms, now_ms))}
    assert age_ms(changed_ms, now_ms, absences) == len(set(range(changed_ms, now_ms)) - away)


def test_nothing_is_no_file() -> None:
    assert expired([], 0, 0) == 0
    assert expired([], 0, 0, force_count=3) == 0


def test_the_ratio_is_of_what_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 blocks of 4 KiB 300 are used, 200 are the administrator's and 500 are anybody's."""
    blocks = os.statvfs_result((4096, 4096, 1000, 700, 500, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: blocks)
    excesses = {0.0: 300 * 4096, 0.25: 100 * 4096, 0.3749: 328, 0.375: 0, 0.5: 0, 1.0: 0}
    assert {ratio: retention.disk_excess(tmp_path, ratio) for ratio in excesses} == excesses


def test_files_older_than_the_retention_go(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 120)
    broker.flush()
    before = written(directory)
    age(directory, 3, 5)
    assert broker.expire(retention_hours=6) == 0
    assert broker.expire(retention_hours=4) == 3
    assert written(directory) == before[3:]
    low, high, messages = contents(broker)["A", 0]
    assert high == 120
    assert [offset for offset, _ in messages] == list(range(low, 120))
    assert messages[0][1] == b"message %d" % low
    oldest = broker.topic("A").queues[0].read(low).messages[0]
    assert oldest.log_offset == int(before[3].name)


def test_the_newest_file_stays_whatever_its_age(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 120)
    broker.flush()
    age(directory, 99, 1000)
    broker.expire()
    assert len(written(directory)) == 1
    assert len(contents(broker)["A", 0][2]) >= 1


def test_the_retention_is_the_option_of_the_broker(directory: Path) -> None:
    # Without duties, which would do it first where 10 s pass until it is asked for.
    with open_small(directory, retention_hours=10, duties=False) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 60)
        broker.flush()
        age(directory, 1, 9)
        assert broker.expire() == 0
        age(directory, 1, 11)
        assert broker.expire() == 1


def test_files_that_are_not_on_disk_yet_may_go_as_well(directory: Path) -> None:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 120)
        assert broker.expire(retention_hours=0) >= 3
        broker.flush()
        fill(broker, "A", 120)
        assert broker.expire(retention_hours=0) >= 3
        assert send(broker, "A", 0, b"last").queue_offset == 240


def test_a_full_disk_takes_the_oldest_file_at_a_time_if_that_was_asked_for(directory: Path) -> None:
    with open_small(directory, disk_ratio_max=0.0, duties=False) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 120)
        broker.flush()
        for left in range(len(written(directory)) - 1, 0, -1):
            assert broker.expire() == 1
            assert len(contents(broker)["A", 0][2]) > 0
            assert len(written(directory)) == left
        assert broker.expire() == 0


def test_offsets_keep_though_every_message_of_a_queue_is_gone(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        broker.create_topic("B", 2)
        fill(broker, "B", 2 * QUEUE_FILE_UNITS, 1)
        fill(broker, "B", 1, 1)
        fill(broker, "A", 120)
        broker.flush()
        broker.expire(retention_hours=0)
        want = contents(broker)
        assert want["B", 0] == (2 * QUEUE_FILE_UNITS + 1, 2 * QUEUE_FILE_UNITS + 1, [])
    with open_small(directory) as broker:
        assert contents(broker) == want
        assert send(broker, "B", 0, b"next").queue_offset == 2 * QUEUE_FILE_UNITS + 1
        assert contents(broker)["B", 0][2] == [(2 * QUEUE_FILE_UNITS + 1, b"next")]


def test_queue_files_go_with_their_last_message_and_one_stays(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 120)
    broker.flush()
    broker.expire(retention_hours=0)
    low = contents(broker)["A", 0][0]
    starts = [int(file.name) // 20 for file in queue_files(directory, "A")]
    assert starts == list(range(low // QUEUE_FILE_UNITS * QUEUE_FILE_UNITS, 120, QUEUE_FILE_UNITS))


def test_index_files_go_when_all_they_know_is_gone(broker: LocalBroker, directory: Path) -> None:
    fill(broker, "A", 120)
    assert len(broker.query("A", "message0")) == 1
    before = sorted((directory / "index").iterdir())
    assert len(before) >= 3
    broker.flush()
    broker.expire(retention_hours=0)
    after = sorted((directory / "index").iterdir())
    assert after == before[-len(after) :]
    assert len(after) < len(before)
    assert broker.query("A", "message0") == []
    assert [found.body for found in broker.query("A", "message119")] == [b"message 119"]


def test_ids_of_what_is_gone_are_not_found(broker: LocalBroker) -> None:
    first = send(broker, "A", 0, b"first")
    fill(broker, "A", 120)
    broker.flush()
    broker.expire(retention_hours=0)
    for msg_id in (first.msg_id, first.offset_msg_id):
        with pytest.raises(mq.MessageNotFound):
            broker.message(msg_id)


def test_below_what_is_kept_a_read_says_where_messages_begin(broker: LocalBroker) -> None:
    fill(broker, "A", 120)
    broker.flush()
    broker.expire(retention_hours=0)
    queue = broker.topic("A").queues[0]
    low = queue.min_offset
    assert low > 0
    result = queue.read(0)
    assert (result.status, result.next_offset, result.min_offset) == (ILLEGAL, low, low)
    assert queue.read(low).messages[0].queue_offset == low
    assert queue.offset_at(0) == low


def test_a_change_half_done_by_a_dead_process_is_repeated(directory: Path) -> None:
    """The marks moved up, the files are still there: nothing below the marks is shown as a message."""
    peer = Peer(directory)
    peer.do("broker.create_topic('A', 1); fill(broker, 'A', 120); broker.flush()")
    peer.do(
        "import pathlib, signal\n"
        "pathlib.Path.unlink = lambda path, missing_ok=False: os.kill(os.getpid(), signal.SIGKILL)"
    )
    with pytest.raises(EOFError):
        peer.do("broker.expire(retention_hours=0)")
    peer.kill()
    with open_small(directory) as broker:
        low, high, messages = contents(broker)["A", 0]
        assert high == 120
        assert [offset for offset, _ in messages] == list(range(low, 120))
        broker.expire(retention_hours=0)
        low, high, messages = contents(broker)["A", 0]
        assert low > 0
        assert [offset for offset, _ in messages] == list(range(low, 120))


def test_callers_of_expire_do_not_get_into_each_others_way(directory: Path) -> None:
    errors: list[BaseException] = []
    with open_small(directory) as broker, open_small(directory) as other:
        broker.create_topic("A", 1)
        done = threading.Event()

        def expire(mine: LocalBroker) -> None:
            try:
                while not done.is_set():
                    mine.expire(retention_hours=0)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        threads = [threading.Thread(target=expire, args=(mine,)) for mine in (broker, broker, other)]
        for thread in threads:
            thread.start()
        for number in range(2000):
            assert send(broker, "A", 0, b"%d" % number).queue_offset == number
        done.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert messages_of(broker.topic("A").queues[0])[-1].body == b"1999"


READ_UNTIL_TOLD = """
import threading
stopped = threading.Event()
seen, gone, errors = [], 0, []
def read():
    global gone
    queue = broker.topic("A").queues[0]
    offset = 0
    try:
        while True:
            last = stopped.is_set()
            result = queue.read(offset, count_max=5)
            if result.status is mq.PullStatus.OFFSET_ILLEGAL:
                assert result.next_offset > offset, result
                gone += 1
            for place, message in enumerate(result.messages):
                assert message.queue_offset == offset + place, (message, offset)
                assert message.body == b"message %d" % message.queue_offset
            seen.append(len(result.messages))
            # The oldest ones again and again, as a reader that lags behind all the time.
            offset = result.next_offset if len(seen) % 50 else 0
            if last:
                return
    except BaseException as error:
        errors.append(repr(error))
thread = threading.Thread(target=read)
thread.start()
"""


@pytest.mark.parametrize("read_only", [False, True])
def test_a_reader_in_another_process_gets_messages_or_learns_that_they_are_gone(
    directory: Path, read_only: bool
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        sent = 0
        with Peer(directory, read_only=read_only) as reader:
            reader.do(READ_UNTIL_TOLD)
            for _ in range(60):
                for _ in range(50):
                    send(broker, "A", 0, b"message %d" % sent)
                    sent += 1
                # It is there, and not halted all the time until it is told to stop.
                while not reader.ask("sum(seen) > 0 or errors"):
                    time.sleep(0.01)
                broker.expire(retention_hours=0)
            reader.do("stopped.set(); thread.join()")
            assert reader.ask("errors") == []
            assert reader.ask("gone") > 0
            assert sum(reader.ask("seen")) > 0
            # It goes on to the end from wherever it was.
            assert reader.ask("contents(broker)") == contents(broker)


def test_a_read_that_began_before_keeps_its_messages(broker: LocalBroker) -> None:
    fill(broker, "A", 120)
    broker.flush()
    result = broker.topic("A").queues[0].read(0)
    broker.expire(retention_hours=0)
    assert [message.body for message in result.messages] == [b"message %d" % at for at in range(32)]


def test_mappings_of_what_is_gone_are_let_go(directory: Path) -> None:
    with open_small(directory) as broker, open_small(directory) as other:
        broker.create_topic("A", 1)
        for _ in range(30):
            fill(broker, "A", 100)
            messages_of(other.topic("A").queues[0])
            broker.flush()
            broker.expire(retention_hours=0)
            store_of(other).release_old()
        maps = Path("/proc/self/maps").read_text().splitlines()
        held = [line for line in maps if str(directory) in line and "(deleted)" in line]
        # What it read last, and what was made ahead; not the hundred files that were.
        assert len(held) <= 8


@pytest.mark.rounds  # It takes ten seconds.
def test_processes_that_do_not_lead_let_go_of_what_another_one_deleted(directory: Path) -> None:
    """As long as one has a file mapped, the disk is not free, and one that is too full stays so."""
    with open_small(directory) as broker, ExitStack() as opened:
        broker.create_topic("A", 1)
        broker.create_topic("B", 1)
        for topic in "AB":
            fill(broker, topic, 100)
        kinds: list[dict[str, Any]] = [{}, {"duties": False}, {"read_only": True}]
        others = [opened.enter_context(Peer(directory, **options)) for options in kinds]
        for other in others:
            assert len(other.ask("messages_of(broker.topic('A').queues[0])")) == 100
            assert len(other.ask("messages_of(broker.topic('B').queues[0])")) == 100
        for other in others[:2]:
            other.do("fill(broker, 'A', 20)")
        broker.flush()
        broker.expire(retention_hours=0)
        broker.delete_topic("B")

        def held() -> list[list[str]]:
            """Deleted files that each has mapped."""
            parts = str(directory / "commitlog"), str(directory / "consumequeue")
            maps = [Path(f"/proc/{other.pid}/maps").read_text().splitlines() for other in others]
            return [
                [line for line in lines if "(deleted)" in line and any(each in line for each in parts)]
                for lines in maps
            ]

        assert all(len(each) > 20 for each in held())
        eventually(lambda: not any(held()), lambda: str(held()), 60)


def test_the_index_goes_on_where_the_log_begins_if_files_go_while_it_is_brought_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader looks up the log's begin; then the oldest files are deleted, with the messages it would
    read."""
    with open_small(directory, duties=False) as broker, open_small(directory, duties=False) as other:
        broker.create_topic("A", 1)
        fill(broker, "A", 120)
        broker.flush()
        put = store_of(other).index.put

        def put_late(*arguments: Any) -> int:
            monkeypatch.undo()
            broker.expire(retention_hours=0)
            store_of(other).release_old()
            return put(*arguments)

        monkeypatch.setattr(store_of(other).index, "put", put_late)
        assert [found.body for found in other.query("A", "message119")] == [b"message 119"]
        low, high, messages = contents(other)["A", 0]
        assert 0 < low < high - 1
        for _, body in messages:
            key = body.decode().replace(" ", "")
            assert [found.body for found in other.query("A", key)] == [body]


@pytest.mark.parametrize("extensions", [False, True])
def test_a_topic_made_again_while_the_old_one_s_files_go_keeps_its_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch, extensions: bool
) -> None:
    """Retention has found the old one's queue; by the time it looks, the files there are the new one's."""
    options: dict[str, Any] = {"enable_consume_queue_ext": True} if extensions else {}
    with open_small(directory, duties=False, consume_queue_ext_file_size=256, **options) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 120)
        broker.flush()
        control = control_of(broker)
        (listed,) = [queue for queue in control.queues() if queue[1] == "A"]
        made: list[Path] = []

        def found_before() -> Iterator[tuple[int, str, int]]:
            monkeypatch.undo()
            broker.delete_topic("A")
            broker.create_topic("A", 1)
            fill(broker, "A", 30, prefix="anew")
            made.extend(path for path in directory.glob("consumequeue*/A/0/*"))
            yield listed

        monkeypatch.setattr(control, "queues", found_before)
        assert broker.expire(retention_hours=0) > 0
        assert len({path.parent for path in made}) == 1 + extensions
        assert [path for path in made if not path.exists()] == []
        assert contents(broker)["A", 0] == (0, 30, [(at, b"anew %d" % at) for at in range(30)])
