"""`send`: one body, standard input as a body, lines as messages."""

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import mq
from mq.cli.verbs.send import BATCH_COUNT_MAX, arriving_lines, line_batches
from tests.cli.conftest import Run, Start


def bodies(directory: Path, topic: str) -> list[bytes]:
    """All bodies of a topic in the order in which they were stored."""
    with mq.open(directory, create=False) as broker:
        messages: list[mq.MessageExt] = []
        for queue in broker.topic(topic).queues:
            queue_offset = queue.min_offset
            while queue_offset < queue.max_offset:
                result = queue.read(queue_offset, count_max=1000)
                messages += result.messages
                queue_offset = result.next_offset
        return [message.body for message in sorted(messages, key=lambda message: message.log_offset)]


def test_a_message_carries_what_it_was_given(run: Run) -> None:
    sent = run(
        "send",
        "orders",
        "order 1",
        "--tags",
        "paid",
        "--keys",
        "1001",
        "--keys",
        "c7",
        "--property",
        "region=EU",
        "--property",
        "note=a=b",
        "--json",
    )  # fmt: skip  One option a line would take a screen.
    assert sent.status == 0
    [facts] = sent.objects
    assert facts["status"] == "SEND_OK"
    [message] = run("show", facts["msg_id"], "--json").objects
    assert message["body"] == "order 1"
    assert message["tags"] == "paid"
    assert message["keys"] == ["1001", "c7"]
    assert message["properties"]["region"] == "EU"
    assert message["properties"]["note"] == "a=b"
    assert message["queue_offset"] == facts["queue_offset"]
    assert message["offset_msg_id"] == facts["offset_msg_id"]


def test_standard_input_is_the_body_byte_for_byte(run: Run, directory: Path) -> None:
    body = bytes(range(256)) + b"\r\n\n"
    assert run("send", "orders", stdin=body).status == 0
    assert bodies(directory, "orders") == [body]


def test_an_empty_body_is_wrong_usage(run: Run, directory: Path) -> None:
    assert run("send", "orders").status == 2
    assert run("send", "orders", "").status == 2


def test_sync_comes_back_when_it_is_on_disk(run: Run, directory: Path) -> None:
    [facts] = run("send", "orders", "order 1", "--sync", "--json").objects
    assert facts["status"] == "SEND_OK"
    assert bodies(directory, "orders") == [b"order 1"]


def test_a_shard_key_keeps_to_one_queue(run: Run) -> None:
    places = [run("send", "orders", f"{n}", "--shard-key", "c7", "--json").objects[0] for n in range(5)]
    assert len({place["queue_id"] for place in places}) == 1
    assert [place["queue_offset"] for place in places] == [0, 1, 2, 3, 4]


def test_every_line_is_a_message_and_empty_ones_are_left_out(run: Run, directory: Path) -> None:
    answer = run("send", "orders", "--lines", "--json", stdin=b"one\n\ntwo\r\n\n\xff\xfe three")
    assert answer.status == 0
    [facts] = answer.objects
    assert (facts["sent"], facts["empty_lines"]) == (3, 2)
    assert bodies(directory, "orders") == [b"one", b"two\r", b"\xff\xfe three"]


def test_many_lines_arrive_once_and_in_order(run: Run, directory: Path) -> None:
    lines = [f"line {n} {'x' * (n % 300)}".encode() for n in range(20_000)]
    answer = run("send", "orders", "--lines", stdin=b"\n".join(lines) + b"\n")
    assert answer.out.startswith("20,000 messages sent")
    assert bodies(directory, "orders") == lines


def test_a_line_too_long_stops_there_and_says_which(run: Run, directory: Path) -> None:
    answer = run("send", "orders", "--lines", stdin=b"good\nfine\n" + b"x" * (5 << 20) + b"\nnever\n")
    assert answer.status == 2
    assert "line 3" in answer.err
    assert bodies(directory, "orders") == [b"good", b"fine"]


def test_a_line_is_sent_as_soon_as_it_has_arrived(start: Start, directory: Path, run: Run) -> None:
    assert run("create", "orders").status == 0
    sender = start("send", "orders", "--lines", stdin=subprocess.PIPE)
    assert sender.stdin is not None
    with mq.open(directory) as broker:
        queues = broker.topic("orders").queues
        sender.stdin.write(b"first\n")
        sender.stdin.flush()
        deadline = time.monotonic() + 60
        while not sum(queue.max_offset for queue in queues):
            assert time.monotonic() < deadline
            assert sender.poll() is None
            queues[0].read(queues[0].max_offset, wait=0.05)
        sender.stdin.close()
        assert sender.wait(60) == 0


def arriving(chunks: list[bytes], size_max: int) -> Iterator[list[bytes]]:
    """What `arriving_lines` makes of a pipe that is written chunk by chunk."""
    reading, writing = os.pipe()
    for chunk in chunks:
        os.write(writing, chunk)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        yield from arriving_lines(stream, size_max)


def test_lines_are_whole_wherever_a_chunk_ends() -> None:
    text = b"alpha\nbeta\n\ngamma"
    for cut in range(len(text) + 1):
        found = list(itertools.chain.from_iterable(arriving([text[:cut], text[cut:]], 1 << 20)))
        assert found == [b"alpha", b"beta", b"", b"gamma"]


def test_a_batch_is_bounded_in_count_and_size(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = [b"x" * (n % 2000) for n in range(5000)]
    file.write_bytes(b"\n".join(lines))
    with file.open("rb") as stream:
        batches = list(line_batches(stream, 100_000))
    assert list(itertools.chain.from_iterable(batches)) == lines
    assert max(map(len, batches)) <= BATCH_COUNT_MAX
    assert max(sum(map(len, batch)) for batch in batches) <= 100_000
