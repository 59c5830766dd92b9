"""Broadcasting: every consumer gets everything, keeps its own offsets, and loses what fails.

Here with the broker in memory; tests/broker/test_broadcast_groups.py has what is particular to a directory.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import xxhash
from hypothesis import given

import mq
from mq.api.results import MessageQueue
from mq.broker.broadcast.text_format import TopicOffsets, parse, parse_of_client, write_out
from mq.store.directory.config_file import write_config
from tests.support.memory.broker import MemoryBroker
from tests.support.recording_listener import Heard, consuming, dead_letters, eventually, send


def make(queues: int = 2) -> MemoryBroker:
    broker = MemoryBroker()
    broker.create_topic("orders", queues)
    return broker


def broadcasting(path: Path, **options: Any) -> dict[str, Any]:
    return {"model": "broadcasting", "offsets_dir": path, **options}


def file_of(path: Path, client_id: str) -> Path:
    return path / "memory-0" / "g" / client_id / "offsets.json"  # of a group that was never deleted


def offsets_in(file: Path) -> dict[int, int]:
    return parse(file.read_text())["orders"].offsets


def test_every_consumer_gets_every_message(tmp_path: Path) -> None:
    broker = make()
    first, second = Heard(), Heard()
    with (
        consuming(broker, first, **broadcasting(tmp_path)) as one,
        consuming(broker, second, **broadcasting(tmp_path)) as other,
    ):
        send(broker, "a", queue_id=0)
        send(broker, "b", queue_id=1)
        first.wait(2)
        second.wait(2)
        assert one.assignment() == other.assignment()
        assert len(one.assignment()) == 2
        assert one.client_id != other.client_id
    assert sorted(first.bodies) == sorted(second.bodies) == [b"a", b"b"]


def test_a_consumer_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    broker = make()
    for body in ("a", "b"):
        heard = Heard()
        with consuming(broker, heard, **broadcasting(tmp_path)) as consumer:
            send(broker, body)
            heard.wait(1)
            client_id = consumer.client_id
        assert heard.bodies == [body.encode()]
    assert client_id is not None
    assert client_id.endswith("@DEFAULT")
    file = file_of(tmp_path, client_id)
    assert offsets_in(file) == {0: 2, 1: 0}
    assert file.with_name("offsets.json.bak").exists()


def test_offsets_are_saved_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.engine.claimed_queues.SAVE_SECONDS", 0.02)
    broker = make(1)
    heard = Heard()
    with consuming(broker, heard, **broadcasting(tmp_path, client_id="box")):
        send(broker, "a", "b")
        heard.wait(2)
        file = file_of(tmp_path, "box")
        eventually(lambda: file.exists() and offsets_in(file) == {0: 2})


def test_a_client_id_is_free_once_its_offsets_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a close writes them that has lost patience, and its leader looks meanwhile."""
    write, taken = write_config, list[bool]()
    is_closing, is_over = threading.Event(), threading.Event()

    def slow(path: Path, text: str) -> None:
        if is_closing.is_set():
            time.sleep(1.5)  # The leader looks every second.
            with path.with_name("lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    taken.append(False)
                except BlockingIOError:
                    taken.append(True)
        write(path, text)

    monkeypatch.setattr("mq.broker.broadcast.offsets.write_config", slow)
    broker, heard = make(), Heard(lambda message: message.body == b"hangs" and is_over.wait(60))
    consumer = mq.PushConsumer(broker, "g", threads=2, **broadcasting(tmp_path))
    consumer.subscribe("orders", listener=heard)
    consumer.start()
    send(broker, "a", queue_id=0)
    heard.wait(1)
    send(broker, "hangs", queue_id=1)
    heard.wait(2)
    is_closing.set()
    consumer.close(timeout=0)
    is_over.set()
    assert taken == [True]


def test_a_client_id_is_one_consumers_at_a_time(tmp_path: Path) -> None:
    broker = make()
    options = broadcasting(tmp_path, client_id="box")
    with consuming(broker, Heard(), **options):
        other = mq.PushConsumer(broker, "g", **options)
        other.subscribe("orders", listener=print)
        with pytest.raises(mq.GroupInvalid, match="'box' is that of another live consumer"):
            other.start()
    with consuming(broker, Heard(), **options) as again:
        assert again.client_id == "box"


@pytest.mark.parametrize(("consume_from", "expected"), [("earliest", [b"old", b"new"]), ("latest", [b"new"])])
def test_it_begins_where_it_is_told_to(tmp_path: Path, consume_from: str, expected: list[bytes]) -> None:
    broker = make(1)
    send(broker, "old")
    heard = Heard()
    with consuming(broker, heard, **broadcasting(tmp_path, consume_from=consume_from, threads=1)):
        send(broker, "new")
        heard.wait(len(expected))
    assert heard.bodies == expected


def test_what_fails_is_lost_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = make(1)
    send(broker, "bad", "good")

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad":
            raise ValueError("no")

    heard = Heard(act)
    with consuming(broker, heard, **broadcasting(tmp_path, threads=1)) as consumer:
        heard.wait(2)
        assert consumer.client_id is not None
        client_id = consumer.client_id
    assert heard.bodies == [b"bad", b"good"]
    assert dead_letters(broker) == []
    assert "%RETRY%g" not in broker.topics()
    assert "is lost: a broadcasting group has no retry topic" in caplog.text
    assert offsets_in(file_of(tmp_path, client_id)) == {0: 2}


def test_in_order_a_failure_blocks_this_consumers_queue_and_is_lost_in_the_end(tmp_path: Path) -> None:
    broker = make(1)
    send(broker, "bad", "good")

    def act(message: mq.MessageExt) -> None:
        if message.body == b"bad":
            raise mq.Retry(suspend_ms=10)

    heard = Heard(act)
    with consuming(broker, heard, **broadcasting(tmp_path, ordered=True, max_reconsume_times=2)):
        heard.wait(4)
    assert heard.bodies == [b"bad", b"bad", b"bad", b"good"]
    assert dead_letters(broker) == []


def offsets_file(path: Path) -> Path:
    file = file_of(path, "box")
    file.parent.mkdir(parents=True)
    return file


def test_a_broken_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    file = offsets_file(tmp_path)
    broker = make(1)
    text = write_out({"orders": TopicOffsets(broker.made_at("orders"), {0: 1})})
    file.write_text(text.replace(":1}", ":2}"))  # which the checksum tells
    file.with_name("offsets.json.bak").write_text(text)
    send(broker, "a", "b")
    heard = Heard()
    with consuming(broker, heard, **broadcasting(tmp_path, client_id="box")):
        heard.wait(1)
    assert heard.bodies == [b"b"]


def test_with_both_files_broken_it_does_not_start_and_overwrites_nothing(tmp_path: Path) -> None:
    file = offsets_file(tmp_path)
    file.write_text("{")
    file.with_name("offsets.json.bak").write_text("")
    consumer = mq.PushConsumer(make(1), "g", model="broadcasting", offsets_dir=tmp_path, client_id="box")
    consumer.subscribe("orders", listener=print)
    with pytest.raises(mq.StoreCorrupted, match="remove the files"):
        consumer.start()
    consumer.close()
    assert file.read_text() == "{"


def test_clustering_and_broadcasting_do_not_mix(tmp_path: Path) -> None:
    broker = make()
    with consuming(broker, Heard()):
        other = mq.PushConsumer(broker, "g", model="broadcasting", offsets_dir=tmp_path)
        other.subscribe("orders", listener=print)
        with pytest.raises(mq.GroupInvalid):
            other.start()


topics = st.dictionaries(
    st.text(min_size=1, alphabet="abc%_-"),
    st.builds(
        TopicOffsets,
        st.none() | st.integers(0, 1 << 62),
        st.dictionaries(st.integers(0, 65_535), st.integers(0, (1 << 56) - 1)),
        st.text("xy"),
    ),
)


@given(topics)
def test_an_offsets_file_says_what_was_written(offsets: dict[str, TopicOffsets]) -> None:
    assert parse(write_out(offsets)) == offsets


@given(topics, st.data())
def test_a_changed_byte_is_noticed(offsets: dict[str, TopicOffsets], data: st.DataObject) -> None:
    text = write_out(offsets)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from('0189x"{}')) + text[place + 1 :]
    try:
        assert parse(changed) == offsets
    except ValueError:
        assert changed != text


