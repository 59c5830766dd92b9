"""A deleted group is forgotten for good: over deaths, reopenings, and what other processes have in memory."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker import leader
from mq.broker.local import LocalBroker
from tests.support import assigned
from tests.support.eventually import eventually
from tests.support.insides import filters_of, groups_of
from tests.support.joining import QUEUES, client_ids, join
from tests.support.store.peer import Peer
from tests.support.store.small_store import crash_of, fill, log_files, open_small, send

GROUP = "billing"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
COUNT = 8


@pytest.fixture
def broker(directory: Path) -> Iterator[LocalBroker]:
    """With messages in four queues, of which the group has consumed one each."""
    with open_small(directory) as broker:
        broker.create_topic("orders", 4)
        fill(broker, "orders", COUNT, 4)
        consumed(broker)
        yield broker


def consumed(broker: mq.Broker) -> None:
    for queue in QUEUES:
        assigned.commit(broker, GROUP, queue, 1)


def saved(directory: Path) -> Any:
    return json.loads((directory / "config" / "consumerOffset.json").read_bytes())


def group_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "mq" / "groups").iterdir())


def is_fresh(broker: mq.Broker) -> bool:
    """Handle a key; whether the group had not before."""
    with mq.Once(broker, GROUP)("key") as fresh:
        return fresh


def send_back(broker: mq.Broker, **given: int) -> None:
    (message,) = broker.topic("orders").queues[0].read(0, count_max=1).messages
    assert assigned.send_back(broker, message, GROUP, **given)


def test_nothing_of_it_is_in_the_directory_after_the_last_close(directory: Path, broker: LocalBroker) -> None:
    assigned.commit(broker, "audit", QUEUES[0], 1)
    groups_of(broker).save()
    send_back(broker, delay_level=1)
    broker.group(GROUP).delete()
    table = saved(directory)
    assert table["offsetTable"] == {"orders@audit": {"0": 1}}
    assert table["groupTopicMap"] == {"audit": ["orders"]}
    broker.close()
    assert group_files(directory) == ["audit"]
    with open_small(directory) as after:
        assert after.groups() == ["audit"]
        assert after.topics() == ["orders"]


def test_it_does_not_come_back_when_the_machine_crashes(
    directory: Path, broker: LocalBroker, tmp_path: Path
) -> None:
    groups_of(broker).save()
    broker.group(GROUP).delete()
    with open_small(crash_of(broker, tmp_path / "copy")) as after:
        assert after.groups() == []
    broker.close()
    shutil.rmtree(directory / "mq")
    with open_small(directory) as after:
        assert after.groups() == []


def test_a_process_that_had_members_knows_of_it(
    directory: Path, broker: LocalBroker, peers: Callable[..., Peer]
) -> None:
    peer = peers("peer", 0, 1)
    peer.do("assert claims[0].commit(2)")
    with pytest.raises(mq.NotPermitted, match=rf"peer \(pid {peer.pid} on .+\)"):
        broker.group(GROUP).delete()
    assert peer.ask("claims[0].committed()") == 2
    peer.do("member.leave()")
    broker.group(GROUP).delete()
    assert peer.ask("broker.groups()") == []
    assert peer.ask("broker.group('billing').offsets('orders')") == {}
    peer.do("broker.consumer_groups.assigned('billing').claim(queues[0]).commit(1)")
    assert broker.group(GROUP).offsets("orders") == {QUEUES[0]: 1}


def test_dead_members_do_not_keep_it(
    broker: LocalBroker, peers: Callable[..., Peer], caplog: pytest.LogCaptureFixture
) -> None:
    peers("peer", 0).kill()
    with caplog.at_level(logging.INFO, "mq.groups"):
        broker.group(GROUP).delete()
    assert broker.groups() == []
    assert caplog.messages[-1] == f"group {GROUP}: deleted"


def test_a_member_that_joins_meanwhile_has_all_its_offsets(broker: LocalBroker) -> None:
    """Either it came first, and the group stays, or it is the first of a new one."""
    broker.group(GROUP).delete()  # The one of the fixture: the thread may begin late.
    is_over = threading.Event()

    def delete() -> None:
        while not is_over.wait(0.0005):  # Else it has the lock nearly all of the time.
            with suppress(mq.NotPermitted):
                broker.group(GROUP).delete()

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        for _ in range(200):
            membership = join(broker)
            claim = membership.claim(QUEUES[0])
            assert claim is not None
            assert claim.committed() == 0
            assert claim.commit(2)
            assert len(broker.group(GROUP).offsets("orders")) == len(QUEUES)
            assert client_ids(broker) == ["here"]
            membership.leave()
            eventually(lambda: not broker.groups(), lambda: "the group is not deleted")
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "step",
    [
        "mq.broker.broadcast.groups.BroadcastGroups.forget",
        "mq.broker.once.handled_key_files.OnceFiles.forget",
        "mq.broker.groups.groups.Groups.forget",
        "mq.store.shared.group_file.GroupFile.forget",
        "mq.broker.groups.offsets.Offsets.write",
        "mq.broker.topics.registry.Catalog.delete",
        "mq.broker.topics.registry.Catalog._save",
    ],
)
@pytest.mark.parametrize("others_live", [True, False])
def test_a_deletion_that_a_death_cut_short_is_done_again(
    directory: Path, broker: LocalBroker, step: str, others_live: bool
) -> None:
    send_back(broker, delay_level=1)
    (directory / "mq" / "broadcast" / GROUP / "a").mkdir(parents=True)
    assert is_fresh(broker)
    groups_of(broker).save()
    if not others_live:
        broker.close()
    peer = Peer(directory)
    module, owner, name = step.rsplit(".", 2)
    peer.do(
        f"import signal; from {module} import {owner}\n"
        f"usual, calls = {owner}.{name}, []\n"
        "def dies(*given):\n"
        "    if calls or 'GroupFile' not in usual.__qualname__:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    calls.append(usual(*given))\n"
        f"{owner}.{name} = dies"
    )
    with pytest.raises(EOFError):
        peer.do(f"broker.group({GROUP!r}).delete()")
    peer.kill()
    with open_small(directory) as after:
        assert set(after.group(GROUP).offsets("orders").items()) <= {(queue, 1) for queue in QUEUES}
        after.group(GROUP).delete()
        assert after.groups() == []
        assert after.topics() == ["orders"]
        assert is_fresh(after)
    broker.close()
    with open_small(directory) as after:
        assert after.groups() == []


def test_its_handled_keys_are_handled_again(broker: LocalBroker) -> None:
    with Peer(broker.path) as peer:
        peer.do(f"once = mq.Once(broker, {GROUP!r}, size=50)\nwith once('key') as is_fresh: assert is_fresh")
        assert not is_fresh(broker)
        broker.group(GROUP).delete()
        peer.do("with once('key') as is_fresh: assert is_fresh")
        assert not is_fresh(broker)


def test_its_filters_go(tmp_path: Path) -> None:
    with mq.open(tmp_path / "store", enable_consume_queue_ext=True) as broker:
        broker.create_topic("orders", 1)
        for group in (GROUP, "audit"):
            filters_of(broker).marks(group, "orders", "a > 1")
        version = filters_of(broker).version()
        broker.group(GROUP).delete()
        assert filters_of(broker).version() > version
        text = (broker.path / "config" / "consumerFilter.json").read_text()
        assert list(json.loads(text)["filterDataByTopic"]["orders"]["groupFilterData"]) == ["audit"]


def test_a_broadcasting_consumer_that_is_about_to_join_keeps_it(broker: LocalBroker) -> None:
    offsets = broker.consumer_groups.broadcast_offsets(GROUP, "box", None)
    with pytest.raises(mq.NotPermitted, match="box"):
        broker.group(GROUP).delete()
    assert broker.group(GROUP).offsets("orders")
    offsets.close()
    broker.group(GROUP).delete()
    assert not (broker.path / "mq" / "broadcast" / GROUP).exists()


def test_its_resets_of_broadcasting_consumers_go(broker: LocalBroker) -> None:
    broker.consumer_groups.broadcast_offsets(GROUP, "box", None).close()
    for _ in range(2):
        broker.group(GROUP).reset("orders", to="latest")
    assert len(list((broker.path / "mq" / "broadcast").glob(f"{GROUP}.reset*"))) == 2
    broker.group(GROUP).delete()
    assert list((broker.path / "mq" / "broadcast").iterdir()) == []


def test_retention_names_it_no_more(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RETENTION", "RETENTION_INTERVAL"):
        monkeypatch.setattr(leader, name, 3600.0)
    with open_small(directory) as broker:
        broker.create_topic("orders", 4)
        fill(broker, "orders", COUNT, 4)
        send_back(broker, delay_level=10)
        send_back(broker, delay_level=1)
        eventually(lambda: broker.topic(RETRY).queues[0].max_offset > 0, lambda: "it does not come")
        consumed(broker)
        fill(broker, "orders", 100, 4)
        broker.flush()
        for file in log_files(directory):
            os.utime(file, (0, 0))
        topics = {each.topic for each in broker.retention.expiring().unread}
        assert topics == {"orders", RETRY, "SCHEDULE_TOPIC_XXXX"}
        broker.group(GROUP).delete()
        found = broker.retention.expiring()
        assert found.file_count
        assert (found.unread, found.waiting, list(broker.delayed())) == ((), (), [])


def test_what_failed_is_dropped_when_it_is_due(
    directory: Path, delivered: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small(directory, message_delay_level="1s") as broker:
        broker.create_topic("orders", 4)
        fill(broker, "orders", COUNT, 4)
        consumed(broker)
        send_back(broker, delay_level=1)
        broker.group(GROUP).delete()
        delivered.set()
        eventually(lambda: f"there is no topic {RETRY}" in caplog.text, lambda: "it is not dropped")
        assert broker.topics() == ["orders"]


def test_what_failed_comes_to_a_group_whose_retry_topic_alone_was_deleted(
    directory: Path, delivered: threading.Event
) -> None:
    with open_small(directory, message_delay_level="1s") as broker:
        broker.create_topic("orders", 4)
        fill(broker, "orders", COUNT, 4)
        consumed(broker)
        send_back(broker, delay_level=1)
        broker.delete_topic(RETRY)
        assert broker.group(GROUP).retrying() == {"orders": 1}
        delivered.set()
        eventually(lambda: RETRY in broker.topics(), lambda: "it does not come")
        eventually(lambda: broker.topic(RETRY).queues[0].max_offset > 0, lambda: "it does not come")


def test_a_redrive_of_dead_letters_that_stayed(broker: LocalBroker) -> None:
    send_back(broker, max_reconsume_times=0)
    broker.group(GROUP).delete()
    assert broker.redrive(GROUP, all_groups=True).sent == 1
    assert broker.redrive(GROUP, all_groups=True).sent == 0


def test_a_read_only_process_may_not_delete(directory: Path, broker: LocalBroker) -> None:
    with open_small(directory, read_only=True) as reader, pytest.raises(mq.NotPermitted, match="read_only"):
        reader.group(GROUP).delete()


def test_a_topic_shrinks_once_the_group_is_gone_that_had_not_consumed_it(broker: LocalBroker) -> None:
    send(broker, "orders", 3, b"unread")
    broker.create_topic("orders", 2, shrink=True)
    assert len(broker.topic("orders").queues) == 4
    assigned.commit(broker, "audit", QUEUES[2], broker.max_offset(QUEUES[2]))
    assigned.commit(broker, "audit", QUEUES[3], broker.max_offset(QUEUES[3]))
    broker.group(GROUP).delete()
    broker.create_topic("orders", 2, shrink=True)
    assert len(broker.topic("orders").queues) == 2
