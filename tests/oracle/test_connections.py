"""Our connections to RocketMQ's own name server and broker: what it answers, and what it asks."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator

import pytest

from mq.api.results import MessageQueue
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.connection import Connection
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.batch import encode_batch
from mq.remoting.codec.bodies.consuming import ConsumerIds, LockedQueues, QueueLock
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup, Subscription
from mq.remoting.codec.bodies.route import ClusterInfo
from mq.remoting.codec.bodies.stats import TopicStats
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame, HeaderEncoding
from mq.remoting.codec.json_body import from_json
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.requests.consuming import PullAnswer, PullFlag, PullMessage
from mq.remoting.codec.requests.groups import GetConsumerList, HeartBeat, LockQueues, UnregisterClient
from mq.remoting.codec.requests.name_servers import GetClusterInfo
from mq.remoting.codec.requests.offsets import GetMaxOffset, OffsetAnswer, QueryConsumerOffset
from mq.remoting.codec.requests.pushed import NotifyConsumerIdsChanged
from mq.remoting.codec.requests.sending import SendAnswer, SendBatchMessage, SendMessageV2
from mq.remoting.codec.requests.statistics import GetTopicStats
from mq.remoting.codec.response_codes import ResponseCode
from tests.oracle.server import Server
from tests.support.eventually import eventually
from tests.support.oracle import Sizes

# The first test of a run waits for Maven, which may have all to download.
pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

TOPIC, GROUP = "orders", "readers"


@pytest.fixture(scope="module")
def served(rocketmq: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    rocketmq.start(tmp_path_factory.mktemp("store"), Sizes(commitlog_file_size=1 << 20))
    rocketmq.create_topic(TOPIC, 4)
    yield rocketmq
    rocketmq.stop()


@pytest.fixture(params=list(HeaderEncoding), ids=lambda encoding: encoding.name)
def remoting(request: pytest.FixtureRequest) -> Iterator[Remoting]:
    remoting = Remoting("rocketmq://tests", RemotingOptions(timeout=60.0, encoding=request.param))
    yield remoting
    remoting.close()


def send(remoting: Remoting, broker: str, topic: str, queue_id: int, body: bytes) -> Frame:
    header = SendMessageV2(
        "senders",
        topic,
        "TBW102",
        4,
        queue_id,
        0,
        int(time.time() * 1000),
        0,
        f"TAGS\x01{body[:1].decode()}\x02",
    )
    return remoting.call(broker, framed(header, body))


def pull(remoting: Remoting, broker: str, queue_id: int, offset: int) -> Frame:
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    header = PullMessage(GROUP, TOPIC, queue_id, offset, 32, flags, 0, 15_000, 0, "*", "TAG")
    return checked(remoting.call(broker, framed(header)), PullMessage, broker, {ResponseCode.PULL_NOT_FOUND})


def max_offset(remoting: Remoting, broker: str, queue_id: int) -> int:
    answer = checked(remoting.call(broker, framed(GetMaxOffset(TOPIC, queue_id))), GetMaxOffset, broker)
    return decode_fields(OffsetAnswer, answer.fields).offset


def test_routes_of_a_real_name_server(served: Server, remoting: Remoting) -> None:
    names = NameServers(remoting, (served.name_server,))
    cluster = Cluster(remoting, names)
    route = cluster.route(TOPIC)
    assert route is not None
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (
        "mq",
        4,
        4,
        6,
    )
    assert cluster.address("mq") == served.broker
    assert cluster.route("nowhere") is None
    info = from_json(ClusterInfo, checked(names.call(GetClusterInfo()), GetClusterInfo, names.chosen).body)
    assert info.broker_addr_table["mq"].master == served.broker


def test_what_is_sent_is_pulled(served: Server, remoting: Remoting) -> None:
    broker = served.broker
    first = max_offset(remoting, broker, 1)
    answer = checked(send(remoting, broker, TOPIC, 1, b"one"), SendMessageV2, broker)
    sent = decode_fields(SendAnswer, answer.fields)
    assert (sent.queue_id, sent.queue_offset) == (1, first)
    batch = encode_batch([(b"two", b"TAGS\x01t\x02", 0), (b"three", b"", 7)])
    header = SendBatchMessage(
        "senders", TOPIC, "TBW102", 4, 1, 0, int(time.time() * 1000), 0, "WAIT\x01true\x02", batch=True
    )
    answer = checked(remoting.call(broker, framed(header, batch)), SendBatchMessage, broker)
    both = decode_fields(SendAnswer, answer.fields)
    assert both.queue_offset == first + 1
    assert len(both.msg_id.split(",")) == 2
    # What is acknowledged is in the queue some ms later.
    eventually(lambda: max_offset(remoting, broker, 1) == first + 3, lambda: max_offset(remoting, broker, 1))
    answer = pull(remoting, broker, 1, first)
    got = decode_fields(PullAnswer, answer.fields)
    assert (got.next_begin_offset, got.max_offset) == (first + 3, first + 3)
    messages = decode_records(answer.body, "mq")
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert [message.tags for message in messages] == ["o", "t", None]
    assert [message.queue_offset for message in messages] == [first, first + 1, first + 2]
    assert messages[0].offset_msg_id == sent.msg_id
    assert messages[2].flag == 7


def test_a_pull_is_held_until_there_is_a_message(served: Server, remoting: Remoting) -> None:
    broker = served.broker
    first = max_offset(remoting, broker, 2)
    heartbeat(remoting, broker, "someone@1")
    held = remoting.submit(broker, pull_request(first), 60)
    answered = remoting.call(broker, framed(GetMaxOffset(TOPIC, 2)))  # The connection is not held.
    assert answered.code == 0
    assert not held.wait(0)
    checked(send(remoting, broker, TOPIC, 2, b"new"), SendMessageV2, broker)
    (message,) = decode_records(held.result(60).body, "mq")
    assert message.body == b"new"


def pull_request(offset: int) -> Frame:
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    return framed(PullMessage(GROUP, TOPIC, 2, offset, 32, flags, 0, 15_000, 0, "*", "TAG"))


def heartbeat(remoting: Remoting, broker: str, client_id: str) -> Frame:
    body = Heartbeat(
        client_id,
        (ProducerGroup("senders"),),
        (ConsumerGroup(GROUP, subscription_data_set=(Subscription(TOPIC, "*", sub_version=1),)),),
    )
    return checked(remoting.call(broker, framed(HeartBeat(), body)), HeartBeat, broker)


def test_membership_and_what_the_broker_tells_of_it(served: Server, remoting: Remoting) -> None:
    broker = served.broker
    told: list[str] = []

    def changed(connection: Connection, request: Frame) -> None:
        told.append(decode_fields(NotifyConsumerIdsChanged, request.fields).consumer_group)

    remoting.handle(NotifyConsumerIdsChanged.CODE, changed)
    assert heartbeat(remoting, broker, "first@1").version >= 232
    # Members of earlier tests stay until the broker has noticed that their connections ended.
    eventually(lambda: members(remoting, broker) == ("first@1",), lambda: members(remoting, broker))
    other = Remoting("rocketmq://other", RemotingOptions(timeout=60.0))
    told.clear()
    heartbeat(other, broker, "second@2")
    eventually(lambda: GROUP in told, lambda: told)
    assert sorted(members(remoting, broker)) == ["first@1", "second@2"]
    queues = tuple(MessageQueue(TOPIC, "mq", queue_id) for queue_id in range(2))
    assert lock(remoting, broker, "first@1", queues) == set(queues)
    assert lock(other, broker, "second@2", queues) == set()
    other.close()  # The broker sees the connection end.
    eventually(lambda: members(remoting, broker) == ("first@1",), lambda: members(remoting, broker))
    gone = UnregisterClient("first@1", "senders", GROUP)
    checked(remoting.call(broker, framed(gone)), UnregisterClient, broker)
    answer = remoting.call(broker, framed(GetConsumerList(GROUP)))
    assert answer.code == ResponseCode.SYSTEM_ERROR


def members(remoting: Remoting, broker: str) -> tuple[str, ...]:
    answer = checked(remoting.call(broker, framed(GetConsumerList(GROUP))), GetConsumerList, broker)
    return from_json(ConsumerIds, answer.body).consumer_id_list


def lock(
    remoting: Remoting, broker: str, client_id: str, queues: tuple[MessageQueue, ...]
) -> set[MessageQueue]:
    answer = remoting.call(broker, framed(LockQueues(), QueueLock(GROUP, client_id, queues)))
    return set(from_json(LockedQueues, checked(answer, LockQueues, broker).body).locked)


def test_answers_that_say_no(served: Server, remoting: Remoting) -> None:
    broker = served.broker
    refused = send(remoting, broker, "SCHEDULE_TOPIC_XXXX", 0, b"no")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark
    unknown = remoting.call(broker, framed(QueryConsumerOffset("nobody", TOPIC, 3, False)))
    assert unknown.code == ResponseCode.QUERY_NOT_FOUND
    assert remoting.call(broker, Frame(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_maps_with_queues_for_keys(served: Server, remoting: Remoting) -> None:
    answer = checked(remoting.call(served.broker, framed(GetTopicStats(TOPIC))), GetTopicStats, served.broker)
    stats = from_json(TopicStats, answer.body)
    assert set(stats.offset_table) == {MessageQueue(TOPIC, "mq", queue_id) for queue_id in range(4)}


def test_tls_on_the_same_port(served: Server) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # RocketMQ makes a certificate of its own for tests.
    remoting = Remoting("rocketmq://tests", RemotingOptions(timeout=60, connect_timeout=60, tls=context))
    cluster = Cluster(remoting, NameServers(remoting, (served.name_server,)))
    assert cluster.route(TOPIC) is not None
    checked(send(remoting, served.broker, TOPIC, 0, b"x" * 100_000), SendMessageV2, served.broker)
    remoting.close()
