"""`tail`: what is stored, in order; what arrives; and how it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mq
from mq.cli.follow import MessageFilter, TopicFollower
from tests.cli.conftest import ENVIRONMENT, Run, Start
from tests.support.appending import append_one
from tests.support.store.small_store import log_files


def fill(directory: Path, count: int, *, begin: int = 0) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 4)
        for number in range(begin, begin + count):
            tag = "even" if number % 2 == 0 else "odd"
            topic.send(f"order {number}".encode(), tags=tag, properties={"number": str(number)})


def read_line(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


def shown(out: str) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), list(range(40, 50))),
        (("-n", "3"), [47, 48, 49]),
        (("-n", "0"), []),
        (("--from", "first"), list(range(50))),
        (("--from", "0"), list(range(50))),
        (("--from", "1h"), list(range(50))),
        (("--from", "last"), []),
        (("--from", "earliest"), list(range(50))),
        (("--from", "latest"), []),
        (("--from", "first", "--tags", "even"), list(range(0, 50, 2))),
        (("--from", "first", "--tags", "even || odd"), list(range(50))),
        (("--tags", "odd"), [41, 43, 45, 47, 49]),
        (("--from", "first", "--sql", "number BETWEEN 20 AND 22"), [20, 21, 22]),
    ],
)
def test_stored_messages_come_in_the_order_of_the_log(
    run: Run, directory: Path, options: tuple[str, ...], expected: list[int]
) -> None:
    fill(directory, 50)
    answer = run("tail", "orders", "--no-follow", *options)
    assert answer.status == 0
    assert shown(answer.out) == expected


def test_a_filter_that_cannot_be_parsed_is_wrong_usage(run: Run, directory: Path) -> None:
    fill(directory, 1)
    assert run("tail", "orders", "--no-follow", "--tags", "a || || b").status in {0, 2}
    assert run("tail", "orders", "--no-follow", "--from", "soon").status == 2
    assert run("tail", "orders", "--no-follow", "--tags", "even", "--sql", "number > 1").status == 2


def test_a_filter_that_cannot_be_parsed_has_the_place_marked(run: Run, directory: Path) -> None:
    fill(directory, 1)
    answer = run("tail", "orders", "--no-follow", "--sql", "number >")
    assert answer.status == 2
    *_, expression, mark = answer.err.splitlines()
    assert expression.strip() == "number >"
    assert mark.strip() == "^"


def test_what_arrives_is_followed_across_all_queues(start: Start, directory: Path) -> None:
    fill(directory, 3)
    tail = start("tail", "orders", "-n", "1")
    assert shown(read_line(tail)) == [2]
    fill(directory, 20, begin=3)
    assert sorted(shown("".join(read_line(tail) for _ in range(20)))) == list(range(3, 23))


def test_a_topic_that_does_not_exist_yet_is_waited_for(start: Start, directory: Path, run: Run) -> None:
    assert run("create", "other").status == 0
    tail = start("tail", "orders", "--from", "first")
    assert tail.stderr is not None
    assert "waiting" in tail.stderr.readline().decode()
    fill(directory, 4)
    assert sorted(shown("".join(read_line(tail) for _ in range(4)))) == [0, 1, 2, 3]


def test_an_interrupt_ends_it_quietly(start: Start, directory: Path) -> None:
    fill(directory, 1)
    # Where the tests run in the background of a shell, SIGINT is ignored, and a child would inherit that.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        tail = start("tail", "orders")
    finally:
        signal.signal(signal.SIGINT, inherited)
    read_line(tail)
    tail.send_signal(signal.SIGINT)
    out, err = tail.communicate(timeout=60)
    assert (tail.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_goes_away_ends_it_quietly(start: Start, directory: Path) -> None:
    fill(directory, 1)
    tail = start("tail", "orders")
    read_line(tail)
    assert tail.stdout is not None
    tail.stdout.close()
    fill(directory, 1, begin=1)
    assert tail.wait(60) == 141
    assert tail.stderr is not None
    assert tail.stderr.read() == b""


def test_json_has_a_line_for_each_message(run: Run, directory: Path) -> None:
    fill(directory, 5)
    messages = run("tail", "orders", "--no-follow", "--json").objects
    assert [message["body"] for message in messages] == [f"order {n}" for n in range(5)]
    assert {message["topic"] for message in messages} == {"orders"}


def damaged(directory: Path, text: bytes) -> None:
    """Spoil a body in the log."""
    log = log_files(directory)[0]
    content = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(content.index(text))
        file.write(text.upper())


def test_a_damaged_record_is_reported_and_reading_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "damaged"  # nothing mends it: it is not verified
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        for name in ("first", "second", "third"):
            topic.send(f"order {name}".encode())
    damaged(directory, b"order second")
    bare_run = [sys.executable, "-m", "mq", str(directory), "tail", "orders"]
    for options in (["--no-follow"], ["--no-follow", "--from", "first"]):
        done = subprocess.run(
            [*bare_run, *options], env=ENVIRONMENT, capture_output=True, check=False, timeout=240
        )
        assert done.stdout.count(b"\n") == 2
        assert b"order third" in done.stdout
        assert done.stderr.count(b"reading goes on at queue offset 2") == 1
        assert done.returncode == 1


def test_a_group_goes_on_behind_a_damaged_record(tmp_path: Path) -> None:
    directory = tmp_path / "damaged"
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 2)
        for name in ("first", "second", "third"):
            for queue in topic.queues:
                body = f"order {name} {queue.queue_id}".encode()
                append_one(broker, "orders", queue.queue_id, mq.Message("orders", body), body, 0)
    for text in (b"order second 0", b"order third 1"):
        damaged(directory, text)
    command = [sys.executable, "-m", "mq", str(directory), "consume", "orders", "--group", "g", "--wait", "0"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False, timeout=240)
    for text in (b"first 0", b"third 0", b"first 1", b"second 1"):
        assert done.stdout.count(text) == 1
    assert done.stdout.count(b"\n") == 4
    assert done.stderr.count(b"reading goes on at queue offset") == 2
    assert done.returncode == 1
    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False, timeout=240)
    assert (again.stdout, again.returncode) == (b"", 1)
    assert b"reading goes on" not in again.stderr


def test_following_goes_on_behind_a_damaged_record(tmp_path: Path) -> None:
    directory = tmp_path / "damaged"
    errors: list[mq.StoreCorrupted] = []
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        for name in ("first", "second", "third"):
            topic.send(f"order {name}".encode())
        broker.flush()
        damaged(directory, b"order second")
        with TopicFollower(broker, "orders", {}, MessageFilter(), errors.append) as follower:
            arriving = iter(follower)
            assert [next(arriving).queue_offset for _ in range(2)] == [0, 2]
            topic.send(b"order fourth")
            assert next(arriving).queue_offset == 3
    assert [error.queue_offset for error in errors] == [1]


def test_a_topic_made_anew_is_followed_from_its_start(directory: Path) -> None:
    with mq.open(directory) as broker:
        topic = broker.create_topic("orders", 1)
        for number in range(3):
            topic.send(b"old %d" % number)
        with TopicFollower(broker, "orders", {}, MessageFilter(), print) as follower:
            arriving = iter(follower)
            assert [next(arriving).body for _ in range(3)] == [b"old 0", b"old 1", b"old 2"]
            broker.delete_topic("orders")
            topic = broker.create_topic("orders", 1)
            for number in range(5):
                topic.send(b"new %d" % number)
            seen: list[bytes] = []
            while len(seen) < 5:
                try:
                    seen.append(next(arriving).body)
                except mq.TopicNotFound:  # It looked in between.
                    return
            assert seen == [b"new %d" % number for number in range(5)]
