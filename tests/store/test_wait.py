"""One wait for many queues, for some tags, and for words: what ends it, and what does not even wake it.

Times are bounds far from what is usual: 45 s stand for "at once", and a wait that nothing wakes takes 120 s.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.local import LocalBroker
from mq.filter.sql import wake_test
from mq.filter.tags import tag_hash
from mq.store.queue import reader
from mq.store.shared.waiting import Futex, Position, Wait
from tests.support.appending import append_many, append_one
from tests.support.insides import queue_number, store_of
from tests.support.store.peer import Peer
from tests.support.store.sleeping import AT_ONCE, Waiting, asleep
from tests.support.store.small_store import SMALL, open_small, overwrite, queue_files, send

WANTED = frozenset({tag_hash("wanted")})
LONG = 120.0
# For peers: what they wait with.
SETUP = """
from mq.store.shared.waiting import *
from mq.filter.tags import tag_hash
import mmap, random, signal, threading
def number(queue_id):
    queue = broker.topic('A').queues[queue_id]
    queue.max_offset
    return queue_number(broker, queue.message_queue)
"""


@pytest.fixture(params=["async", "sync"])
def broker(directory: Path, request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    with open_small(directory, flush=request.param) as broker:
        broker.create_topic("A", 3)
        yield broker


@pytest.fixture(params=["async", "sync"])
def quiet(directory: Path, request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """Without the leader, which wakes all sleepers when it flushes, twice a second."""
    with open_small(directory, flush=request.param, duties=False) as broker:
        broker.create_topic("A", 3)
        yield broker


def number(broker: LocalBroker, queue_id: int, topic: str = "A") -> int:
    return queue_number(broker, broker.topic(topic).queues[queue_id].message_queue)


def wait_for(
    broker: LocalBroker, *wanted: tuple[int, int, frozenset[int] | bytes | None], **options: Any
) -> Wait:
    """For queues of topic A: id, offset, hashes."""
    positions = [Position(number(broker, queue_id), offset, tags) for queue_id, offset, tags in wanted]
    return Wait(store_of(broker), positions, **options)


def sleeps(thread: int) -> int:
    """How often a thread of this process gave up its processor."""
    text = Path(f"/proc/self/task/{thread}/status").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)


@pytest.fixture
def words(tmp_path: Path) -> Iterator[mmap.mmap]:
    path = tmp_path / "words"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        yield memory


def test_the_queue_that_has_news_is_told(broker: LocalBroker) -> None:
    wait = wait_for(broker, (0, 0, None), (1, 0, None), (2, 0, None))
    waiting = Waiting(partial(wait.sleep, LONG))
    send(broker, "A", 1, b"news")
    assert waiting.end() == 1
    assert wait.offsets == [0, 0, 0]


def test_only_wanted_tags_end_a_wait(broker: LocalBroker) -> None:
    wait = wait_for(
        broker, (0, 0, WANTED), (1, 0, frozenset({1, 2, tag_hash("wanted")})), (2, 0, frozenset())
    )
    waiting = Waiting(partial(wait.sleep, LONG))
    for _ in range(3):
        for queue_id in range(3):
            send(broker, "A", queue_id, b"for others", tags="other")
    send(broker, "A", 2, b"of no interest", tags="wanted")
    waiting.goes_on()
    send(broker, "A", 1, b"news", tags="wanted")
    assert waiting.end() == 1
    assert wait.offsets[1] == 3


def test_messages_without_a_tag_are_found_by_the_hash_0(broker: LocalBroker) -> None:
    send(broker, "A", 0, b"tagged", tags="some")
    send(broker, "A", 0, b"plain")
    wait = wait_for(broker, (0, 0, frozenset({0})))
    assert wait.sleep(0) == 0
    assert wait.offsets == [1]


def test_a_message_that_no_waiter_wants_wakes_none(quiet: LocalBroker) -> None:
    """Of 32 tags two may share a bit: a few of 200 may wake the sleeper, which goes on sleeping."""
    wait = wait_for(quiet, (0, 0, WANTED))
    waiting = Waiting(partial(wait.sleep, LONG))
    before = sleeps(waiting.thread)
    for count in range(200):
        send(quiet, "A", 0, b"for others", tags=f"tag{count}")
    waiting.goes_on()
    assert sleeps(waiting.thread) - before <= 2 * 30
    send(quiet, "A", 0, b"news", tags="wanted")
    assert waiting.end() == 0
    assert wait.offsets == [200]


def by(expression: str) -> bytes:
    test = wake_test(expression)
    assert test is not None
    return test


def send_all(broker: LocalBroker, queue_id: int, *properties: dict[str, str], topic: str = "A") -> None:
    messages = [mq.Message(topic, b"m", tags="some", properties=one) for one in properties]
    append_many(broker, topic, queue_id, messages)


def send_one(broker: LocalBroker, queue_id: int, **properties: str) -> None:
    append_one(broker, "A", queue_id, mq.Message("A", b"m", properties=properties), b"m", 0)


def test_a_message_that_no_expression_selects_wakes_no_waiter(quiet: LocalBroker) -> None:
    wait = wait_for(quiet, (0, 0, by("color = 'red' AND price > 100")), (1, 0, by("price > 100")))
    waiting = Waiting(partial(wait.sleep, LONG))
    before = sleeps(waiting.thread)
    for count in range(100):
        send_one(quiet, 0, color="red", price=str(count))
        send_one(quiet, 1, price=str(count))
        send_all(quiet, 0, {"color": "blue", "price": "200"}, {}, {"price": "200"})
    waiting.goes_on()
    assert sleeps(waiting.thread) - before <= 20
    send_all(quiet, 1, {"price": "1"}, {"price": "101"}, {"price": "1"})
    assert waiting.end() is not None


@pytest.mark.parametrize("topic", ["A", "T" * 127])
def test_each_sleeper_is_woken_by_what_its_expression_selects(quiet: LocalBroker, topic: str) -> None:
    """Several expressions, a tag and everything at one queue, whose topic has a name of any length."""
    quiet.create_topic(topic, 1)
    place = number(quiet, 0, topic)
    wanted: list[frozenset[int] | bytes] = [
        by("color = 'red'"),
        by("color = 'green'"),
        by("color = 'blue'"),
        WANTED,
    ]
    waits = [Wait(store_of(quiet), [Position(place, 0, one)]) for one in wanted]
    waitings = [Waiting(partial(wait.sleep, LONG)) for wait in waits]
    for color, left in (("green", 2), ("red", 1), ("blue", 0)):
        send_all(quiet, 0, {"color": color}, topic=topic)
        assert len(waitings) > left
        # All sleep on one word: a waiter woken in vain checks, and finds messages.
        for waiting in waitings[:3]:
            assert waiting.end() == 0
        waitings[:3] = [
            Waiting(partial(Wait(store_of(quiet), [Position(place, end(quiet, topic), one)]).sleep, LONG))
            for one in wanted[:3]
        ]
    # Whoever is still awake is not told, and leaves the others asleep: no expression selects the message.
    for waiting in waitings:
        waiting.goes_on()
    append_one(quiet, topic, 0, mq.Message(topic, b"m", tags="wanted"), b"m", 0)
    for waiting in waitings:
        assert waiting.end() == 0


def end(broker: LocalBroker, topic: str) -> int:
    return broker.topic(topic).queues[0].max_offset


def test_more_expressions_than_there_is_room_for_are_woken_by_everything(quiet: LocalBroker) -> None:
    for count in range(40):
        wait = wait_for(quiet, (0, count, by(f"price = {count}")))
        waiting = Waiting(partial(wait.sleep, LONG))
        send_one(quiet, 0, price=str(count))
        assert waiting.end() == 0
    wait = wait_for(quiet, (0, 40, by("price = 41")))
    waiting = Waiting(partial(wait.sleep, LONG))
    send_one(quiet, 0, price="of no interest")
    assert waiting.end() == 0
    assert wait_for(quiet, (0, 41, by("price = 1"))).sleep(0) is None


def test_what_was_looked_at_is_not_looked_at_again(broker: LocalBroker) -> None:
    """A unit that turns into a wanted one behind a sleeper's back stays unseen: it was passed over."""
    send(broker, "A", 0, b"for others", tags="other")
    wait = wait_for(broker, (0, 0, WANTED))
    assert wait.sleep(0) is None
    assert wait.offsets == [1]
    wanted = tag_hash("wanted").to_bytes(8, "big", signed=True)
    (file,) = queue_files(broker.path, "A")
    honest = file.read_bytes()[12:20]
    overwrite(file, 12, wanted)
    assert wait.sleep(0) is None
    assert wait_for(broker, (0, 0, WANTED)).sleep(0) == 0
    overwrite(file, 12, honest)


