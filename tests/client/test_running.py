"""A push consumer in a process of its own: signals, the end of the interpreter, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mq
from mq.api.results import MessageQueue
from tests.support import assigned

ROOT = Path(__file__).parent.parent.parent

RUN = """
import os, signal, sys, threading, mq

def before(number, frame): ...

signal.signal(signal.SIGTERM, before)
# Ignored, and so inherited, where the tests run in the background of a shell.
signal.signal(signal.SIGINT, signal.default_int_handler)
broker = mq.open(sys.argv[1])
consumer = mq.PushConsumer(broker, "g")
open_lock = threading.Event()

@consumer.subscribe("orders")
def bill(message):
    print("got", message.body.decode(), flush=True)
    if message.body == b"slow":
        open_lock.wait(0.2)

consumer.run()
print("closed", signal.getsignal(signal.SIGTERM) is before, flush=True)
print("interruptible", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
broker.close()
"""

FORGET = """
import sys, threading, mq

broker = mq.open(sys.argv[1])
consumer = mq.PushConsumer(broker, "g")
heard = threading.Event()
open_lock = threading.Event()

@consumer.subscribe("orders")
def bill(message):
    heard.set()
    open_lock.wait(0.2)
    print("done", flush=True)

consumer.start()
heard.wait()
"""

CLOSE_INSIDE = """
import sys, mq

with mq.open(sys.argv[1]) as broker:
    consumer = mq.PushConsumer(broker, "g")

    @consumer.subscribe("orders")
    def bill(message):
        consumer.close()

    consumer.run()
    print("closed", flush=True)
"""

FORK = """
import os, sys, threading, mq

broker = mq.open(sys.argv[1])
consumer = mq.PushConsumer(broker, "g")
heard = threading.Event()
consumer.subscribe("orders", listener=lambda message: heard.set())
consumer.start()
heard.wait()
child = os.fork()
if not child:
    consumer.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(broker.group("g").members()), len(consumer.assignment()), flush=True)
consumer.close()
broker.close()
"""


def started(code: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def prepared(directory: Path, body: bytes) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1).send(body)


def check_committed(directory: Path, offset: int) -> None:
    with mq.open(directory) as broker:
        assert assigned.committed(broker, "g", MessageQueue("orders", "mq", 0)) == offset
        assert broker.group("g").members() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_run_after_the_listener(directory: Path, number: signal.Signals) -> None:
    prepared(directory, b"slow")
    process = started(RUN, directory)
    assert process.stdout is not None
    assert process.stdout.readline() == "got slow\n"
    process.send_signal(number)
    assert ended(process) == ["closed True", "interruptible True"]
    check_committed(directory, 1)


def test_a_signal_that_comes_just_before_the_wait_ends_run(directory: Path) -> None:
    """It only marks that its handler is to run, and does not wake the thread that goes to sleep then."""
    prepared(directory, b"slow")
    code = RUN.replace("open_lock.wait(0.2)", "_thread.interrupt_main(signal.SIGTERM)")
    assert code != RUN
    process = started(code.replace("import os", "import _thread, os"), directory)
    assert ended(process) == ["got slow", "closed True", "interruptible True"]
    check_committed(directory, 1)


def test_an_unclosed_consumer_is_closed_at_exit(directory: Path) -> None:
    prepared(directory, b"slow")
    assert ended(started(FORGET, directory)) == ["done"]
    check_committed(directory, 1)


def test_run_ends_when_a_listener_closes(directory: Path) -> None:
    prepared(directory, b"last")
    assert ended(started(CLOSE_INSIDE, directory)) == ["closed"]
    check_committed(directory, 1)


def test_a_forked_child_leaves_its_parents_consumer_alone(directory: Path) -> None:
    prepared(directory, b"one")
    assert ended(started(FORK, directory)) == ["1 1"]
    check_committed(directory, 1)
