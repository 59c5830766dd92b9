"""Offsets of broadcasting consumers are of one store and one topic, whatever others of the name have seen."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.broadcast.text_format import parse
from mq.broker.check import problems
from mq.broker.local import LocalBroker
from mq.store.directory.settings import SettingsFile
from tests.support.appending import append_one
from tests.support.eventually import eventually
from tests.support.insides import broadcast_offsets_of, store_of, was_recovered
from tests.support.recording_listener import Heard
from tests.support.store.small_store import contents, open_small, send

GROUP = "caches"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, where earlier versions kept offsets."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


def filled(path: Path, count: int, first: int = 0) -> LocalBroker:
    broker = open_small(path)
    if "orders" not in broker.topics():
        broker.create_topic("orders", 1)
    for number in range(first, first + count):
        send(broker, "orders", 0, b"%d" % number)
    return broker


def consume(broker: mq.Broker, count: int, **options: Any) -> list[bytes]:
    """What a consumer hears until it has been given so many messages, and has waited for more."""
    heard = Heard()
    options = {"client_id": "box", **options}
    with mq.PushConsumer(broker, GROUP, model="broadcasting", threads=1, **options) as consumer:
        consumer.subscribe("orders", listener=heard)
        consumer.start()
        append_one(broker, "orders", 0, mq.Message("orders", b"end"), b"end", 0)
        heard.wait(count + 1)
    assert heard.bodies[count:] == [b"end"]
    return heard.bodies[:count]


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in range(*numbers)]


@pytest.mark.parametrize("kept", ["in the store", "elsewhere"])
def test_offsets_of_another_store_are_none_of_this_ones(tmp_path: Path, kept: str) -> None:
    options = {"offsets_dir": tmp_path / "offsets"} if kept == "elsewhere" else {}
    for name in ("a", "b"):
        with filled(tmp_path / name, 5) as broker:
            assert consume(broker, 5, **options) == bodies(5)
    for name in ("a", "b"):
        with filled(tmp_path / name, 2, first=10) as broker:
            assert consume(broker, 2, **options) == bodies(10, 12)


def test_they_lie_in_the_store_and_the_home_is_left_alone(directory: Path, home: Path) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
        assert broker.groups() == [GROUP]
    file = directory / "mq" / "broadcast" / GROUP / "box" / "offsets.json"
    assert parse(file.read_text())["orders"].offsets == {0: 6}
    assert list(home.iterdir()) == []


def test_a_store_of_its_own_in_the_place_of_the_first_begins_anew(directory: Path) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
    shutil.rmtree(directory)
    with filled(directory, 5) as broker:
        assert consume(broker, 5) == bodies(5)


def test_a_copy_of_the_store_goes_on_where_the_store_was(tmp_path: Path) -> None:
    with filled(tmp_path / "a", 5) as broker:
        consume(broker, 5)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with filled(tmp_path / "b", 2, first=10) as broker:
        assert consume(broker, 2) == bodies(10, 12)


@pytest.mark.parametrize(("consume_from", "expected"), [("first", 5), ("last", 5)])
def test_a_topic_made_again_while_the_consumer_is_away(
    directory: Path, consume_from: str, expected: int
) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
        broker.delete_topic("orders")
    with filled(directory, 5) as broker:
        assert consume(broker, expected, consume_from=consume_from) == bodies(expected)


def test_a_broker_that_drops_when_a_topic_was_made_costs_nothing(directory: Path) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
    path = directory / "config" / "topics.json"
    table = json.loads(path.read_text())
    del table["topicConfigTable"]["orders"]["mqBeginLogOffset"]
    path.write_text(json.dumps(table))
    with filled(directory, 2, first=10) as broker:
        assert consume(broker, 2, consume_from="last") == bodies(10, 12)


def test_a_reset_waits_for_a_consumer_that_is_away(directory: Path, tmp_path: Path) -> None:
    elsewhere = {"offsets_dir": tmp_path / "offsets", "client_id": "other"}
    with filled(directory, 5) as broker:
        consume(broker, 5)
        assert consume(broker, 6, **elsewhere)[:5] == bodies(5)
        with pytest.raises(ValueError, match="beyond"):
            broker.consumer_groups.reset(GROUP, {mq.MessageQueue("orders", "mq", 0): 9})
        broker.group(GROUP).reset("orders", to="earliest")
        assert broker.group(GROUP).offsets("orders") == {}
    with open_small(directory) as broker:
        assert consume(broker, 7)[:5] == bodies(5)
        assert consume(broker, 0) == []
        assert consume(broker, 9, **elsewhere)[:5] == bodies(5)
        assert consume(broker, 0, client_id="fresh", consume_from="last") == []


def test_a_reset_is_of_the_topic_that_there_was(directory: Path) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
        broker.group(GROUP).reset("orders", to="latest")
        broker.delete_topic("orders")
    with filled(directory, 8) as broker:
        assert consume(broker, 8) == bodies(8)


def test_a_clustering_group_that_never_broadcast_is_reset_as_ever(directory: Path) -> None:
    with filled(directory, 5) as broker:
        broker.group("billing").reset("orders", to="latest")
        assert list(broker.group("billing").offsets("orders").values()) == [5]
        assert not (directory / "mq" / "broadcast").exists()


def test_a_damaged_reset_is_reported_and_changes_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
        broker.group(GROUP).reset("orders", to="earliest")
    path = directory / "mq" / "broadcast" / f"{GROUP}.reset"
    path.write_text(path.read_text().replace('"0":0', '"0":9'))
    assert any("resets of the group are forgotten" in problem for problem in problems(directory))
    with open_small(directory) as broker, caplog.at_level(logging.WARNING, "mq.groups"):
        assert consume(broker, 0) == []
        assert "resets of group caches are forgotten" in caplog.text
        broker.group(GROUP).reset("orders", to="earliest")


def test_damaged_offsets_are_reported_by_verify(directory: Path) -> None:
    with filled(directory, 5) as broker:
        consume(broker, 5)
    file = directory / "mq" / "broadcast" / GROUP / "box" / "offsets.json"
    assert list(problems(directory)) == []
    file.write_bytes(b"\0" * 100)
    assert [problem for problem in problems(directory) if str(file) in problem]
    file.unlink()
    file.with_name("offsets.json.bak").unlink(missing_ok=True)


def test_after_lost_messages_what_is_sent_later_is_not_skipped(directory: Path, tmp_path: Path) -> None:
    """A power cut takes messages that were not flushed; offsets that were on disk come down with them."""
    with filled(directory, 3) as broker:
        pass
    before = tmp_path / "before"
    shutil.copytree(directory, before)
    with filled(directory, 5, first=3) as broker:
        consume(broker, 8)
        broker.group(GROUP).reset("orders", to="latest")
    shutil.copytree(directory / "mq" / "broadcast", before / "mq" / "broadcast")
    (before / "mq" / "control").unlink()
    with filled(before, 9, first=100) as broker:
        assert was_recovered(broker)
        assert [body for _, body in contents(broker)["orders", 0][2]] == bodies(3) + bodies(100, 109)
        assert consume(broker, 9) == bodies(100, 109)


def test_offsets_beyond_the_end_begin_where_consume_from_says(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(directory, 3):
        pass
    before = tmp_path / "before"
    shutil.copytree(directory, before)
    options = {"offsets_dir": tmp_path / "offsets"}
    with filled(directory, 5, first=3) as broker:
        consume(broker, 8, **options)
        first_id = store_of(broker).settings.store_id
    with open_small(before) as broker:
        (tmp_path / "offsets" / first_id).rename(tmp_path / "offsets" / store_of(broker).settings.store_id)
        assert consume(broker, 3, **options) == bodies(3)
    assert "are beyond the end" in caplog.text


def test_a_copy_of_the_store_has_offsets_of_its_own(directory: Path, tmp_path: Path) -> None:
    """From there on the two have messages of their own, under the same queue offsets."""
    with filled(directory, 3):
        pass
    shutil.copytree(directory, tmp_path / "copy")
    options = {"offsets_dir": tmp_path / "offsets"}
    with filled(directory, 5, first=3) as broker:
        consume(broker, 8, **options)
    with filled(tmp_path / "copy", 7, first=100) as broker:
        assert consume(broker, 10, **options) == bodies(3) + bodies(100, 107)


def test_offsets_are_not_saved_into_a_directory_that_took_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.client.engine.claimed_queues.SAVE_SECONDS", 3600.0)
    broker = filled(tmp_path / "a", 5)
    heard = Heard()
    consumer = mq.PushConsumer(broker, GROUP, model="broadcasting", client_id="box")
    consumer.subscribe("orders", listener=heard)
    consumer.start()
    heard.wait(5)
    (tmp_path / "a").rename(tmp_path / "moved")
    with filled(tmp_path / "a", 5) as fresh:
        other = fresh.consumer_groups.broadcast_offsets(GROUP, "box", None)
        other.close()
        with pytest.raises((mq.MQError, OSError)):
            broadcast_offsets_of(consumer).save()
        assert not (tmp_path / "a/mq/broadcast" / GROUP / "box" / "offsets.json").exists()
        consumer.close()
        with pytest.raises(mq.StoreCorrupted, match="was moved"):
            broker.close()
        assert consume(fresh, 5) == bodies(5)


# What earlier versions left in the user's home.


def old_file(home: Path, offsets: dict[str, dict[int, int]], client_id: str = "box") -> Path:
    file = home / ".rocketmq_offsets" / client_id / GROUP / "offsets.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = ",".join(
        f'{{"brokerName":"mq","queueId":{queue_id},"topic":"{topic}"}}:{offset}'
        for topic, ids in offsets.items()
        for queue_id, offset in ids.items()
    )
    file.write_text('{"offsetTable":{' + entries + "}}")
    return file


def as_before(path: Path) -> None:
    """A store as an earlier version has left it: without an identity."""
    for file in (path / "mq").glob("settings.*"):
        file.unlink()


def test_offsets_in_the_home_are_taken_over_once(tmp_path: Path, home: Path) -> None:
    for name in ("a", "b"):
        filled(tmp_path / name, 5).close()
        as_before(tmp_path / name)
    old_file(home, {"orders": {0: 3}, "gone": {0: 9}})
    with open_small(tmp_path / "a") as broker:
        assert SettingsFile(tmp_path / "a").read().had_messages
        assert consume(broker, 2) == bodies(3, 5)
        assert consume(broker, 0) == []
    with open_small(tmp_path / "b") as broker:  # It can be of one store only.
        assert consume(broker, 5) == bodies(5)


def test_a_fresh_store_takes_nothing_over(directory: Path, home: Path) -> None:
    old_file(home, {"orders": {0: 3}})
    with filled(directory, 5) as broker:
        assert consume(broker, 5) == bodies(5)
        assert not SettingsFile(directory).read().had_messages


@pytest.mark.parametrize(
    ("offsets", "age_s"),
    [({"orders": {0: 6}}, 0), ({"orders": {0: -1}}, 0), ({"orders": {0: 3}}, 100), ({"other": {0: 3}}, 0)],
    ids=["beyond-the-end", "nonsense", "older-than-the-messages", "another-topic"],
)
def test_offsets_that_cannot_be_of_this_store_are_not_taken_over(
    directory: Path, home: Path, offsets: dict[str, dict[int, int]], age_s: int
) -> None:
    filled(directory, 5).close()
    as_before(directory)
    file = old_file(home, offsets)
    written = file.stat().st_mtime - age_s
    os.utime(file, (written, written))
    with open_small(directory) as broker:
        assert consume(broker, 5) == bodies(5)
    assert [path.name for path in file.parent.iterdir()] == ["offsets.json"]


@pytest.mark.parametrize("text", ["", "{", '{"offsetTable":{}}'])
def test_a_file_in_the_home_that_says_nothing_changes_nothing(directory: Path, home: Path, text: str) -> None:
    filled(directory, 5).close()
    as_before(directory)
    old_file(home, {}).write_text(text)
    with open_small(directory) as broker:
        assert consume(broker, 5) == bodies(5)


def test_resets_of_single_queues_are_all_applied_and_each_once(directory: Path) -> None:
    queues = [mq.MessageQueue("orders", "mq", queue_id) for queue_id in range(2)]

    def heard(broker: LocalBroker, *ends: bytes) -> list[bytes]:
        found = Heard()
        with mq.PushConsumer(broker, GROUP, model="broadcasting", threads=1, client_id="box") as consumer:
            consumer.subscribe("orders", listener=found)
            consumer.start()
            for queue_id, end in enumerate(ends):
                send(broker, "orders", queue_id, end)
            eventually(lambda: {*ends} <= {*found.bodies}, lambda: found.bodies)
        return sorted(found.bodies)

    with open_small(directory) as broker:
        broker.create_topic("orders", 2)
        assert heard(broker, b"a0", b"a1") == [b"a0", b"a1"]
        for queue in queues:
            broker.consumer_groups.reset(GROUP, {queue: 0})
        assert heard(broker, b"b0", b"b1") == [b"a0", b"a1", b"b0", b"b1"]
        broker.consumer_groups.reset(GROUP, {queues[1]: 1})
        assert heard(broker, b"c0", b"c1") == [b"b1", b"c0", b"c1"]
    assert [*problems(directory)] == []
