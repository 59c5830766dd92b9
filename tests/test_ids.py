"""Unique ids: RocketMQ's layout, and no id twice: not over threads, processes, or forks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import mq
from mq.message import unique_id_time_ms
from mq.store.log.unique_id import new_unique_ids

# Sends from this process, from a forked child, and from the child of that child; each prints its ids.
FORKING = """if True:
    import os
    import sys
    import mq

    def send(generation):
        with mq.open(sys.argv[1]) as broker, mq.Producer(broker, timeout=60) as producer:
            ids = [producer.send(mq.Message("ids", b"x")).msg_id for _ in range(300)]
            ids += producer.send_batch([mq.Message("ids", b"x")] * 300).msg_ids
            sys.stdout.write("\\n".join(ids) + "\\n")
            sys.stdout.flush()
            # The child prints while this process waits for it, so lines never mix.
            if generation and (child := os.fork()) == 0:
                send(generation - 1)
                os._exit(0)
            elif generation:
                assert os.waitpid(child, 0)[1] == 0

    send(2)
"""


def ids_of_processes(script: str, directory: Path, count: int) -> list[str]:
    command = [sys.executable, "-c", script, str(directory)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            for _ in range(count)
        ]
        outputs = [process.communicate(timeout=60) for process in processes]
    assert [err for _, err in outputs] == [""] * count
    return [msg_id for out, _ in outputs for msg_id in out.split()]


def test_no_id_comes_twice_over_processes_and_forks(directory: Path) -> None:
    ids = ids_of_processes(FORKING, directory, 3)
    assert len(ids) == 3 * 3 * 600
    assert len(set(ids)) == len(ids)
    with mq.open(directory) as broker:
        stored = [
            message.msg_id
            for queue in broker.topic("ids").queues
            for offset in range(0, queue.max_offset, 1000)
            for message in queue.read(offset, count_max=1000).messages
        ]
    assert sorted(stored) == sorted(ids)


def test_no_id_comes_twice_over_threads(directory: Path) -> None:
    ids: list[str] = []
    with mq.open(directory) as broker:

        def work() -> None:
            with mq.Producer(broker, timeout=60) as producer:
                mine = [producer.send(mq.Message("ids", b"x")).msg_id for _ in range(1000)]
                mine += producer.send_batch([mq.Message("ids", b"x")] * 1000).msg_ids
                ids.extend(mine)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(ids)) == len(ids) == 16_000


def test_an_id_has_rocketmqs_layout(directory: Path) -> None:
    with mq.open(directory) as broker, mq.Producer(broker) as producer:
        first, second = (producer.send(mq.Message("ids", b"x")).msg_id for _ in range(2))
    assert re.fullmatch("[0-9A-F]{32}", first)
    assert int(first[8:12], 16) == os.getpid() & 0xFFFF
    assert first[:20] == second[:20]
    assert (int(second[28:], 16) - int(first[28:], 16)) % 65_536 == 1


def test_an_id_tells_about_when_it_was_made(directory: Path) -> None:
    with mq.open(directory) as broker, mq.Producer(broker) as producer:
        made = producer.send(mq.Message("ids", b"x")).msg_id
    now = time.time_ns() // 1_000_000
    told = unique_id_time_ms(made, now)
    assert told is not None
    # The month begins at midnight of the sender's time zone.
    assert abs(told - now) <= 86_400_000 + 1000


def test_no_id_comes_twice_however_many_there_are_in_a_tick_of_the_clock(directory: Path) -> None:
    """The counter has 65,536 values, and the clock that ids go by moves every few ms."""
    assert len(set(new_unique_ids(1_000_000))) == 1_000_000
    ids: list[str] = []

    def work() -> None:
        ids.extend(new_unique_ids(200_000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 800_000
    with mq.open(directory) as broker, mq.Producer(broker) as producer:
        for _ in range(3):
            made = producer.send_batch([mq.Message("ids", b"x")] * 100_000).msg_ids
            assert len(set(made)) == 100_000
