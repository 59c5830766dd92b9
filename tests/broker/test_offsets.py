"""consumerOffset.json: RocketMQ's bytes, what is left of damaged ones, and what a power cut costs."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mq
from mq.api.group import Subscription
from mq.broker.check import problems
from mq.broker.groups import offsets as groups_offsets
from mq.broker.groups.manual_claims import AssignedClaim
from mq.broker.groups.offsets import Offsets, awaited
from mq.broker.local import LocalBroker
from mq.names import REDRIVE_GROUP
from tests.support import assigned
from tests.support.insides import groups_of
from tests.support.store.small_store import crash_of, open_small, send

QUEUES = [mq.MessageQueue("orders", "mq", queue_id) for queue_id in range(2)]
# As a broker of 5.3 leaves it: tabs, queue ids without quotes, the first entries on the line of their brace.
BROKERS = (
    '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
    '\t"groupTopicMap":{\n\t\t"billing":[\n\t\t\t"%RETRY%billing",\n\t\t\t"orders"\n\t\t]\n\t},\n'
    '\t"offsetTable":{\n\t\t"orders@billing":{0:2,1:1\n\t\t},\n\t\t"%RETRY%billing@billing":{0:0}\n\t}\n}'
)


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is written by what the test does."""
    monkeypatch.setattr("mq.broker.parts.OFFSETS_INTERVAL", 3600.0)


def filled(directory: Path) -> LocalBroker:
    """Five messages in each of two queues."""
    broker = open_small(directory)
    broker.create_topic("orders", 2)
    for number in range(10):
        send(broker, "orders", number % 2, b"%d" % number)
    return broker


def path_of(directory: Path) -> Path:
    return directory / "config" / "consumerOffset.json"


def saved(directory: Path) -> Any:
    return json.loads(path_of(directory).read_bytes())


def offsets(broker: mq.Broker, group: str = "billing") -> list[int | None]:
    return [assigned.committed(broker, group, queue) for queue in QUEUES]


def put(directory: Path, text: str, suffix: str = "") -> None:
    path = path_of(directory)
    path.parent.mkdir(exist_ok=True)
    path.with_name(path.name + suffix).write_text(text)


def test_what_is_committed_is_written_at_the_last_close(directory: Path) -> None:
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 3)
        assigned.commit(broker, "billing", QUEUES[1], 4)
        assigned.commit(broker, "audit", QUEUES[0], 0)
        with open_small(directory):
            pass
        assert not path_of(directory).exists()
    table = saved(directory)
    assert table["offsetTable"] == {"orders@audit": {"0": 0}, "orders@billing": {"0": 3, "1": 4}}
    assert table["groupTopicMap"] == {"audit": ["orders"], "billing": ["orders"]}
    assert set(table["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
    text = path_of(directory).read_text()
    assert "\n\t" in text
    assert '":' in text
    assert not text.endswith("\n")


def test_a_close_without_news_writes_nothing(directory: Path) -> None:
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 3)
    before = path_of(directory).stat()
    with open_small(directory) as broker:
        assert offsets(broker) == [3, None]
    after = path_of(directory).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_what_a_rocketmq_broker_wrote_is_read_and_kept(directory: Path) -> None:
    filled(directory).close()
    shutil.rmtree(directory / "mq")
    put(directory, BROKERS)
    with open_small(directory) as broker:
        assert broker.groups() == ["billing"]
        assert offsets(broker) == [2, 1]
        broker.create_topic("%RETRY%billing", 1)
        assigned.commit(broker, "billing", QUEUES[0], 5)
    table = saved(directory)
    assert table["offsetTable"] == {"%RETRY%billing@billing": {"0": 0}, "orders@billing": {"0": 5, "1": 1}}
    assert table["dataVersion"]["counter"] == 4


def test_unknown_members_and_untouched_groups_stay(directory: Path) -> None:
    filled(directory).close()
    put(
        directory,
        '{"offsetTable": {"orders@audit": {"1": 4}}, "dataVersion": {"counter": 7},'
        ' "lmqOffsetTable": {"a": 1}}',
    )
    with open_small(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 3)
    table = saved(directory)
    assert table["lmqOffsetTable"] == {"a": 1}
    assert table["offsetTable"] == {"orders@audit": {"1": 4}, "orders@billing": {"0": 3}}
    assert table["dataVersion"]["counter"] == 8


def test_after_a_crash_of_the_machine_the_file_is_what_counts(directory: Path, tmp_path: Path) -> None:
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 3)
        groups_of(broker).save()
        assigned.commit(broker, "billing", QUEUES[0], 5)
        copy = crash_of(broker, tmp_path / "copy")
    with open_small(copy) as after:
        assert offsets(after) == [3, None]