def test_a_long_stretch_without_matches_is_skipped(directory: Path) -> None:
    """Longer than what is looked at in one go."""
    with mq.open(directory, queue_file_units=5000) as broker:
        assert isinstance(broker, LocalBroker)
        broker.create_topic("A", 1)
        for _ in range(10):
            append_many(broker, "A", 0, [mq.Message("A", b"x", tags="other") for _ in range(1000)])
        wait = wait_for(broker, (0, 0, WANTED))
        assert wait.sleep(0.001) is None
        assert 0 < wait.offsets[0] <= 10_000
        send(broker, "A", 0, b"news", tags="wanted")
        assert wait.sleep(LONG) == 0
        assert wait.offsets == [10_000]


def test_a_unit_that_is_damaged_ends_a_wait(broker: LocalBroker) -> None:
    """The pull that follows makes it anew."""
    for _ in range(3):
        send(broker, "A", 0, b"for others", tags="other")
    (file,) = queue_files(broker.path, "A")
    honest = file.read_bytes()[20:32]
    overwrite(file, 20, b"\xff" * 12)
    wait = wait_for(broker, (0, 0, WANTED))
    assert wait.sleep(LONG) == 0
    assert wait.offsets == [1]
    assert broker.topic("A").queues[0].read(1, expression="wanted").next_offset == 3
    assert file.read_bytes()[20:32] == honest


