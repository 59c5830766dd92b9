"""A process is cut off at each step of a payment, or line of a check; database and topic agree all the same.

A step is one of the interpreter: there are several to a line. For each there is a process that dies at it
with a payment of its own under way, or a Ctrl-C that comes there. A process that was there for none of this
is asked about what was left. That every step was met is known from the last payment: it comes through.
"""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import mq
from examples import outbox
from mq.store.check import problems

pytestmark = pytest.mark.rounds

ROOT = Path(__file__).parents[2]
TIMEOUT, INTERVAL = 0.2, 0.2


def options(timeout: float, interval: float) -> dict[str, Any]:
    return {
        "transaction_timeout": timeout,
        "transaction_check_interval": interval,
        "transaction_check_max": 100_000,
        "change_settings": True,
    }


# For those who pay: no payment is requested before they are cut off, however slow the machine is. And for
# those who are cut off while they check.
LATER, SOON = options(600.0, 600.0), options(0.01, 0.02)
BUSY_SECONDS = 60.0  # that a busy machine may take longer
STEPS_MAX = 500
UNDECIDED = 50

# Prints how many it were. Forks before anything of mq is opened.
DRIVER = """
import json, os, signal, sys, threading
import mq
import mq.txn.producer
from examples import outbox

FILES = {outbox.__file__, mq.txn.producer.__file__}
COUNT, LATER, SOON = json.loads(sys.argv[2])


class Step:
    '''Counts the steps of a thread in some files; something happens at one of them.'''

    def __init__(self, number, happens, kinds=("line", "opcode")):
        self.left = number
        self.happens = happens
        self.kinds = kinds
        # Some interpreters want to know it before they begin to trace, and count too few all the same.
        sys._getframe().f_trace_opcodes = True

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        return self.count

    def count(self, frame, event, arg):
        if event in self.kinds:
            self.left -= 1
            if self.left == 0:
                self.happens()
        return self.count


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    raise KeyboardInterrupt


def payment(number):
    with (
        mq.open("bank", **LATER) as broker,
        outbox.connect() as database,
        mq.TransactionProducer(broker, "bank", outbox.check_payment) as producer,
    ):
        return pay(producer, database, Step(number, die))


def pay(producer, database, step):
    number = step.left
    sys.settrace(step)
    try:
        outbox.pay(producer, database, "ann", f"payee-{number}", number)
    finally:
        sys.settrace(None)
    return step.left > 0


def interrupted_payments():
    '''All in one process, which goes on after each Ctrl-C.'''
    with (
        mq.open("bank", **LATER) as broker,
        outbox.connect() as database,
        mq.TransactionProducer(broker, "bank", outbox.check_payment) as producer,
    ):
        for number in range(1, COUNT + 1):
            try:
                if pay(producer, database, Step(number, interrupt)):
                    return number
            except KeyboardInterrupt:
                pass


def left_undecided(number):
    '''A payment that dies when the database has it, or just before.'''
    class Connection(type(outbox.connect())):
        def __exit__(self, *error):
            if number % 2:
                super().__exit__(*error)
            die()
    database = outbox.sqlite3.connect(outbox.DATABASE, timeout=60, factory=Connection)
    with mq.open("bank", **LATER) as broker:
        with mq.TransactionProducer(broker, "bank", lambda _: mq.TransactionState.UNKNOWN) as producer:
            outbox.pay(producer, database, "ann", f"payee-{number}", number)


def check(number):
    '''Dies at a line of a check, or comes through one.'''
    step = Step(number, die, ["line"])
    answered = threading.Event()
    checks = [0]

    def check_payment(message):
        if answered.is_set():  # A slow end of this would decide for all later ones.
            return mq.TransactionState.UNKNOWN
        try:
            return outbox.check_payment(message)
        finally:
            answered.set()

    def trace(frame, event, arg):
        # Not while it waits to be asked, which is nothing to be counted, nor when it is asked once more.
        checks[0] += frame.f_code.co_name == "_answer"
        if checks[0] != 1 or frame.f_code.co_name == "_answer_all":
            return None
        return step(frame, event, arg)

    with mq.open("bank", **SOON) as broker:
        threading.settrace(trace)
        with mq.TransactionProducer(broker, "bank", check_payment):
            if not answered.wait(60):
                os._exit(3)
        threading.settrace(None)
    return step.left > 0


def died(role):
    '''How many processes it took until one came through.'''
    for number in range(1, COUNT + 1):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if role(number) else 1)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        if status != -signal.SIGKILL:
            sys.exit(f"process {number} ended with {{status}}")
    return number


print(eval(sys.argv[1]))
"""


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the store `bank` and the database: ann has enough, the payees have nothing."""
    monkeypatch.chdir(tmp_path)
    Path("var").mkdir()
    with closing(outbox.connect()) as database, database:
        database.execute(outbox.OUTBOX)
        database.execute(outbox.ACCOUNTS)
        payees = [(f"payee-{number}", 0) for number in range(1, STEPS_MAX + 1)]
        database.executemany("INSERT INTO accounts VALUES (?, ?)", [("ann", 1_000_000), *payees])
    with mq.open("bank") as broker:
        broker.create_topic("payments", 1)
    return tmp_path


def drive(does: str, count: int) -> int:
    """How many processes, or payments of one process, it took until one came through."""
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER, does, json.dumps([count, LATER, SOON])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=True,
    )
    return int(completed.stdout)


def in_database() -> dict[str, int]:
    """What each payee has got."""
    with closing(outbox.connect()) as database:
        return dict(database.execute("SELECT name, cents FROM accounts WHERE name != 'ann' AND cents > 0"))


def in_topic(broker: mq.Broker) -> Counter[str]:
    """How many messages say that a payee is paid."""
    [queue] = broker.topic("payments").queues
    paid: Counter[str] = Counter()
    offset = 0
    while messages := queue.read(offset, count_max=1000).messages:
        paid.update(message.keys[1] for message in messages)
        offset += len(messages)
    return paid


def agree() -> Counter[str]:
    """Who has been paid, by database and topic alike, once the producer has been checked."""
    with (
        mq.open("bank", **options(TIMEOUT, INTERVAL)) as broker,
        mq.TransactionProducer(broker, "bank", outbox.check_payment),
    ):
        deadline = time.monotonic() + TIMEOUT + INTERVAL + BUSY_SECONDS
        while in_topic(broker) != Counter(in_database().keys()) and time.monotonic() < deadline:
            time.sleep(0.01)
        paid = in_topic(broker)
        assert paid == Counter(in_database().keys())
        # What is undecided now would be asked about within this time, and be seen.
        time.sleep(TIMEOUT + 2 * INTERVAL)
        assert in_topic(broker) == paid == Counter(in_database().keys())
    assert all(name == f"payee-{cents}" for name, cents in in_database().items())
    assert [str(problem) for problem in problems(Path("bank"))] == []
    return paid


@pytest.mark.crash
@pytest.mark.parametrize("does", ["died(payment)", "interrupted_payments()"])
@pytest.mark.usefixtures("bank")
def test_a_payment_is_cut_off_at_each_step(does: str) -> None:
    count = drive(does, STEPS_MAX)
    assert 30 < count < STEPS_MAX
    paid = agree()
    # The one that came through, and those that died when the database had them; not those before.
    assert f"payee-{count}" in paid
    assert 1 < len(paid) < count


@pytest.mark.crash
@pytest.mark.usefixtures("bank")
def test_a_check_is_cut_off_at_each_line() -> None:
    assert drive("died(left_undecided)", UNDECIDED) == UNDECIDED
    assert 5 < drive("died(check)", UNDECIDED) < UNDECIDED
    assert agree() == Counter(f"payee-{number}" for number in range(1, UNDECIDED + 1, 2))


@pytest.mark.usefixtures("bank")
def test_a_transaction_that_comes_after_its_check_is_too_late() -> None:
    with (
        mq.open("bank") as broker,
        closing(outbox.connect()) as database,
        mq.TransactionProducer(broker, "bank", outbox.check_payment) as producer,
    ):
        begin = producer.begin

        def begin_slowly(message: mq.Message) -> mq.Transaction:
            half = begin(message)
            with closing(outbox.connect()) as other, other:
                other.execute(outbox.OURS, (half.message_id, False))
            return half

        producer.begin = begin_slowly  # type: ignore[method-assign, assignment]  # a check in between
        with pytest.raises(outbox.TooLate):
            outbox.pay(producer, database, "ann", "payee-1", 1)
        assert in_database() == in_topic(broker) == {}


@pytest.mark.usefixtures("bank")
def test_an_order_without_money_sends_no_message() -> None:
    with (
        mq.open("bank") as broker,
        closing(outbox.connect()) as database,
        mq.TransactionProducer(broker, "bank", outbox.check_payment) as producer,
    ):
        with pytest.raises(sqlite3.IntegrityError):
            outbox.pay(producer, database, "payee-1", "ann", 1)
        outbox.pay(producer, database, "ann", "payee-1", 1)
        assert in_database() == in_topic(broker) == {"payee-1": 1}
