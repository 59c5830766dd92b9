"""What the processes of the crash tests do: see processes.py for how they come to life.

Paths are strings here, since arguments travel as JSON. `sizes` are the options of mq.open that the store is
made with, small ones, so that files are rolled and made often.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker import leader
from mq.store import retention
from mq.store.check import problems
from mq.store.log.commitlog import segment_files
from mq.store.log.follow import FollowedLog
from mq.store.store import Store
from tests.crash.images import look_into
from tests.crash.pager import pager
from tests.crash.sender import Sender
from tests.support.insides import store_of, was_recovered
from tests.support.power.recorder import record as start_recording
from tests.support.processes.nursery import stopping
from tests.support.processes.pauses import Stopwatch, beat, beat_of, pulse
from tests.support.processes.trace import (
    QUEUE_COUNT,
    SEEN,
    TOPIC,
    Log,
    acks,
    check,
    follow,
    key_of,
    seen,
)
from tests.support.store.sleeping import asleep
from tests.support.threads import threads_named

__all__ = [
    "follower",
    "full",
    "inspect",
    "look_into",
    "pager",
    "poisoned",
    "powered",
    "pulse",
    "reader",
    "restarted",
    "scripted",
    "survivor",
    "visitor",
    "writer",
]

ASYNC_COUNT = 5
LARGE_COUNT_MAX = 18  # of messages that a file of the log has room for
BULK_COUNT_MAX = 120  # which take up to six files
OTHER = "other"  # a second topic
Sizes = dict[str, Any]


def writer(
    root: str,
    trace: str,
    run: int,
    *,
    sizes: Sizes,
    flush: Any,
    pauses: str,
    seed: int,
    idle: float = 0.0,
    expired: str = "",
    bulks: float = 0.0,
    duties: bool = True,
) -> None:
    """Sends whatever way comes, until stopped.

    idle: seconds between two calls, at most. expired: old files of the log go now and then, and this file
    says below which log offset, before they do. bulks: which share of the calls are bulks.
    """
    chance = random.Random(seed)
    with mq.open(root, flush=flush, flush_interval=0.05, duties=duties, **sizes) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        sender = Sender(broker, trace, run, seed, durable=flush == "sync")
        watch = Stopwatch(pauses)
        while not stopping:
            what = chance.random()
            with watch:
                if chance.random() < bulks:
                    sender.send_bulk(chance.randint(2, BULK_COUNT_MAX), 3000)
                elif what < 0.6:
                    sender.send(1, 200)
                elif what < 0.8:
                    sender.send(chance.randint(2, 20), 200)
                elif what < 0.95:
                    sender.send_async(ASYNC_COUNT, 200)
                elif what < 0.98:
                    sender.send(1, 3000)
                else:
                    sender.send(chance.randint(2, LARGE_COUNT_MAX), 3000)
            if what > 0.99:
                broker.flush()
                sender.flushed()
            if expired and what < 0.02:
                _expire(store_of(broker), expired)
            if idle:
                time.sleep(idle * chance.random())


def _expire(store: Store, expired: str) -> None:
    """Have the log's files go but for the last three or four."""
    files = [file for file in segment_files(store.root / "commitlog") if int(file.name) < store.end()]
    if len(files) <= 4:
        return
    try:
        written_ms = files[-4].stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:  # Another writer has just had it go.
        return
    due = retention.due(store, written_ms, 0)
    if due is not None:
        with Path(expired).open("a") as file:
            file.write(f"{due.log_min}\n")
        retention.delete(store, due)


