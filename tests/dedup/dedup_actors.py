"""What the processes do in the tests of keys: send and handle, and die in the middle of it.

Functions for tests.support.processes.children.Child. One that lives forks others that die before a certain
line of the code under test, so that every line has its turn; then it does what the dead one was about to do.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import mq
from mq.broker.once import append_once, handled_keys
from mq.store.dedup import table as dedup_table
from tests.support.insides import store_of
from tests.support.processes.children import say

SMALL: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 256,
    "index_slot_count": 64,
    "index_unit_count": 1024,
}
OF_SENDS, OF_TABLE, OF_ONCE = (
    {append_once.__file__, dedup_table.__file__},
    {dedup_table.__file__},
    {handled_keys.__file__},
)
MAKING = {"__init__", "_make", "_believed", "_is_in_turn", "_take_turn", "_leave"}


def die_before_line(files: set[str], functions: set[str], step: int) -> None:
    """Have this process killed before one of its next threads comes to the step-th line of these files, or of
    these functions of theirs."""
    left = step

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        code = frame.f_code
        if code.co_filename not in files or (functions and code.co_name not in functions):
            return None
        if event == "line":
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return trace

    threading.settrace(trace)


def dies(step: int, files: set[str], functions: set[str], work: Callable[[], object]) -> bool:
    """Whether a process that does this work dies of it at this step."""
    pid = os.fork()
    if pid == 0:
        try:
            with_broker = work()
            assert callable(with_broker)
            die_before_line(files, functions, step)
            # Not the main thread, which has another one open tables for it: that one is not traced.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(with_broker).result()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"step {step}: {status}"
    return os.WIFSIGNALED(status)


def order(body: bytes, **options: Any) -> mq.Message:
    return mq.Message("orders", body, **options)


def dead_senders(root: str, flush: Any, delay_level: int, fresh: bool) -> int:
    """Each key is sent by a process that dies at one of its lines, and then by one that lives. With `fresh`,
    in a store of its own, so that the table is made anew as well. How many lines there were."""
    options = {**SMALL, "flush": flush}
    broker = producer = None
    for step in count():
        if fresh or broker is None:
            path = f"{root}/{step}" if fresh else root
            if broker is not None:
                broker.close()
            broker = mq.open(path, **options)
            broker.create_topic("orders", 2)
            producer = mq.Producer(broker, dedup_window=3600)
            if fresh:  # a table that does not know what was before it
                producer.send(order(b"before"))
            else:  # one that knows, so that the index is queried only for a key with a claim
                producer.send(order(b"before"), dedup_key="before")
        assert producer is not None
        key = f"key-{step}"

        def send(path: str = path, key: str = key) -> Callable[[], object]:
            own = mq.Producer(mq.open(path, **options), dedup_window=3600)
            message = order(b"of the dead", delay_level=delay_level)
            return lambda: own.send(message, dedup_key=key)

        died = dies(step, OF_TABLE if fresh else OF_SENDS, MAKING if fresh else set(), send)
        message = order(b"of the living", delay_level=delay_level)
        results = [producer.send(message, dedup_key=key) for _ in range(2)]
        assert results[0].offset_msg_id == results[1].offset_msg_id, step
        topics = ["SCHEDULE_TOPIC_XXXX"] if delay_level else ["orders"]
        stored = [found for topic in topics for found in broker.query(topic, key)]
        assert [found.offset_msg_id for found in stored] == [results[0].offset_msg_id], step
        if not died:
            assert stored[0].body == b"of the dead"
            broker.close()
            return step
    raise AssertionError


def dead_handlers(root: str) -> int:
    """The same for processes that handle a key. Returns the number of lines."""
    done = Path(root).parent / "done"
    with mq.open(root, **SMALL) as broker:
        living = mq.Once(broker, "billing", size=10_000, wait=0)
        handled = list[str]()
        for step in count():
            key = f"key-{step}"

            def handle(key: str = key) -> Callable[[], object]:
                own = mq.Once(mq.open(root, **SMALL), "billing", wait=0)

                def work() -> None:
                    with own(key) as is_fresh:
                        assert is_fresh
                        done.write_text(key)

                return work

            died = dies(step, OF_ONCE, set(), handle)
            with living(key) as is_fresh:
                # A key that was not handled is available to the next process at once.
                was_done = done.exists() and done.read_text() == key
                assert is_fresh or was_done, step
            handled.append(key)
            assert all(map(living.seen, handled)), step
            if not died:
                assert not is_fresh
                return step
    raise AssertionError


def keep_sending(root: str, name: str, seed: int, key_count: int, acks: str) -> None:
    """Send all keys in an order of one's own, and write down what was answered."""
    keys = list(range(key_count))
    random.Random(seed).shuffle(keys)
    fd = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with mq.open(root, **SMALL) as broker, mq.Producer(broker, dedup_window=3600, timeout=20) as producer:
        for key in keys:
            result = producer.send(order(f"{name} {key}".encode()), dedup_key=f"key-{key}")
            os.write(fd, f"{key} {result.offset_msg_id}\n".encode())


