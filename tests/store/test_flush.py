"""What is synced, when, and which readers may see a message before that.

The calls of msync of other processes are watched, held back and made to fail from outside: watch_sync.c is
preloaded into them. Where a test holds the flush lock itself, it stands for a disk that takes its time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.store.check import problems
from mq.store.directory.checkpoint import read_checkpoint
from mq.store.log import writer as writer_module
from mq.store.native import lib
from tests.store.bulk_appends import run_failing
from tests.store.unpublished import BODY_SIZE
from tests.support.appending import append_many, append_one
from tests.support.insides import control_of, store_of, was_recovered
from tests.support.processes.fail_build import fail_points
from tests.support.store.peer import Peer
from tests.support.store.small_store import LOG_FILE_SIZE, contents, fill, open_small, send

SOON = 120.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Sync(NamedTuple):
    thread: int
    path: str
    first: int
    end: int


class Watch:
    """The calls of msync of all processes that were started with its environment."""

    def __init__(self, library: Path, log: Path) -> None:
        preloaded = [*os.environ.get("LD_PRELOAD", "").split(":"), str(library)]
        self.environment = {"LD_PRELOAD": ":".join(filter(None, preloaded)), "MQ_SYNC_LOG": str(log)}
        self.log = log
        log.touch()
        self._hold, self._fail = Path(f"{log}.hold"), Path(f"{log}.fail")

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def syncs(self, below: str) -> list[Sync]:
        """Of files in this directory of the store, in the order in which they ended."""
        found = []
        for line in self.lines():
            words = line.split()
            if f"/{below}/" in line and len(words) == 5:
                found.append(Sync(int(words[1]), words[2], int(words[3]), int(words[4])))
        return found

    @contextmanager
    def held(self) -> Iterator[None]:
        self._hold.touch()
        try:
            yield
        finally:
            self._hold.unlink()

    @contextmanager
    def failing(self) -> Iterator[None]:
        self._fail.touch()
        try:
            yield
        finally:
            self._fail.unlink()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watch") / "watch_sync.so"
    source = Path(__file__).with_name("watch_sync.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path, source], check=True)
    return path


@pytest.fixture
def watch(library: Path, tmp_path: Path) -> Watch:
    return Watch(library, tmp_path / "syncs")


def covered(syncs: list[Sync], first: int, end: int, file_size: int = LOG_FILE_SIZE) -> bool:
    """Whether every byte of [first, end) of a log or queue is in one of the ranges."""
    ranges = sorted(
        (int(Path(sync.path).name) + sync.first, int(Path(sync.path).name) + sync.end) for sync in syncs
    )
    for low, high in ranges:
        if low <= first < high:
            first = high
    return first >= end


SEND_AND_NOTE = """
log = os.open(os.environ["MQ_SYNC_LOG"], os.O_WRONLY | os.O_APPEND)
for number in range({count}):
    body = b"x" * (number * 37 % 1500)  + b"."
    sent = send(broker, "A", number % 2, body)
    size = broker.message(sent.offset_msg_id).store_size
    os.write(log, b"sent %d %d\\n" % (log_offset_of(sent), log_offset_of(sent) + size))
