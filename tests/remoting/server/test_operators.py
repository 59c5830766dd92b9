"""What operators ask beside statistics, over a broker of each kind; test_mqadmin.py has their tool ask it."""

from __future__ import annotations

import mq
from mq.remoting.codec.bodies.consuming import QueueOffsets
from mq.remoting.codec.requests.offsets import ResetConsumerOffset
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.raw_requests import ask, body


def started_group(store: mq.Broker, count: int) -> mq.Group:
    """A group that is at the begin of topic orders, which has so many messages in one queue."""
    topic = store.create_topic("orders", 1)
    for number in range(count):
        topic.send(b"%d" % number)
    group = store.group("billing")
    group.reset("orders", to="earliest")
    return group


def test_a_reset_without_force_goes_back_alone(store: mq.Broker, server: Server) -> None:
    group = started_group(store, 5)
    queue = store.readable("orders")[0]
    for timestamp, is_force, offset in ((-1, False, 0), (-1, True, 5), (0, False, 0)):
        answer = ask(server, ResetConsumerOffset("orders", "billing", timestamp, is_force))
        assert body(QueueOffsets, answer).offset_table == {queue: offset}
        assert group.offsets("orders") == {queue: offset}


def test_one_queue_is_reset_to_an_offset(store: mq.Broker, server: Server) -> None:
    group = started_group(store, 5)
    queue = store.readable("orders")[0]
    answer = ask(server, ResetConsumerOffset("orders", "billing", 0, False, 0, 3))
    assert body(QueueOffsets, answer).offset_table == {queue: 3}
    assert group.offsets("orders") == {queue: 3}
    for queue_id, offset, remark in ((0, 6, "0 to 5"), (7, 0, "none of id 7")):
        answer = ask(server, ResetConsumerOffset("orders", "billing", 0, False, queue_id, offset))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert remark in answer.remark
    assert group.offsets("orders") == {queue: 3}


def test_a_reset_makes_no_group(store: mq.Broker, server: Server) -> None:
    store.create_topic("orders", 1)
    answer = ask(server, ResetConsumerOffset("orders", "mistyped", 0, True))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "mistyped" in answer.remark
    assert store.groups() == []