def reader(root: str, trace: str, *, sizes: Sizes, pauses: str, flush: Any = "async") -> None:
    """Reads every queue from where its trace ends, until stopped."""
    log = Log(trace, SEEN)
    offsets = dict.fromkeys(range(QUEUE_COUNT), 0)
    for item in seen(trace):
        offsets[item.queue_id] = item.queue_offset + 1
    with mq.open(root, flush=flush, **sizes) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        queues = broker.topic(TOPIC).queues
        watch = Stopwatch(pauses)
        while not stopping:
            for queue in queues:
                with watch:
                    result = queue.read(offsets[queue.queue_id], count_max=100)
                for message in result.messages:
                    run, sequence, place = _name(message)
                    log.add((queue.queue_id, message.queue_offset, run, sequence, place))
                offsets[queue.queue_id] = result.next_offset
            time.sleep(0.001)


def visitor(root: str, trace: str, run: int, *, sizes: Sizes) -> None:
    """Opens, sends a little, closes, over and over: a process dies while opening or closing."""
    sequence = 0
    while not stopping:
        sequence += 1
        with mq.open(root, **sizes) as broker:
            broker.create_topic(TOPIC, QUEUE_COUNT)
            sender = Sender(broker, trace, run * 1000 + sequence % 1000, sequence, durable=False)
            for _ in range(sequence % 4):
                sender.send(1 + sequence % 3, 200)
            if sequence % 5 == 0:
                sender.send(1, 30_000)


def survivor(root: str, trace: str, run: int, *, sizes: Sizes, flush: Any, pauses: str, query: bool) -> None:
    """Sends one by one to all queues and reads them all to their ends, never away from the clock."""
    with mq.open(root, flush=flush, **sizes) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        sender = Sender(broker, trace, run, run, durable=flush == "sync")
        offsets = dict.fromkeys(range(QUEUE_COUNT), 0)
        watch = Stopwatch(pauses)
        pause = Path(trace).with_suffix(".pause")
        sequence = 0
        while not stopping:
            with watch:
                sender.send(1, 64)
            sequence += 1
            for queue in broker.topic(TOPIC).queues:
                with watch:
                    result = queue.read(offsets[queue.queue_id], count_max=100)
                for message in result.messages:
                    _name(message)
                offsets[queue.queue_id] = result.next_offset
            if query:
                with watch:
                    found = broker.query(TOPIC, key_of(run, sequence))
                assert len(found) == 1, f"a query finds {len(found)} of what was sent just before"
            time.sleep(0.001)
            if pause.exists():
                for thread in threads_named("mq-prepare"):
                    asleep(os.getpid(), thread.native_id)  # It takes the log's lock for moments.
                pause.with_suffix(".paused").touch()
                while pause.exists() and not stopping:
                    time.sleep(0.001)


def follower(root: str, master: str, file_size: int, step: int, ready: str, go: str) -> None:
    """Says that it is ready, waits until it may go on, and appends what the master's log, a file, has behind
    its own end."""
    data = Path(master).read_bytes()
    store = Store(Path(root), follow=True, commitlog_file_size=file_size)
    try:
        log, wanted = FollowedLog(store), 0
        Path(ready).touch()
        while not Path(go).exists() and not stopping:
            time.sleep(0.001)
        while (at := log.end) < len(data) and not stopping:
            wanted = log.append(at, data[at : at + max(step, wanted)]).wanted
    finally:
        store.close()


def victim(
    root: str,
    trace: str,
    run: int,
    *,
    sizes: Sizes,
    flush: Any,
    pauses: str,
    count: int,
    size: int,
    query: bool,
) -> None:
    """Sends until its fail point kills it. MQ_FAIL is in its environment."""
    beat(beat_of(pauses))
    with mq.open(root, flush=flush, **sizes) as broker:
        sender = Sender(broker, trace, run, run, durable=flush == "sync")
        while not stopping:
            sender.send(count, size)
            if query:
                broker.query(TOPIC, key_of(1, 1))
            time.sleep(0.0005)