"""


def test_a_send_returns_after_an_msync_of_all_its_bytes(directory: Path, watch: Watch) -> None:
    with Peer(directory, environment=watch.environment, flush="sync") as peer:
        peer.do("broker.create_topic('A', 2)")
        peer.do(SEND_AND_NOTE.format(count=60))
    synced: list[Sync] = []
    sent = 0
    for line in watch.lines():
        words = line.split()
        if words[0] == "sent":
            assert covered(synced, int(words[1]), int(words[2])), line
            sent += 1
        elif "/commitlog/" in line:
            synced.append(Sync(int(words[1]), words[2], int(words[3]), int(words[4])))
    assert sent == 60
    assert len({sync.path for sync in synced}) > 3  # Files were rolled meanwhile.


def test_a_batch_returns_after_an_msync_of_all_its_bytes(directory: Path, watch: Watch) -> None:
    with Peer(directory, environment=watch.environment, flush="sync") as peer:
        peer.do("broker.create_topic('A', 1)")
        for count in (1, 10, 18):
            peer.do(
                "sent = broker.append_batch(broker.publishable('A')[0],"
                f" [mq.Message('A', b'%d' % n) for n in range({count})])"
            )
            first, end = peer.ask("log_offset_of(sent.split()[0]), log_end(broker)")
            assert covered(watch.syncs("commitlog"), first, end)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("append", "size", "point"),
    [
        (
            "broker.append_batch(broker.publishable('orders')[0], [mq.Message('orders', b'.' * 300)] * 8)",
            8 * 300,
            "RECORD:1",
        ),
        ("bulk(broker, 18)", 18 * BODY_SIZE, "HALF_RECORD:15"),
    ],
    ids=["batch", "bulk"],
)
def test_a_repair_has_its_zeros_on_disk_before_anything_is_stored(
    directory: Path, watch: Watch, append: str, size: int, point: str
) -> None:
    """Else a power cut brings the records back that were made void, behind what was stored since."""
    with Peer(directory, environment=watch.environment, flush="async", duties=False) as peer:
        peer.do("broker.create_topic('orders', 1)")
        peer.do("send(broker, 'orders', 0, b'before')")
        begin = peer.ask("log_end(broker)")
        code = (
            "import mq, pathlib\n"
            "from tests.store.unpublished import bulk\n"
            "from tests.support.store.small_store import open_small\n"
            f"broker = open_small(pathlib.Path({str(directory)!r}), duties=False)\n"
            f"{append}"
        )
        name, _, passage = point.partition(":")
        died = run_failing(code, directory, f"{fail_points()[name]}:{passage}:kill")
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert not covered(watch.syncs("commitlog"), begin, begin + 1)
        peer.do("send(broker, 'orders', 0, b'later')")
        assert covered(watch.syncs("commitlog"), begin, begin + size)


# As STUCK_NS of flush.c: a sender that has waited for so long for another's flush flushes too.
STUCK = 2.0
PATIENT = "import mq.store.log.writer; mq.store.log.writer.FLUSH_TIMEOUT_MS = 60_000"


def send_while_held(one: Peer, two: Peer, watcher: LocalBroker, watch: Watch) -> float:
    """Eight threads of each process send while no flush gets through; how long that took, in seconds."""
    all_of_them = next_offset(watcher) + 16
    began = time.monotonic()
    with watch.held():
        for peer in (one, two):
            peer.post(
                "do",
                "with ThreadPoolExecutor(8) as pool:\n"
                "    sent = list(pool.map(lambda n: send(broker, 'A', n % 2, b'x' * 30), range(8)))",
            )
        until(lambda: next_offset(watcher) == all_of_them)
    for peer in (one, two):
        peer.answer()
        assert peer.ask("[result.status for result in sent]") == [mq.SendStatus.SEND_OK] * 8
    return time.monotonic() - began


def test_one_flush_serves_all_waiting_senders_of_all_processes(directory: Path, watch: Watch) -> None:
    with (
        Peer(directory, environment=watch.environment, flush="sync", flush_interval=3600.0) as one,
        Peer(directory, environment=watch.environment, flush="sync", flush_interval=3600.0) as two,
        open_small(directory, flush="sync", flush_interval=3600.0) as watcher,
    ):
        one.do("broker.create_topic('A', 2)")
        preparing = set()
        for peer in (one, two):
            peer.do("import threading; from concurrent.futures import ThreadPoolExecutor")
            peer.do(PATIENT)
            preparing |= set(peer.ask(PREPARING))
        for _ in range(20):
            before = len(watch.syncs("commitlog"))
            if send_while_held(one, two, watcher, watch) < STUCK:
                break
        else:
            pytest.fail(f"this machine takes over {STUCK} s for 16 messages")
        syncs = [sync for sync in watch.syncs("commitlog")[before:] if sync.thread not in preparing]
        # The first sender, all others, and the border between two files.
        assert 1 <= len(syncs) <= 6
        assert covered(watch.syncs("commitlog"), 0, one.ask("log_end(broker)"))


PREPARING = "[thread.native_id for thread in threading.enumerate() if thread.name == 'mq-prepare']"


def flush_is_under_way(broker: LocalBroker) -> bool:
    control = control_of(broker)
    if lib.mq_control_try_lock(control.handle, lib.MQ_LOCK_FLUSH) == lib.MQ_BUSY:
        return True
    lib.mq_control_unlock(control.handle, lib.MQ_LOCK_FLUSH)
    return False


def next_offset(broker: LocalBroker) -> int:
    """Of all queues together: how many messages are in the log, on disk or not."""
    control = control_of(broker)
    return sum(control.next_offset(number) for number, _, _ in control.queues())


@contextmanager
def slow_disk(broker: LocalBroker) -> Iterator[None]:
    """Nothing of the log gets to disk meanwhile."""
    control = control_of(broker)
    assert lib.mq_control_lock(control.handle, lib.MQ_LOCK_FLUSH, 10_000) >= 0
    try:
        yield
    finally:
        lib.mq_control_unlock(control.handle, lib.MQ_LOCK_FLUSH)


@pytest.fixture
def pair(directory: Path) -> Iterator[tuple[LocalBroker, LocalBroker]]:
    """Without duties: nothing gets to disk but by senders, and by flush()."""
    with (
        open_small(directory, flush="sync", duties=False) as broker,
        open_small(directory, flush="sync", duties=False) as other,
    ):
        broker.create_topic("A", 1)
        yield broker, other


@pytest.fixture
def sender(pair: tuple[LocalBroker, LocalBroker], directory: Path, watch: Watch) -> Iterator[Peer]:
    """Has a pool to send with. A watch that is held holds all of them, however long they wait."""
    with Peer(directory, environment=watch.environment, flush="sync", duties=False) as peer:
        peer.do("from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(3)")
        peer.do(PATIENT)
        yield peer


def test_in_sync_mode_no_reader_sees_a_message_before_it_is_on_disk(
    pair: tuple[LocalBroker, LocalBroker], sender: Peer, watch: Watch
) -> None:
    sender.do("send(broker, 'A', 0, b'before', keys='k')")
    with watch.held():
        sender.do("sent = [pool.submit(send, broker, 'A', 0, b'after', keys='k') for _ in range(3)]")
        until(lambda: next_offset(pair[0]) == 4)
        assert sender.ask("contents(broker)")["A", 0] == (0, 1, [(0, b"before")])
        for one in pair:
            queue = one.topic("A").queues[0]
            result = queue.read(0)
            assert [message.body for message in result.messages] == [b"before"]
            assert result.max_offset == queue.max_offset == 1
            assert queue.read(1).status is mq.PullStatus.NO_NEW_MESSAGE
            assert queue.read(2).status is mq.PullStatus.OFFSET_ILLEGAL
            assert queue.offset_at(1 << 42) == 1
            assert len(one.query("A", "k")) == 1
        assert not sender.ask("any(each.done() for each in sent)")
    sender.do("for each in sent: each.result()")
    for one in pair:
        assert [body for _, body in contents(one)["A", 0][2]] == [b"before", b"after", b"after", b"after"]
        assert len(one.query("A", "k")) == 4


def test_a_wait_ends_when_the_message_is_on_disk(
    pair: tuple[LocalBroker, LocalBroker], sender: Peer, watch: Watch
) -> None:
    broker, other = pair
    queue = other.topic("A").queues[0]
    results: list[mq.PullResult] = []
    reader = threading.Thread(target=lambda: results.append(queue.read(0, wait=120.0)))
    with watch.held():
        reader.start()
        sender.do("sent = pool.submit(send, broker, 'A', 0, b'news')")
        until(lambda: next_offset(broker) == 1)
        reader.join(0.1)
        assert reader.is_alive()
    reader.join(60.0)  # By itself it ends after 120 s.
    assert [message.body for message in results[0].messages] == [b"news"]
    sender.do("sent.result()")


def test_a_message_that_need_not_wait_does_not(pair: tuple[LocalBroker, LocalBroker]) -> None:
    broker, other = pair
    with slow_disk(broker):
        sent = append_one(broker, "A", 0, mq.Message("A", b"x", wait=False), b"x", 0)
        assert sent.status is mq.SendStatus.SEND_OK
        assert other.topic("A").queues[0].max_offset == 0
    broker.flush()
    assert other.topic("A").queues[0].max_offset == 1


def test_a_flush_that_takes_too_long_is_told_and_the_message_is_stored(
    pair: tuple[LocalBroker, LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, other = pair
    monkeypatch.setattr(writer_module, "FLUSH_TIMEOUT_MS", 50)
    told: list[mq.SendStatus] = []
    took = STUCK
    while took >= STUCK and len(told) < 10:
        began = time.monotonic()
        with slow_disk(broker):
            told.append(send(broker, "A", 0, b"one").status)
            told.append(append_many(broker, "A", 0, [mq.Message("A", b"two")]).status)
        took = time.monotonic() - began
    assert told[-2:] == [mq.SendStatus.FLUSH_DISK_TIMEOUT] * 2
    broker.flush()
    assert [body for _, body in contents(other)["A", 0][2]] == [b"one", b"two"] * (len(told) // 2)


@pytest.mark.parametrize("holding", ["lock", "disk"])
def test_a_flusher_that_dies_leaves_the_flush_to_the_others(
    directory: Path, watch: Watch, holding: str
) -> None:
    # Without duties: a leader flushes as well, and then no process would wait for the dying one.
    with open_small(directory, flush="sync", duties=False) as broker:
        broker.create_topic("A", 1)
        # Promised are 250 ms; the rest, and that one of a few is enough, is a loaded machine's.
        assert any(after_its_death(directory, broker, watch, holding) < 1.0 for _ in range(5))


def after_its_death(directory: Path, broker: LocalBroker, watch: Watch, holding: str) -> float:
    """How much longer than others a send takes, once the flusher is dead that it waits for; in seconds."""
    with Peer(directory, environment=watch.environment, flush="sync", duties=False) as peer, watch.held():
        if holding == "lock":
            peer.do("assert lib.mq_control_lock(control_of(broker).handle, lib.MQ_LOCK_FLUSH, 1000) >= 0")
        else:
            peer.post("ask", "send(broker, 'A', 0, b'never acknowledged')")
            until(lambda: flush_is_under_way(broker))
        sender = threading.Thread(target=send, args=(broker, "A", 0, b"mine"))
        started = time.monotonic()
        sender.start()
        sender.join(0.1)
        assert sender.is_alive() or time.monotonic() - started >= STUCK
        peer.kill()
        began = time.monotonic()
        sender.join(SOON)
        assert not sender.is_alive()
        took = time.monotonic() - began
    assert contents(broker)["A", 0][2][-1][1] == b"mine"
    began = time.monotonic()
    send(broker, "A", 0, b"plain")
    return took - (time.monotonic() - began)


def test_in_async_mode_a_message_is_seen_and_acknowledged_before_it_is_on_disk(directory: Path) -> None:
    with open_small(directory, flush_interval=3600.0) as broker, open_small(directory) as other:
        broker.create_topic("A", 1)
        with slow_disk(broker):
            assert send(broker, "A", 0, b"x").status is mq.SendStatus.SEND_OK
            assert [body for _, body in contents(other)["A", 0][2]] == [b"x"]


def test_in_async_mode_the_log_gets_to_disk_by_itself(directory: Path, watch: Watch) -> None:
    with Peer(directory, environment=watch.environment, flush_interval=0.02) as peer:
        peer.do("broker.create_topic('A', 1); fill(broker, 'A', 100)")
        end = peer.ask("log_end(broker)")
        until(lambda: covered(watch.syncs("commitlog"), 0, end))
        until(lambda: bool(peer.ask("flushed_end(broker)") == end))


def test_readers_of_flushed_messages_see_what_async_senders_flushed(directory: Path) -> None:
    with (
        open_small(directory, flush_interval=0.02) as sender,
        open_small(directory, flush="sync") as reader,
    ):
        sender.create_topic("A", 1)
        send(sender, "A", 0, b"x")
        assert [message.body for message in reader.topic("A").queues[0].read(0, wait=SOON).messages] == [b"x"]


def test_flush_has_log_queues_and_checkpoint_on_disk(directory: Path, watch: Watch) -> None:
    with Peer(directory, environment=watch.environment, flush_interval=3600.0) as peer:
        peer.do("broker.create_topic('A', 2); fill(broker, 'A', 100, 2)")
        end, last = peer.ask(
            "[store_of(broker).word(word) for word in (lib.MQ_LOG_END, lib.MQ_LAST_STORE_TIME)]"
        )
        assert peer.ask("flushed_end(broker)") < end
        peer.do("broker.flush()")
        assert peer.ask("flushed_end(broker)") == end
        assert covered(watch.syncs("commitlog"), 0, end)
        for queue_id in range(2):
            assert covered(watch.syncs(f"consumequeue/A/{queue_id}"), 0, 50 * 20)
        checkpoint = read_checkpoint(directory)
        assert (checkpoint.physic_time, checkpoint.logics_time) == (last, last)


def test_the_checkpoint_never_says_more_than_what_is_on_disk(directory: Path) -> None:
    with open_small(directory, flush_interval=3600.0) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 10)
        broker.flush()
        known = read_checkpoint(directory)
        until(lambda: time.time_ns() // 1_000_000 > known.physic_time)
        with slow_disk(broker):
            fill(broker, "A", 10)
            store_of(broker).write_checkpoint(sync=True)
            assert read_checkpoint(directory).physic_time == known.physic_time


def test_a_failed_flush_poisons_the_store_for_everyone_and_reads_go_on(tmp_path: Path, watch: Watch) -> None:
    directory = tmp_path / "store"
    with open_small(directory, flush="sync", flush_interval=3600.0) as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 5)
        with Peer(directory, environment=watch.environment, flush="sync", flush_interval=3600.0) as peer:
            with watch.failing(), pytest.raises(mq.StorePoisoned) as caught:
                peer.send("A", 0, b"lost")
            assert caught.value.unique_id
            # Never retried as if nothing had happened.
            for _ in range(2):
                with pytest.raises(mq.StorePoisoned):
                    peer.send("A", 0, b"more")
                with pytest.raises(mq.StorePoisoned):
                    send(broker, "A", 0, b"more")
                with pytest.raises(mq.StorePoisoned):
                    append_many(broker, "A", 0, [mq.Message("A", b"more")])
                with pytest.raises(mq.StorePoisoned):
                    broker.flush()
            want = contents(broker)
            assert len(want["A", 0][2]) == 5
            assert peer.ask("contents(broker)") == want
            assert len(broker.query("A", "message3")) == 1
    assert (directory / "abort").exists()
    with open_small(directory, flush="sync") as again:
        # What the kernel failed to write may be gone from memory too: the disk was looked at.
        assert was_recovered(again)
        assert contents(again)["A", 0][2][:5] == want["A", 0][2]
        assert send(again, "A", 0, b"next").queue_offset >= 5
    assert list(problems(directory)) == []


def test_a_failed_flush_of_the_duties_poisons_the_store(tmp_path: Path, watch: Watch) -> None:
    with Peer(tmp_path / "store", environment=watch.environment, flush_interval=0.02) as peer:
        peer.do("broker.create_topic('A', 1)")
        peer.send("A", 0, b"one")
        peer.do("broker.flush()")  # The queues too, or the duties' flush of these may be what fails.
        with watch.failing():
            peer.send("A", 0, b"two")
            until(lambda: peer.ask("store_of(broker).word(lib.MQ_POISONED_WORD)") == 1)
        with pytest.raises(mq.StorePoisoned):
            peer.send("A", 0, b"three")
        assert peer.ask("contents(broker)")["A", 0][2] == [(0, b"one"), (1, b"two")]


def test_a_sender_that_waits_for_a_failing_flush_gets_the_error(tmp_path: Path, watch: Watch) -> None:
    with Peer(tmp_path / "store", environment=watch.environment, flush="sync", flush_interval=3600.0) as peer:
        peer.do("broker.create_topic('A', 1)")
        peer.do(PATIENT)
        peer.do(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "pool = ThreadPoolExecutor(4)\n"
            "def attempt(n):\n"
            "    try: return send(broker, 'A', 0, b'x').status\n"
            "    except mq.StorePoisoned as error: return 'poisoned', error.unique_id\n"
        )
        with watch.failing():
            with watch.held():
                peer.do("futures = [pool.submit(attempt, n) for n in range(4)]")
                until(lambda: peer.ask("control_of(broker).next_offset(0)") == 4)
            results = peer.ask("[future.result() for future in futures]")
        assert [kind for kind, _ in results] == ["poisoned"] * 4
        assert len({unique_id for _, unique_id in results}) == 4


def test_a_flush_of_much_has_the_page_of_the_end_on_disk_last(tmp_path: Path, watch: Watch) -> None:
    """Appends go on meanwhile: a page that is written back is write-protected, and faults."""
    page, much = 4096, 1 << 20
    options: dict[str, Any] = {"commitlog_file_size": 4 * much, "flush_interval": 3600.0}
    with Peer(tmp_path / "store", environment=watch.environment, **options) as peer:
        peer.do("broker.create_topic('A', 1)")
        peer.do(f"for number in range(100): send(broker, 'A', 0, b'x' * {much // 80})")
        before = len(watch.syncs("commitlog"))
        peer.do("broker.flush()")
        end = peer.ask("log_end(broker)")
        assert much < end < 4 * much
        *whole, last = watch.syncs("commitlog")[before:]
        assert covered(whole, 0, end // page * page, 4 * much)
        assert max(sync.end for sync in whole) == end // page * page
        assert (last.first, last.end) == (end // page * page, end)
        assert peer.ask("flushed_end(broker)") == end
