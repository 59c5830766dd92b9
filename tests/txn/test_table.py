"""mq/transactions: its layout, one end per transaction, and its rebuild after a loss."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.broker.transactions.checker import TransactionChecker
from mq.store.native import lib
from mq.store.transactions import table as transactions
from mq.store.transactions.table import HEADER_SIZE, SIZE, Entry
from tests.support.processes.children import Child, Died, say

COMMIT, ROLLBACK, UNKNOWN = (
    mq.TransactionState.COMMIT,
    mq.TransactionState.ROLLBACK,
    mq.TransactionState.UNKNOWN,
)
GROUP = "payers"
COUNT = lib.MQ_TRANSACTION_COUNT

Place = tuple[int, int]


def begin(broker: LocalBroker, count: int = 1) -> list[Place]:
    """Store so many half messages; where they are."""
    broker.create_topic("orders")
    prepare = broker.transactions.preparer(broker.publishable("orders")[0], GROUP)
    places = []
    for number in range(count):
        body = str(number).encode()
        result = prepare(mq.Message("orders", body), body, 0)
        assert result is not None
        places.append((int(result.offset_msg_id[-16:], 16), result.queue_offset))
    return places


def stored(broker: LocalBroker) -> list[bytes]:
    found = [
        m.body for queue in broker.topic("orders").queues for m in queue.read(0, count_max=4096).messages
    ]
    return sorted(found, key=int)


def end(broker: LocalBroker, place: Place, state: mq.TransactionState) -> None:
    broker.transactions.ender(GROUP)(*place, state)


def test_the_layout_is_the_one_that_c_has() -> None:
    assert transactions.__doc__ is not None
    rows = re.findall(r"^ +(\d+) +(\d+)  (\w+)", transactions.__doc__, re.MULTILINE)
    at = {name: int(offset) for offset, _, name in rows}
    for name in ("ready", "tokens", "unwritten", "asked_begin", "asked_end"):
        assert at[name] == 8 * getattr(lib, f"MQ_TRANSACTIONS_{name.upper()}")
    assert at["round_ms"] == 8 * lib.MQ_TRANSACTIONS_ROUND_TIME
    assert at["event"] == lib.MQ_TRANSACTIONS_EVENT_AT
    assert at["rounds"] == lib.MQ_TRANSACTIONS_ROUNDS_AT
    for (offset, size, _), (following, _, _) in pairwise(rows):
        assert int(offset) + int(size) == int(following)


class TestEnds:
    def test_of_many_threads_and_brokers_one_stores_the_message(self, directory: Path) -> None:
        with mq.open(directory) as one, mq.open(directory) as two:
            places = begin(one, 200)
            barrier = threading.Barrier(4)

            def end_all(broker: LocalBroker) -> None:
                barrier.wait()
                for place in places:
                    end(broker, place, COMMIT)

            threads = [threading.Thread(target=end_all, args=(each,)) for each in (one, two, one, two)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert stored(one) == [str(number).encode() for number in range(200)]
            assert one.transactions.undecided() == []

    def test_the_first_of_two_that_differ_counts(self, directory: Path) -> None:
        with mq.open(directory) as broker:
            first, second = begin(broker, 2)
            end(broker, first, ROLLBACK)
            end(broker, first, ROLLBACK)
            with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
                end(broker, first, COMMIT)
            end(broker, second, UNKNOWN)
            end(broker, second, COMMIT)
            with pytest.raises(mq.NotPermitted, match="COMMIT"):
                end(broker, second, ROLLBACK)
            assert stored(broker) == [b"1"]

    def test_a_hung_handler_is_not_waited_for_forever(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mq.broker.transactions.transactions.WAIT_SECONDS", 0.05)
        with mq.open(directory) as broker, mq.open(directory) as hanging:
            (place,) = begin(broker)
            table = hanging.transactions.table()
            assert table.claim(place[1]) is None
            with pytest.raises(mq.StoreLocked, match="ending this transaction"):
                end(broker, place, COMMIT)
            table.close()  # As if it died.
            end(broker, place, COMMIT)
            assert stored(broker) == [b"0"]

    def test_a_topic_that_is_gone_is_made_again_or_missed(self, directory: Path) -> None:
        with mq.open(directory) as broker:
            (place,) = begin(broker)
            broker.delete_topic("orders")
            end(broker, place, COMMIT)
            assert stored(broker) == [b"0"]
        with mq.open(directory, auto_create_topics=False) as broker:
            broker.create_topic("orders", 1)
            (place,) = begin(broker)
            broker.delete_topic("orders")
            with pytest.raises(mq.TopicNotFound):
                end(broker, place, COMMIT)
            broker.create_topic("orders", 1)
            end(broker, place, COMMIT)
            assert stored(broker) == [b"0"]


class TestMany:
    def test_entries_make_room_and_are_told_of_before(self, directory: Path) -> None:
        """More transactions than the table has entries, all at once: what is not in it is found elsewhere."""
        with mq.open(directory) as broker:
            places = begin(broker, 400)
            for number, place in enumerate(places[:300]):
                end(broker, place, COMMIT if number % 2 else ROLLBACK)
            begin(broker, COUNT)
            table = broker.transactions.table()
            assert {table.state(place[1])[0] for place in places} == {Entry.ABSENT}
            for number in (0, 1, 298, 299):
                same, other = (COMMIT, ROLLBACK) if number % 2 else (ROLLBACK, COMMIT)
                end(broker, places[number], same)
                with pytest.raises(mq.NotPermitted, match=same.name):
                    end(broker, places[number], other)
            for _ in range(2):
                end(broker, places[398], COMMIT)
                end(broker, places[399], ROLLBACK)
            with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
                end(broker, places[399], COMMIT)
            wanted = [*range(1, 300, 2), 398]
            assert stored(broker) == [str(number).encode() for number in wanted]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(SIZE // 2)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4096))


def fill_with_noise(path: Path) -> None:
    noise = random.Random(1)
    with path.open("r+b") as file:
        file.write(noise.randbytes(SIZE))


def flip_entries(path: Path) -> None:
    noise = random.Random(2)
    content = bytearray(path.read_bytes())
    for at in range(HEADER_SIZE, HEADER_SIZE + 8 * 64):
        content[at] ^= 1 << noise.randrange(8)
    path.write_bytes(content)


def place_in(line: str) -> Place:
    log_offset, queue_offset = map(int, line.split())
    return log_offset, queue_offset


def end_and_die(root: str) -> None:
    broker = mq.open(root, duties=False)
    places = begin(broker, 3)
    path = broker.path / "mq" / "transactions"
    path.with_name("older").write_bytes(path.read_bytes())
    end(broker, places[0], COMMIT)
    end(broker, places[1], ROLLBACK)
    for place in places:
        say("{} {}".format(*place))
    os.kill(os.getpid(), signal.SIGKILL)


DAMAGE: list[Callable[[Path], None]] = [Path.unlink, cut, lengthen, fill_with_noise, flip_entries]


class TestDamage:
    def test_a_leader_that_closes_early_still_leaves_op_records(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def told_to_stop_first(_: TransactionChecker, stopping: Callable[[], bool]) -> None:
            while not stopping():
                time.sleep(0.001)

        monkeypatch.setattr(TransactionChecker, "run", told_to_stop_first)
        with mq.open(directory) as broker:
            for place in begin(broker, 3)[:2]:
                end(broker, place, COMMIT)
        (directory / "mq" / "transactions").unlink()
        with mq.open(directory) as broker:
            assert [each.message.queue_offset for each in broker.transactions.undecided()] == [2]

    @pytest.mark.parametrize("harm", DAMAGE, ids=lambda harm: harm.__name__)
    def test_nothing_is_stored_twice_or_lost(self, directory: Path, harm: Callable[[Path], None]) -> None:
        with mq.open(directory) as broker:
            places = begin(broker, 30)
            for place in places[:10]:
                end(broker, place, COMMIT)
            for place in places[10:20]:
                end(broker, place, ROLLBACK)
        harm(directory / "mq" / "transactions")
        with mq.open(directory) as broker:
            assert [each.message.queue_offset for each in broker.transactions.undecided()] == list(
                range(20, 30)
            )
            for place in places[:10]:
                end(broker, place, COMMIT)
                with pytest.raises(mq.NotPermitted, match="COMMIT"):
                    end(broker, place, ROLLBACK)
            for place in places[10:20]:
                end(broker, place, ROLLBACK)
                with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
                    end(broker, place, COMMIT)
            for place in places[20:]:
                end(broker, place, COMMIT)
            wanted = [*range(10), *range(20, 30)]
            assert stored(broker) == [str(number).encode() for number in wanted]
            assert broker.transactions.undecided() == []

    def test_an_older_copy_knows_of_no_later_end(self, directory: Path) -> None:
        path = directory / "mq" / "transactions"
        with mq.open(directory) as broker:
            places = begin(broker, 2)
            older = path.read_bytes()
            end(broker, places[0], COMMIT)
            end(broker, places[1], ROLLBACK)
        path.write_bytes(older)
        with mq.open(directory) as broker:
            assert broker.transactions.undecided() == []
            end(broker, places[0], COMMIT)
            with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
                end(broker, places[1], COMMIT)
            assert stored(broker) == [b"0"]

    @pytest.mark.parametrize("is_older", [False, True])
    def test_after_a_kill_what_has_ended_has_ended(self, directory: Path, is_older: bool) -> None:
        """No op record tells of it yet. An older copy knows of no rollback, which is nowhere else then."""
        path = directory / "mq" / "transactions"
        with Child(end_and_die, str(directory)) as child:
            places = [place_in(child.hear()) for _ in range(3)]
            with pytest.raises(Died):
                child.result()
        if is_older:
            path.write_bytes(path.with_name("older").read_bytes())
        with mq.open(directory, duties=False) as broker:
            end(broker, places[0], COMMIT)
            with pytest.raises(mq.NotPermitted, match="COMMIT"):
                end(broker, places[0], ROLLBACK)
            if not is_older:
                with pytest.raises(mq.NotPermitted, match="ROLLBACK"):
                    end(broker, places[1], COMMIT)
            end(broker, places[2], COMMIT)
            assert stored(broker) == [b"0", b"2"]

    def test_a_process_that_comes_along_changes_nothing(self, directory: Path) -> None:
        with mq.open(directory) as broker:
            places = begin(broker, 2)
            table = broker.transactions.table()
            assert table.claim(places[1][1]) is None
            states = [table.state(place[1]) for place in places]
            with mq.open(directory) as other:
                assert [other.transactions.table().state(place[1]) for place in places] == states

    def test_another_control_file_makes_another_table(self, directory: Path) -> None:
        with mq.open(directory) as broker:
            first, second = begin(broker, 2)
            end(broker, first, COMMIT)
        (directory / "mq" / "control").unlink()
        with mq.open(directory) as broker:
            assert broker.transactions.table().state(second[1])[0] == Entry.ABSENT
            end(broker, first, COMMIT)
            end(broker, second, COMMIT)
            assert stored(broker) == [b"0", b"1"]