def poisoned(root: str, trace: str, run: int, *, sizes: Sizes, flush: Any) -> None:
    """Sends until the store is poisoned; then reads on, closes."""
    with mq.open(root, flush=flush, flush_interval=0.01, **sizes) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        sender = Sender(broker, trace, run, run, durable=flush == "sync")
        until = time.monotonic() + 120
        try:
            while time.monotonic() < until:
                sender.send(1, 64)
                broker.flush()
            raise AssertionError("a sync failed, and no error is raised")
        except mq.StorePoisoned:
            pass
        attempts: dict[str, Callable[[], None]] = {"send": lambda: sender.send(1, 64), "flush": broker.flush}
        for name, attempt in attempts.items():
            try:
                attempt()
            except mq.StorePoisoned:
                continue
            raise AssertionError(f"{name} works in a poisoned store")
        wrong = check(broker, acks(trace))
        assert wrong == [], wrong


def full(root: str, trace: str, run: int, *, sizes: Sizes, rounds: int, then: int) -> None:
    """Finds no room for new files, is told so, reads on, and sends on once there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with mq.open(root, **sizes) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        sender = Sender(broker, trace, run, run, durable=False)
        sender.send_many(0 if rounds else then, 3000)
        for _ in range(rounds):
            # The kernel refuses to make files longer, as it does on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (sizes["commitlog_file_size"] // 2, hard))
            with pytest.raises(mq.StoreFull):
                sender.send_many(1000, 3000)
            wrong = check(broker, acks(trace))
            assert wrong == [], wrong
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            sender.send_many(then, 3000)


def inspect(
    root: str,
    traces: list[str],
    readers: list[str],
    answer: str,
    pauses: str | None,
    *,
    problems_too: bool = True,
) -> None:
    """Write to `answer` what is wrong with a store, beside the processes that have it open. pauses: of one
    that is watched meanwhile."""
    if pauses is not None:
        beat(beat_of(pauses))
    promised = [ack for trace in traces for ack in acks(trace)]
    with mq.open(root) as broker:
        recovered = store_of(broker).recovered
        wrong = check(broker, promised, [seen(path) for path in readers])
        if problems_too:
            wrong += problems(root)
        count = sum(queue.max_offset for queue in broker.topic(TOPIC).queues)
        repairs = store_of(broker).word(_repairs())
    _answer(answer, wrong, count, len(promised), repairs, recovered is not None)


def powered(scenario: str, record: dict[str, Any], **arguments: Any) -> None:
    """Any actor on a disk that forgets (see disk.py). Where its clock runs fast, its duties do too."""
    logging.getLogger("mq").addHandler(logging.NullHandler())  # Warnings of what is done to it on purpose.
    start_recording(str(arguments["root"]), **record)
    follow(f"{record['state']}/journal")
    if record["clock_factor"] > 1:
        leader.TURN_INTERVAL, leader.QUEUES_INTERVAL, leader.CHECKPOINT_INTERVAL = 0.005, 0.02, 0.03
    try:
        globals()[scenario](**arguments)
    except mq.StoreCorrupted as error:
        # Where syncs lie, what a recovery vouches for may be gone: an error is the right answer, and not the
        # question here. The inspection afterwards tells what was lost.
        if not record["syncs_lie"]:
            raise
        if scenario == "restarted":
            _answer(str(arguments["answer"]), [str(error)], 0, 0, 0, True)


def restarted(
    root: str,
    traces: list[str],
    readers: list[str],
    answer: str,
    kept: str,
    *,
    sizes: Sizes,
    trace: str,
    run: int,
    close: bool,
    log_min: int = 0,
) -> None:
    """The first one after a power cut: sees what is wrong, goes on, opens once more, and writes to `answer`.

    What it finds is on disk, and so promised for after the next cut: `kept` has it as a reader's trace.
    """
    promised = [ack for path in traces for ack in acks(path) if ack.durable]
    with mq.open(root, flush="sync", **sizes) as broker:
        broker.create_topic(TOPIC, QUEUE_COUNT)
        recovered = was_recovered(broker)
        wrong = check(
            broker, promised, [seen(path) for path in readers], whole_batches=False, log_min=log_min
        )
        wrong += problems(root)
        if not wrong:
            _keep(broker, kept)
            sender = Sender(broker, trace, run, run, durable=True)
            for count in (1, 3, 1, 1):
                sender.send(count, 200)
            wrong = check(broker, acks(trace), [seen(kept)], whole_batches=False, log_min=log_min)
        count = sum(queue.max_offset for queue in broker.topic(TOPIC).queues)
        if wrong or not close:
            _answer(answer, wrong, count, len(promised), 0, recovered)
            signal.pause()  # To be killed by the test while idle.
    with mq.open(root, **sizes) as broker:
        wrong = check(broker, promised + acks(trace), [seen(kept)], whole_batches=False, log_min=log_min)
        if was_recovered(broker):
            wrong.append("closed and opened again, and there was something to recover")
        Sender(broker, f"{trace}.again", run + 1, run, durable=False).send(1, 200)
    wrong += problems(root)
    _answer(answer, wrong, count, len(promised), 0, recovered)


def scripted(root: str, *, sizes: Sizes, flush: Any, steps: list[tuple[str, int]], answer: str) -> None:
    """Sends (word, queue id), or does what the word says; writes down what the queues then hold; waits."""
    with mq.open(root, flush=flush, flush_interval=3600.0, **sizes) as broker:
        broker.create_topic(TOPIC, 2)
        producer = mq.Producer(broker, compress_over=1 << 30)
        for word, queue_id in steps:
            if word == "flush":
                broker.flush()
            elif word == "flush units":
                store_of(broker).flush_queues()
            elif word == "expire":
                _expire(store_of(broker), f"{answer}.expired")
            elif word == "make other":
                broker.create_topic(OTHER, 1)
            elif word == "make many":
                for number in range(queue_id):
                    broker.create_topic(f"one-of-many-{number}", 1)
            elif word != "close":
                topic = OTHER if word == "to other" else TOPIC
                message = mq.Message(topic, word.encode().ljust(2000))
                producer.send(message, queue=mq.MessageQueue(topic, broker.name, queue_id))
        found = {str(queue.queue_id): _words(queue) for queue in broker.topic(TOPIC).queues}
        if OTHER in broker.topics():
            found[OTHER] = [word for queue in broker.topic(OTHER).queues for word in _words(queue)]
        if not steps or steps[-1][0] != "close":
            _say_and_wait(answer, {**found, "problems": list(problems(root))})
    _say_and_wait(answer, {**found, "problems": list(problems(root))})


def _words(queue: mq.Queue) -> list[str]:
    messages = queue.read(queue.min_offset, count_max=1000).messages
    return [message.body.strip().decode() for message in messages]


def _say_and_wait(answer: str, found: dict[str, list[str]]) -> None:
    fresh = Path(answer + ".new")
    fresh.write_text(json.dumps(found))
    fresh.rename(answer)
    signal.pause()


def _keep(broker: mq.Broker, path: str) -> None:
    Path(path).unlink(missing_ok=True)
    log = Log(path, SEEN)
    for queue in broker.topic(TOPIC).queues:
        offset = queue.min_offset
        while messages := queue.read(offset, count_max=1000).messages:
            log.add(*((queue.queue_id, message.queue_offset, *_name(message)) for message in messages))
            offset = messages[-1].queue_offset + 1
    log.close()


def _answer(path: str, wrong: list[str], stored: int, promised: int, repairs: int, recovered: bool) -> None:
    fields = {
        "wrong": wrong[:50],
        "stored": stored,
        "promised": promised,
        "repairs": repairs,
        "recovered": recovered,
    }
    fresh = Path(path + ".new")
    fresh.write_text(json.dumps(fields))
    fresh.rename(path)


def _repairs() -> int:
    from mq.store.native import lib

    return int(lib.MQ_REPAIRS)


def _name(message: mq.MessageExt) -> tuple[int, int, int]:
    from tests.support.processes.trace import stored

    found = stored(message)
    assert found is not None, f"a torn message was delivered: {message}"
    return found.run, found.sequence, found.place
