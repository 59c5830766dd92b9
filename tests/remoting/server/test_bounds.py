"""What clients leave behind, and what they make a server hold: none of it grows without end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import mq
from mq.broker.groups import groups
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup, Subscription
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.groups import HeartBeat
from mq.remoting.codec.requests.offsets import UpdateConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode
from tests.support.eventually import eventually
from tests.support.raw_requests import RawClient

GROUP_COUNT = 20


def open_group_files(directory: Path) -> list[Path]:
    """What this process has open of the files of groups."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # It was closed just now.
            found.append(each.readlink())
    return [each for each in found if each.parent == directory / "mq" / "groups"]


def beat(client: RawClient, client_id: str, *named: ConsumerGroup, producers: Sequence[str] = ()) -> int:
    made = tuple(map(ProducerGroup, producers))
    return client.ask(HeartBeat(), to_json(Heartbeat(client_id, made, named))).code


def consumers(group: str, *topics: str) -> ConsumerGroup:
    return ConsumerGroup(group, subscription_data_set=tuple(Subscription(topic, "*") for topic in topics))


@pytest.mark.parametrize("kind", ["commits", "heartbeats"])
def test_groups_that_a_connection_named_cost_no_descriptors_for_ever(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(groups, "UNUSED_MAX", 5)
    with mq.open(directory) as store, serve(store, port=0, namesrv_port=0) as server:
        store.create_topic("orders", 1).send(b"one")
        names = [f"group-{number}" for number in range(GROUP_COUNT)]
        with RawClient(server) as client:
            for name in names:
                if kind == "commits":
                    answer = client.ask(UpdateConsumerOffset(name, "orders", 0, 1))
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
                else:
                    assert beat(client, "one", consumers(name, "orders")) == ResponseCode.SUCCESS
        eventually(
            lambda: not server.connections and len(open_group_files(directory)) <= 5,
            lambda: f"{open_group_files(directory)}",
        )
        if kind == "commits":
            offsets = [store.consumer_groups.offsets(name, "orders") for name in names]
            assert [list(each.values()) for each in offsets] == [[1]] * GROUP_COUNT
        # A member of one of them sees another that comes later, by whichever mapping of the file.
        with RawClient(server) as client:
            assert beat(client, "two", consumers(names[0], "orders")) == ResponseCode.SUCCESS
            assert [each.client_id for each in store.consumer_groups.members(names[0])] == ["two"]