def test_an_offset_below_the_first_one_ends_a_wait(broker: LocalBroker) -> None:
    for _ in range(3):
        send(broker, "A", 0, b"x")
    assert wait_for(broker, (0, -1, WANTED)).sleep(LONG) == 0
    assert wait_for(broker, (0, 4, None)).sleep(0) is None


def test_more_queues_than_a_system_call_takes(broker: LocalBroker) -> None:
    broker.create_topic("many", 300)
    for hashes in (None, WANTED):
        positions = [
            Position(
                number(broker, queue_id, "many"), broker.topic("many").queues[queue_id].max_offset, hashes
            )
            for queue_id in range(300)
        ]
        wait = Wait(store_of(broker), positions)
        waiting = Waiting(partial(wait.sleep, LONG))
        send(broker, "A", 0, b"for others")
        waiting.goes_on()
        send(broker, "many", 299, b"news", tags="wanted")
        assert waiting.end() == 299


def test_126_queues_and_two_words_are_waited_for_one_by_one(quiet: LocalBroker, words: mmap.mmap) -> None:
    quiet.create_topic("many", 126)
    futexes = [Futex(words, 0), Futex(words, 4)]
    for news in ("queue", "word"):
        positions = [
            Position(number(quiet, queue_id, "many"), quiet.topic("many").queues[queue_id].max_offset)
            for queue_id in range(126)
        ]
        wait = Wait(store_of(quiet), positions, words=[(futex, futex.value) for futex in futexes])
        waiting = Waiting(partial(wait.sleep, LONG))
        if news == "queue":
            send(quiet, "many", 125, b"news")
            assert waiting.end() == 125
        else:
            futexes[1].add()
            assert futexes[1].wake() == 1
            assert waiting.end() is None
    del futexes, wait, waiting


def test_the_end_of_the_time_ends_a_wait(broker: LocalBroker) -> None:
    for queue_ids in ((), (0,), (0, 1)):
        wait = wait_for(broker, *((queue_id, 0, None) for queue_id in queue_ids))
        began = time.monotonic()
        assert wait.sleep(0.2) is None
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("queue_ids", [(), (0,), (0, 1)])
def test_a_word_of_another_process_ends_a_wait(
    broker: LocalBroker, directory: Path, words: mmap.mmap, tmp_path: Path, queue_ids: tuple[int, ...]
) -> None:
    futex = Futex(words, 8)
    with Peer(directory) as peer:
        peer.do(
            SETUP + f"f = open({str(tmp_path / 'words')!r}, 'r+b'); word = Futex(mmap.mmap(f.fileno(), 0), 8)"
        )
        wait = wait_for(broker, *((queue_id, 0, None) for queue_id in queue_ids), words=[(futex, 0)])
        waiting = Waiting(partial(wait.sleep, LONG))
        assert peer.ask("word.add(), word.wake()") == (1, 1)
        assert waiting.end() is None
        assert futex.value == 1
        began = time.monotonic()
        assert wait.sleep(LONG) is None  # It still is another one than was seen.
        assert futex.wait(0, LONG)
        assert time.monotonic() - began < AT_ONCE
        assert not futex.wait(1, 0.01)
    del wait, waiting, futex


