"""`query`, `show`, `verify`, `bench`: looking into a store."""

import base64
import os
import time
from pathlib import Path

import mq
from tests.cli.conftest import Run
from tests.support.store.small_store import log_files

RAW = b"\x1b]0;owned\x07 \xff\x9b31m\x7f end"


def test_query_finds_the_messages_of_a_key_newest_first(run: Run) -> None:
    for body in ("ordered", "paid", "shipped"):
        assert run("send", "orders", body, "--keys", "1001").status == 0
    assert run("send", "orders", "another", "--keys", "1002").status == 0
    answer = run("query", "orders", "1001", "--json")
    assert answer.status == 0
    assert [message["body"] for message in answer.objects] == ["shipped", "paid", "ordered"]
    assert len(run("query", "orders", "1001", "--count", "2").out.splitlines()) == 2
    assert run("query", "orders", "1001", "--end", "1h").status == 1
    assert run("query", "orders", "1001", "--begin", "1h").status == 0


def test_show_takes_either_id(run: Run) -> None:
    [sent] = run("send", "orders", "order 1", "--json").objects
    by_unique_id = run("show", sent["msg_id"])
    assert by_unique_id.status == 0
    assert "order 1" in by_unique_id.out
    assert run("show", sent["offset_msg_id"]).out == by_unique_id.out


def test_a_body_never_reaches_the_terminal_as_control_characters(run: Run) -> None:
    [sent] = run("send", "orders", "--keys", "1001", "--json", stdin=RAW).objects
    outputs = [
        run("show", sent["msg_id"]).out,
        run("query", "orders", "1001").out,
        run("tail", "orders", "--no-follow").out,
        run("tail", "orders", "--no-follow", "--json").out,
    ]
    for out in outputs:
        assert all(character.isprintable() for line in out.split("\n") for character in line)
    [message] = run("show", sent["msg_id"], "--json").objects
    assert base64.b64decode(message["body_base64"]) == RAW
    assert "body" not in message


def test_verify_finds_nothing_wrong_with_a_good_store(run: Run) -> None:
    assert run("send", "orders", "--lines", stdin=b"a\nb\nc\n").status == 0
    answer = run("verify")
    assert (answer.status, answer.out) == (0, "no problems\n")


def test_verify_lists_what_is_wrong(run: Run, directory: Path) -> None:
    assert run("send", "orders", "a body that will be damaged").status == 0
    log = log_files(directory)[0]
    with log.open("r+b") as file:
        content = file.read(4096)
        file.seek(content.index(b"damaged"))
        file.write(b"DAMAGED")
    answer = run("verify", "--json")
    assert answer.status == 1
    assert answer.objects
    assert run("verify").out.splitlines()[-1].endswith("problems")
    with log.open("r+b") as file:
        file.write(content)


def test_expire_deletes_old_files_and_nothing_else_does(run: Run, directory: Path) -> None:
    body = b"x" * 1000
    with mq.open(directory, commitlog_file_size=16384) as broker:
        topic = broker.create_topic("orders", 1)
        for _ in range(100):
            topic.send(body)
    week_ago = time.time() - 7 * 86_400
    files = sorted((directory / "commitlog").iterdir())
    for file in files[:-1]:
        os.utime(file, (week_ago, week_ago))
    for verb in (("topics",), ("send", "orders", "one more"), ("query", "orders", "none"), ("verify",)):
        run(*verb)
    assert run("expire", "--hours", "200", "--json").objects == [{"deleted_files": 0}]
    assert set(files) <= set((directory / "commitlog").iterdir())
    [answer] = run("expire", "--hours", "100", "--json").objects
    assert answer["deleted_files"] > 0
    assert not files[0].exists()
    assert files[-1].exists()


def test_bench_measures_beside_the_directory_and_leaves_nothing(run: Run, directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders")
    before = sorted(directory.parent.iterdir())
    answer = run("bench", "--count", "2000", "--size", "100", "--json")
    assert answer.status == 0
    assert all(case["rate"] > 0 for case in answer.objects)
    assert len(answer.objects) == 4
    assert sorted(directory.parent.iterdir()) == before
    with mq.open(directory) as broker:
        assert broker.topics() == ["orders"]