@pytest.mark.parametrize(
    "topic",
    [
        None,
        [],
        {},
        {"made_at": -1, "offsets": {}, "reset": ""},
        {"made_at": 0, "offsets": {"0": -1}, "reset": ""},
        {"made_at": 0, "offsets": {"0": True}, "reset": ""},
        {"made_at": 0, "offsets": {"a": 1}, "reset": ""},
        {"made_at": 0, "offsets": {"70000": 1}, "reset": ""},
        {"made_at": 0, "offsets": {"0": 1 << 56}, "reset": ""},
        {"made_at": 0, "offsets": {}, "reset": 1},
        {"made_at": 0, "offsets": {}, "reset": "", "more": 1},
    ],
)
def test_what_no_topic_can_have_is_refused(topic: Any) -> None:
    table = json.dumps({"orders": topic}, sort_keys=True, separators=(",", ":"))
    text = f'{{"checksum":"{xxhash.xxh64_hexdigest(table.encode())}","topics":{table}}}'
    with pytest.raises(ValueError):  # noqa: PT011 - the parser of JSON has its own words
        parse(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "17", '{"topics":{}}', "[" * 100_000])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser of JSON has its own words
        parse(text)


def test_what_rocketmq_writes_is_read() -> None:
    text = """{
        "offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}:250,{
                "brokerName":"broker-a",
                "queueId":2,
                "topic":"TopicTest"
            }:0
        }
    }"""
    assert parse_of_client(text) == {
        MessageQueue("TopicTest", "broker-a", 3): 250,
        MessageQueue("TopicTest", "broker-a", 2): 0,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"offsetTable":{',
        '{"offsetTable":{{"brokerName":"a","queueId":1}:5}}',
        '{"offsetTable":{{"brokerName":"a","queueId":"1","topic":"t"}:5}}',
        '{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"t"}:"5"}}',
        '{"offsetTable":{}}}',
        '{"offsetTable":{{bad}:5}}',
    ],
)
def test_what_is_no_file_of_rocketmqs_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser of JSON has its own words
        parse_of_client(text)