def test_a_word_alone_is_waited_for_and_counts_round(words: mmap.mmap) -> None:
    futex = Futex(words)
    assert futex.add(-1) == 0xFFFFFFFF
    waiting = Waiting(partial(futex.wait, -1, LONG))
    assert futex.add(3) == 2
    assert futex.wake() == 1
    assert waiting.end() is True
    assert words[:4] == (2).to_bytes(4, "little")
    del futex, waiting


def test_a_word_lies_inside_of_its_buffer_and_is_aligned(words: mmap.mmap) -> None:
    for at in (-4, mmap.PAGESIZE - 3, mmap.PAGESIZE, 2):
        with pytest.raises(ValueError, match=f"byte {at}"):
            Futex(words, at)


def test_65_words_are_too_many(broker: LocalBroker, words: mmap.mmap) -> None:
    with pytest.raises(ValueError, match="65 words: at most 64"):
        Wait(store_of(broker), [], words=[(Futex(words, 4 * at), 0) for at in range(65)])


def test_each_of_64_words_ends_a_wait(broker: LocalBroker, words: mmap.mmap) -> None:
    futexes = [Futex(words, 4 * at) for at in range(64)]
    for futex in (futexes[0], futexes[63]):
        wait = wait_for(broker, (0, 0, None), words=[(each, each.value) for each in futexes])
        waiting = Waiting(partial(wait.sleep, LONG))
        futex.add()
        assert futex.wake() == 1
        assert waiting.end() is None


def test_a_wait_is_renewed_for_other_offsets_and_words(quiet: LocalBroker, words: mmap.mmap) -> None:
    futexes = [Futex(words, 4 * at) for at in range(3)]
    send(quiet, "A", 0, b"news")
    wait = wait_for(quiet, (0, 0, None), (1, 0, None), words=[(futexes[0], 0), (futexes[1], 0)])
    assert wait.sleep(LONG) == 0
    wait.renew([1, 0], [(futexes[2], 0)])
    waiting = Waiting(partial(wait.sleep, LONG))
    futexes[0].add()
    assert futexes[0].wake() == 0
    futexes[2].add()
    assert futexes[2].wake() == 1
    assert waiting.end() is None
    wait.drop_words()
    wait.renew([1, 0], [])
    waiting = Waiting(partial(wait.sleep, LONG))
    send(quiet, "A", 1, b"news")
    assert waiting.end() == 1


def test_a_change_of_topics_that_was_not_seen_ends_a_wait(broker: LocalBroker) -> None:
    version = broker.route_version()
    wait = wait_for(broker, (0, 0, None), (1, 0, None), version=version)
    waiting = Waiting(partial(wait.sleep, LONG))
    broker.create_topic("B", 1)
    assert waiting.end() is None
    began = time.monotonic()
    assert wait.sleep(LONG) is None
    assert time.monotonic() - began < AT_ONCE


def test_a_topic_deleted_between_a_look_and_the_sleep_ends_the_read(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Wait):
        """Between the pull that found nothing and the sleep, the topic goes."""

        def sleep(self, seconds: float, *, spin_ns: int = 0) -> int | None:
            if "A" in broker.topics():
                broker.delete_topic("A")
            return super().sleep(seconds, spin_ns=spin_ns)

    monkeypatch.setattr(reader, "Wait", Late)
    queue = broker.topic("A").queues[0]
    began = time.monotonic()
    with pytest.raises(mq.TopicNotFound):
        queue.read(0, wait=LONG)
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_closing_ends_every_wait(directory: Path, flush: Any) -> None:
    with open_small(directory, flush=flush) as broker:
        broker.create_topic("A", 200)
        choices = [range(0), range(1), range(3), range(200)]
        waits = [wait_for(broker, *((queue_id, 0, WANTED) for queue_id in ids)) for ids in choices]
        waits.append(wait_for(broker, (0, 0, frozenset())))
        waiting = [Waiting(partial(wait.sleep, LONG)) for wait in waits]
    for one in waiting:
        assert one.end() is None
    for wait in waits:
        with pytest.raises(mq.BrokerClosed):
            wait.sleep(LONG)


def test_ctrl_c_interrupts_a_wait_for_several(broker: LocalBroker, directory: Path) -> None:
    with Peer(directory) as peer:
        peer.do(SETUP + "wait = Wait(store_of(broker), [(number(0), 0, None), (number(1), 0, None)])")
        peer.post("ask", "wait.sleep(120.0)")
        asleep(peer.pid)
        began = time.monotonic()
        peer.interrupt()
        with pytest.raises(KeyboardInterrupt):
            peer.answer()
        assert time.monotonic() - began < AT_ONCE