def test_the_group_file_of_another_boot_does_not_count(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 3)
    put(directory, '{"offsetTable": {"orders@billing": {"0": 1}}}')
    with open_small(directory) as broker:
        assert offsets(broker) == [3, None]  # The same boot.
    put(directory, '{"offsetTable": {"orders@billing": {"0": 1}}}')
    for module in ("mq.store.shared.group_file", "mq.store.shared.control"):
        monkeypatch.setattr(f"{module}.boot_id", lambda: b"another boot one")
    with open_small(directory) as broker:
        assert offsets(broker) == [1, None]


def test_no_offset_lies_beyond_the_messages_that_a_crash_took(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else what is sent next, at the same offsets, would count as consumed."""
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 5)
        assigned.commit(broker, "billing", QUEUES[1], 2)
        groups_of(broker).save()
        copy = crash_of(broker, tmp_path / "copy")
    for file in (copy / "commitlog").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    with caplog.at_level(logging.WARNING, "mq"), open_small(copy) as after:
        assert after.max_offset(QUEUES[0]) == 0
        assert offsets(after) == [0, 0]
        send(after, "orders", 0, b"new")
        assert after.group("billing").lag("orders") == 1
    assert "beyond the end" in caplog.text
    assert list(problems(copy)) == []


CORRUPT = [
    "{",
    "[]",
    "nonsense",
    '{"offsetTable": 5}',
    '{"offsetTable": {"orders@billing": [1]}}',
    "\x00" * 500,
]


@pytest.mark.parametrize("text", CORRUPT, ids=range(len(CORRUPT)))
def test_a_corrupt_file_is_reported_and_its_predecessor_used(
    directory: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(directory).close()
    shutil.rmtree(directory / "mq")
    put(directory, text)
    put(directory, '{"offsetTable": {"orders@billing": {"0": 2}}}', ".bak")
    with caplog.at_level(logging.WARNING, "mq"), open_small(directory) as broker:
        assert offsets(broker) == [2, None]
        assert any("consumerOffset.json" in problem for problem in problems(directory))
        assigned.commit(broker, "billing", QUEUES[1], 1)
        assert offsets(broker) == [2, 1]
    assert "its .bak is read instead" in caplog.text
    assert saved(directory)["offsetTable"] == {"orders@billing": {"0": 2, "1": 1}}
    assert list(problems(directory)) == []


@pytest.mark.parametrize("text", CORRUPT, ids=range(len(CORRUPT)))
def test_where_nothing_can_be_read_groups_begin_anew(directory: Path, text: str) -> None:
    filled(directory).close()
    shutil.rmtree(directory / "mq")
    put(directory, text)
    put(directory, text, ".bak")
    with open_small(directory) as broker:
        assert broker.groups() == []
        broker.consumer_groups.join(
            "billing",
            client_id="a",
            model="clustering",
            consume_type="push",
            ordered=False,
            subscriptions=[Subscription("orders")],
        )
        assert offsets(broker) == [0, 0]
    assert saved(directory)["offsetTable"] == {"orders@billing": {"0": 0, "1": 0}}


def test_a_corrupt_file_costs_nothing_as_long_as_the_machine_runs(directory: Path) -> None:
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 3)
    put(directory, "{")
    put(directory, "{", ".bak")
    with open_small(directory) as broker:
        assert offsets(broker) == [3, None]
    assert saved(directory)["offsetTable"] == {"orders@billing": {"0": 3}}


def test_entries_that_make_no_sense_are_left_out_and_named(directory: Path) -> None:
    filled(directory).close()
    shutil.rmtree(directory / "mq")
    entries = {
        "orders@billing": {"0": 2, "one": 1, "70000": 1, "1": "2"},
        "orders": {"0": 1},
        "@": {"0": True},
        "orders@audit": {"0": -1, "1": 1 << 60},
    }
    put(directory, json.dumps({"offsetTable": entries}))
    with open_small(directory) as broker:
        assert broker.groups() == ["billing"]
        assert offsets(broker) == [2, None]
        found = [problem for problem in problems(directory) if "is no offset of a queue" in problem]
        assert len(found) == 6


def test_a_deleted_topic_takes_its_offsets_out_of_the_file(directory: Path) -> None:
    with filled(directory) as broker:
        broker.create_topic("events", 1)
        assigned.commit(broker, "billing", QUEUES[0], 3)
        assigned.commit(broker, "billing", mq.MessageQueue("events", "mq", 0), 0)
    with open_small(directory) as broker:
        broker.delete_topic("orders")
        # The group awaits the next topic of the name.
        assert saved(directory)["offsetTable"] == {"events@billing": {"0": 0}, "orders@billing": {}}
        broker.create_topic("orders", 2)
        assert offsets(broker) == [None, None]
    assert saved(directory)["offsetTable"] == {"events@billing": {"0": 0}, "orders@billing": {}}


def test_offsets_of_topics_that_are_gone_go_too(directory: Path) -> None:
    filled(directory).close()
    transactions = {"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 9}}  # RocketMQ's own stay.
    table = {"gone@billing": {"0": 7}, "orders@billing": {"0": 2}, **transactions}
    put(directory, json.dumps({"offsetTable": table}))
    with open_small(directory) as broker:
        assert broker.group("billing").topics() == ["orders"]
        assigned.commit(broker, "billing", QUEUES[1], 1)
    # Whoever deleted the one that is awaited died before it could say so.
    kept = {"orders@billing": {"0": 2, "1": 1}, "gone@billing": {}}
    assert saved(directory)["offsetTable"] == {**kept, **transactions}


def test_verify_lists_what_is_wrong_with_groups(directory: Path) -> None:
    with filled(directory) as broker:
        assigned.commit(broker, "billing", QUEUES[0], 500)
        assigned.commit(broker, "audit", QUEUES[0], 5)
    (found,) = problems(directory)
    assert "group billing: its offset 500 of orders/0 is beyond the end 5" in found
    with (directory / "mq" / "groups" / "audit").open("r+b") as file:
        file.write(b"?")
    found_all = list(problems(directory))
    assert len(found_all) == 2
    assert any("groups/audit: its header is damaged" in problem for problem in found_all)
    with open_small(directory) as broker:
        broker.group("billing").reset("orders", to="latest")
        assigned.commit(broker, "audit", QUEUES[0], 5)
    assert list(problems(directory)) == []


NAMES = st.text("ab%_-", min_size=1, max_size=6)
TABLES = st.dictionaries(
    NAMES,
    st.dictionaries(
        NAMES, st.dictionaries(st.integers(0, 99), st.integers(0, 1 << 50), min_size=1), min_size=1
    ),
)


@given(table=TABLES)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, table: Any) -> None:
    root = tmp_path_factory.mktemp("store")
    (root / "mq").mkdir()
    written = Offsets(root)
    written.load()
    with written.changing():
        written.write(table)
    assert Offsets(root).load() == table
    assert written.problems() == []


def test_of_topics_that_are_deleted_for_ever_the_newest_are_awaited(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_offsets, "AWAITED_MAX", 3)
    with open_small(directory) as broker:
        for name in ("d", "c", "e", "a", "b"):
            broker.create_topic(name, 1)
            assigned.commit(broker, "billing", mq.MessageQueue(name, "mq", 0), 0)
            broker.delete_topic(name)
        assert list(saved(directory)["offsetTable"]) == ["e@billing", "a@billing", "b@billing"]
        Offsets(directory).await_topic("billing", "c")
    assert list(saved(directory)["offsetTable"]) == ["a@billing", "b@billing", "c@billing"]


def test_groups_of_records_await_no_topic(directory: Path) -> None:
    with open_small(directory) as broker:
        broker.create_topic("orders", 1)
        groups_of(broker).commit(REDRIVE_GROUP, QUEUES[0], 0)
        broker.delete_topic("orders")
    assert saved(directory)["offsetTable"] == {}


def test_what_is_made_of_those_that_are_awaited_changes_nothing_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "mq").mkdir()
    offsets = Offsets(tmp_path)
    offsets.await_topic("billing", "orders")
    awaited(offsets.load()["billing"])["orders"][0] = 5
    assert offsets.load() == {"billing": {"orders": {}}}


@given(text=st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_makes_loading_raise(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("store")
    (root / "config").mkdir()
    path_of(root).write_text(text, errors="replace")
    assert isinstance(Offsets(root).load(), dict)


@pytest.mark.parametrize("call", ["commit", "correct"])
def test_a_reset_before_the_lock_of_a_commit_stands(
    directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Of a queue that nobody owns, as assigned consumers commit: they looked before they had the lock."""
    with filled(directory) as broker:
        claim = broker.consumer_groups.assigned("billing").claim(QUEUES[0])
        assert claim.commit(4)
        looked = AssignedClaim.is_current

        def is_current(one: AssignedClaim) -> bool:
            found = looked(one)
            monkeypatch.setattr(AssignedClaim, "is_current", looked)
            broker.group("billing").reset("orders", to="earliest")
            return found

        monkeypatch.setattr(AssignedClaim, "is_current", is_current)
        assert not getattr(claim, call)(5)
        assert offsets(broker) == [0, 0]
        assert not claim.is_current()