def keep_handling(root: str, seed: int, key_count: int, journal: str) -> None:
    """Handle all keys in an order of one's own; the body says when it begins and when it ends."""
    keys = list(range(key_count))
    random.Random(seed).shuffle(keys)
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with mq.open(root, **SMALL) as broker:
        handled = mq.Once(broker, "billing", wait=30)
        for key in keys:
            with handled(f"key-{key}") as is_fresh:
                if is_fresh:
                    os.write(fd, f"{key} begin {os.getpid()}\n".encode())
                    time.sleep(0.0005)  # so that others come while it is at it
                    os.write(fd, f"{key} end {os.getpid()}\n".encode())


def keep_consuming(root: str, journal: str) -> None:
    """Be a member of the group until killed, and write down which keys were handled."""
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)
    with mq.open(root, **SMALL) as broker:
        handled = mq.Once(broker, "billing")
        consumer = mq.PushConsumer(broker, "billing", threads=4)

        @consumer.subscribe("orders")
        def bill(message: mq.MessageExt) -> None:
            with handled(message) as is_fresh:
                if is_fresh:
                    time.sleep(0.05)
                    os.write(fd, f"{handled.key(message)} {os.getpid()}/{threading.get_ident()}\n".encode())

        with consumer:
            consumer.start()
            say("in")
            time.sleep(600)


def until_full(root: str, ballast: str) -> list[str]:
    """What is answered on a full disk, and once there is space again."""
    answers = []
    with mq.open(root, **SMALL) as broker, mq.Producer(broker, dedup_window=3600) as producer:
        broker.create_topic("orders", 1)
        producer.send(order(b"before"))
        producer.send(order(b"of another key"), dedup_key="key-0")
        # All that is allocated ahead is used up as well.
        with Path(ballast).open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"b" * size)
                except OSError:
                    continue
        number = 0

        def fill() -> None:
            nonlocal number
            while True:
                number += 1
                producer.send(order(b"x" * 1000), dedup_key=f"fill-{number}")

        def send() -> None:
            producer.send(order(b"one"), dedup_key=f"fill-{number}")

        def handle() -> None:
            with mq.Once(broker, "billing")("key"):
                pass

        for act in (fill, send, handle):
            try:
                act()
            except mq.MQError as error:
                answers.append(type(error).__name__)
        Path(ballast).unlink()
        send()
        send()
        assert len(broker.query("orders", f"fill-{number}")) == 1
        answers.append("sent")
        handle()
        answers.append("handled")
    return answers


def main(root: str, flush: Any, fail: str) -> None:
    """Send one key; MQ_FAIL says where that ends, or `fail`, for a send that is one call of C."""
    with mq.open(root, flush=flush, **SMALL) as broker, mq.Producer(broker, dedup_window=3600) as producer:
        if fail:
            producer.send(order(b"of the dead"), dedup_key="before")
            os.environ["MQ_FAIL"] = fail
        producer.send(order(b"of the dead"), dedup_key="key-1")


def lines_of(path: Path) -> Iterator[list[str]]:
    for line in path.read_text().splitlines():
        yield line.split()


def held(keys: dedup_table.SentKeys, digest: bytes, wait: float) -> ExitStack:
    """Hold the bucket of a key as one that sends it does, until the stack is closed."""
    stack = ExitStack()
    stack.enter_context(keys.locked(keys.number(digest), wait))
    return stack


def fork_while_a_key_is_sent(root: str) -> int:
    """How a child ends that closes the broker it inherits while a key is being sent; by a signal if it does
    not come to an end."""
    with mq.open(root, **SMALL) as broker:
        keys = dedup_table.SentKeys(store_of(broker), clock_ms=lambda: 0)
        with held(keys, dedup_table.digest_of("key", "orders", "key"), 0.0):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                broker.close()
                os._exit(0)
            _, status = os.waitpid(pid, 0)
        return status


if __name__ == "__main__":
    main(*sys.argv[1:])


def send_and_die(root: str) -> None:
    """The table as it was between the two messages is kept beside it."""
    with mq.open(root) as broker, mq.Producer(broker, dedup_window=3600) as producer:
        broker.create_topic("orders", 1)
        producer.send(mq.Message("orders", b"one"), dedup_key="first")
        path = broker.path / "mq" / "dedup"
        path.with_name("older").write_bytes(path.read_bytes())
        producer.send(mq.Message("orders", b"one"), dedup_key="second")
        os.kill(os.getpid(), signal.SIGKILL)