def test_a_waiter_that_dies_asleep_does_not_disturb_the_others(broker: LocalBroker, directory: Path) -> None:
    wait = wait_for(broker, (0, 0, WANTED), (1, 0, None))
    waiting = Waiting(partial(wait.sleep, LONG))
    peer = Peer(directory)
    peer.do(SETUP + "wait = Wait(store_of(broker), [(number(0), 0, None), (number(1), 0, None)])")
    peer.post("ask", "wait.sleep(120.0)")
    asleep(peer.pid)
    peer.kill()
    send(broker, "A", 0, b"for others")
    waiting.goes_on()
    send(broker, "A", 0, b"news", tags="wanted")
    assert waiting.end() == 0


def test_a_hundred_idle_waits_do_nothing_at_all(broker: LocalBroker, directory: Path) -> None:
    """Counted in how often they gave up a processor, which is never while they sleep."""
    peers = [Peer(directory) for _ in range(4)]
    for peer in peers:
        peer.do(
            SETUP + "def start(n):\n"
            "    hashes = None if n % 2 else frozenset({tag_hash('wanted')})\n"
            "    wait = Wait(store_of(broker), [(number(q), 0, hashes) for q in range(n % 4)])\n"
            "    thread = threading.Thread(target=wait.sleep, args=(600.0,), daemon=True)\n"
            "    thread.start(); return thread.native_id\n"
            "ids = [start(n) for n in range(25)]"
        )
        peer.do(
            "def switches():\n"
            "    texts = [open(f'/proc/self/task/{i}/status').read() for i in ids]\n"
            "    lines = [line for text in texts for line in text.splitlines() if 'ctxt_switches' in line]\n"
            "    assert len(lines) == 50; return sum(int(line.split()[1]) for line in lines)"
        )
        for thread in peer.ask("ids"):
            asleep(peer.pid, thread)
    for _ in range(5):
        before = [peer.ask("switches()") for peer in peers]
        time.sleep(2.0)
        # A halted thread has given up a processor too, once; a polling one always does.
        if [peer.ask("switches()") for peer in peers] == before:
            break
    else:
        raise AssertionError("none of five times of 2 s passed in which all slept")
    for peer in peers:
        peer.close()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("flush", "count"), [("async", 100_000), ("sync", 3_000)])
def test_a_selective_waiter_loses_no_wake_up(directory: Path, flush: Any, count: int) -> None:
    """A sender, and a reader that never spins and wants some of it. Now and then the sender waits for the
    answer: a wake-up that was lost would cost the whole time of one wait."""
    with mq.open(directory, flush=flush) as broker:
        assert isinstance(broker, LocalBroker)
        broker.create_topic("A", 3)
        with Peer(directory, flush=flush, **dict.fromkeys(SMALL)) as peer:
            peer.do(SETUP)
            peer.post("do", CONVERSATION.format(count=count))
            queue = broker.topic("A").queues[1]
            wait, offset, answered = wait_for(broker, (0, 0, WANTED), (2, 0, None)), 0, 0
            while True:
                began = time.monotonic()
                place = wait.sleep(LONG, spin_ns=0)
                assert time.monotonic() - began < LONG / 2
                if place is None:
                    continue
                if place == 1:
                    break
                offset = wait.offsets[0]
                (message,) = broker.topic("A").queues[0].read(offset, count_max=1).messages
                assert message.tags == "wanted"
                assert message.body == b"%d" % answered
                answered += 1
                if message.keys:
                    send(broker, "A", 1, message.body)
                wait = wait_for(broker, (0, offset + 1, WANTED), (2, 0, None))
            assert peer.answer() is None
            assert answered == peer.ask("wanted") > count // 50
            assert queue.max_offset == peer.ask("asked") > count // 1000


CONVERSATION = """
dice, sent, wanted, asked = random.Random(11), 0, 0, 0
answers = broker.topic('A').queues[1]
while sent < {count}:
    for _ in range(dice.randrange(20)):
        send(broker, 'A', 0, b'x', tags=f'tag{{dice.randrange(50)}}')
        sent += 1
    ask = dice.random() < 0.3
    send(broker, 'A', 0, b'%d' % wanted, tags='wanted', keys='answer' if ask else ())
    sent += 1
    if ask:
        began = time.monotonic()
        assert answers.read(asked, wait=120.0).messages[0].body == b'%d' % wanted
        assert time.monotonic() - began < 60.0
        asked += 1
    wanted += 1
send(broker, 'A', 2, b'done')
"""
