"""RocketMQ's own tool for operators, mqadmin of 5.3 and of 4.9, on a directory of mq.

One process runs all commands of a version, by the tool's own code; a command that fails raises RequestFailed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.access import AccessKeys
from mq.remoting.server.server import Server
from mq.store.check import problems
from tests.support import assigned
from tests.support.cluster.access import Account
from tests.support.cluster.java_clients import JavaClients, RequestFailed
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

WAIT = 120.0
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mq.LocalBroker]:
    path = tmp_path_factory.mktemp("mqadmin") / "store"
    with mq.open(path) as opened:
        yield opened
    assert [str(problem) for problem in problems(path)] == []


@pytest.fixture(scope="module")
def server(store: mq.Broker) -> Iterator[Server]:
    with serve(store, port=0, namesrv_port=0) as server:
        yield server


# Both tools ask the same requests; CI has an hour, and leaves the older one to `pytest -m scale`.
@pytest.fixture(scope="module", params=["5.3", pytest.param("4.9", marks=pytest.mark.scale)])
def java(request: pytest.FixtureRequest, server: Server) -> Iterator[JavaClients]:
    with JavaClients(server.name_server, version=request.param) as clients:
        yield clients


@pytest.fixture
def topic(store: mq.LocalBroker, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, of two queues."""
    name = re.sub(r"\W", "-", request.node.name)[:100]
    return store.create_topic(name, 2).name


def rows(printed: str, start: str) -> list[list[str]]:
    """The words of the lines that start so."""
    return [line.split() for line in printed.splitlines() if line.startswith(start)]


def has_messages(store: mq.LocalBroker, topic: str, key: str) -> bool:
    try:
        return bool(store.query(topic, key))
    except mq.TopicNotFound:
        return False


def consumed(store: mq.LocalBroker, java: JavaClients, topic: str, count: int) -> str:
    """The group of a Java consumer that is at work and has consumed so many messages of the topic."""
    group = f"group-of-{topic}"[:100]
    java.consume(group, [topic])
    for number in range(count):
        store.topic(topic).send(b"%d" % number)
    assert len(java.received(group, count, WAIT)) == count
    return group


def test_topic_list_names_the_topics(java: JavaClients, topic: str) -> None:
    assert topic in java.mqadmin("topicList").splitlines()


def test_topic_list_names_cluster_and_groups(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    store.consumer_groups.assigned("readers").claim(store.readable(topic)[0]).commit(0)
    assert ["DefaultCluster", topic, "readers"] in rows(java.mqadmin("topicList", "-c"), "DefaultCluster")


def test_topic_status_shows_the_ends_of_queues(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    for _ in range(5):
        store.topic(topic).send(b"x")
    found = rows(java.mqadmin("topicStatus", "-t", topic), store.name)
    ends = [[store.name, str(q.queue_id), "0", str(q.max_offset)] for q in store.topic(topic).queues]
    assert [row[:4] for row in found] == ends


def test_topic_route_shows_address_and_queues(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    printed = java.mqadmin("topicRoute", "-t", topic)
    assert re.search(rf'0:\s?"{server.address}"', printed), printed
    assert f'"brokerName":"{store.name}"' in printed
    assert '"readQueueNums":2' in printed
    assert '"writeQueueNums":2' in printed


def test_update_topic_makes_and_changes_a_topic(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    new = f"new-{topic}"
    assert "success" in java.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", new, "-r", "3", "-w", "2")
    assert len(store.readable(new)) == 3
    assert len(store.publishable(new)) == 2
    java.mqadmin("updateTopic", "-b", server.address, "-t", new, "-r", "3", "-w", "3", "-p", "4")
    assert len(store.readable(new)) == 3
    with pytest.raises(mq.NotPermitted):
        store.publishable(new)


def test_update_topic_makes_an_ordered_topic(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    new = f"new-{topic}"
    for target in (["-c", "DefaultCluster"], ["-b", server.address]):
        java.mqadmin("updateTopic", *target, "-t", new, "-r", "3", "-w", "3", "-o", "true")
        assert store.replication.topics()[new].ordered
        shown = java.mqadmin("updateOrderConf", "-t", new, "-m", "get")
        assert f"orderConf=[{store.name}:3]" in shown
        java.mqadmin("updateOrderConf", "-t", new, "-m", "delete")
        assert not store.replication.topics()[new].ordered
    with pytest.raises(RequestFailed, match=f"{store.name}:3"):
        java.mqadmin("updateOrderConf", "-t", new, "-m", "put", "-v", f"{store.name}:7")
    java.mqadmin("updateOrderConf", "-t", new, "-m", "put", "-v", f"{store.name}:3")
    assert store.replication.topics()[new].ordered


def test_update_topic_perm_forbids_to_write(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    java.mqadmin("updateTopicPerm", "-b", server.address, "-t", topic, "-p", "4")
    assert len(store.readable(topic)) == 2
    with pytest.raises(mq.NotPermitted):
        store.publishable(topic)


def test_delete_topic_deletes_it(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    assert "success" in java.mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert topic not in store.topics()


@pytest.mark.parametrize("target", ["-c", "-b"])
def test_delete_sub_group_deletes_a_group(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str, target: str
) -> None:
    """With -c the tool deletes its topics as well, by requests of their own."""
    group = consumed(store, java, topic, 3)
    where = "DefaultCluster" if target == "-c" else server.address
    with pytest.raises(RequestFailed, match="live consumers"):
        java.mqadmin("deleteSubGroup", target, where, "-g", group, "-r", "true")
    java.stop_consumer(group)
    (message, *_) = (each for queue in store.topic(topic).queues for each in queue.read(0).messages)
    assigned.send_back(store, message, group, max_reconsume_times=0)
    assert {f"%RETRY%{group}", f"%DLQ%{group}"} <= {*store.topics()}
    if target == "-b":
        assert "success" in java.mqadmin("deleteSubGroup", target, where, "-g", group)
        assert group in store.groups()
    assert "success" in java.mqadmin("deleteSubGroup", target, where, "-g", group, "-r", "true")
    assert group not in store.groups()
    assert f"%RETRY%{group}" not in store.topics()
    assert (f"%DLQ%{group}" in store.topics()) == (target == "-b")


def test_consumer_progress_shows_what_is_left(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    group = consumed(store, java, topic, 4)
    java.stop_consumer(group)
    for _ in range(3):
        store.topic(topic).send(b"x")
    printed = java.mqadmin("consumerProgress", "-g", group)
    by_queue = {
        str(state.queue.queue_id): [str(state.end), str(state.committed or 0), str(state.lag)]
        for state in store.group(group).states(topic)
    }
    assert {row[2]: row[3:6] for row in rows(printed, topic)} == by_queue
    assert "Diff Total: 3" in printed
    of_all = rows(java.mqadmin("consumerProgress"), group)
    assert [row[1:] for row in of_all] == [["0", "OFFLINE", "0", "3"]]


def test_consumer_connection_shows_the_members(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    group = consumed(store, java, topic, 1)
    printed = java.mqadmin("consumerConnection", "-g", group)
    client, address, language, version = rows(printed, java.client_id(group))[0]
    assert client == store.group(group).members()[0].client_id
    assert address.startswith("127.0.0.1:")
    assert language == "JAVA"
    assert version.startswith("V")
    assert rows(printed, topic) == [[topic, "*"]]
    assert "MessageModel: CLUSTERING" in printed
    java.stop_consumer(group)


def test_consumer_progress_shows_where_queues_are(
    store: mq.LocalBroker, java: JavaClients, topic: str
) -> None:
    """The address of a Java consumer, which is asked, and of a local one, which the directory knows."""
    group = consumed(store, java, topic, 1)
    with mq.PushConsumer(store, group, client_id="192.0.2.9@here") as consumer:
        consumer.subscribe(topic, listener=lambda _: None)
        consumer.start()
        eventually(
            lambda: len({s.owner.client_id for s in store.group(group).states(topic) if s.owner}) == 2,
            lambda: store.group(group).states(topic),
        )
        found = rows(java.mqadmin("consumerProgress", "-g", group, "-s", "true"), topic)
        assert {row[5] for row in found} == {java.client_id(group).split("@")[0], "192.0.2.9"}
        printed = java.mqadmin("consumerStatus", "-g", group)
        shown = {row[1] for row in rows(printed, "1 ") + rows(printed, "2 ")}
        assert shown == {java.client_id(group), "192.0.2.9@here"}
        assert "Same subscription in the same group" in printed
    java.stop_consumer(group)


@pytest.mark.parametrize("model", ["clustering", "broadcasting"])
def test_groups_of_local_consumers_are_shown(
    store: mq.LocalBroker, java: JavaClients, topic: str, model: Literal["clustering", "broadcasting"]
) -> None:
    group = f"local-{topic}"[:100]
    with mq.PushConsumer(store, group, model=model, client_id="192.0.2.9@here") as consumer:
        consumer.subscribe(topic, listener=lambda _: None)
        consumer.start()
        printed = java.mqadmin("consumerConnection", "-g", group)
        ((client, _, language, _),) = rows(printed, "192.0.2.9")
        assert (client, language) == ("192.0.2.9@here", "PYTHON")
        assert f"MessageModel: {model.upper()}" in printed
        ((_, count, _, kind, *_),) = rows(java.mqadmin("consumerProgress"), group)
        assert (count, kind) == ("1", "PUSH")
        store.topic(topic).send(b"x")
        if model == "clustering":
            eventually(lambda: store.group(group).lag(topic) == 0, lambda: store.group(group).states(topic))
            assert len(rows(java.mqadmin("consumerProgress", "-g", group), topic)) == 2


def test_a_consumer_is_given_a_message_by_hand(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    group = consumed(store, java, topic, 1)
    sent = java.send(topic, b"again")
    assert sent.offset_msg_id is not None
    assert len(java.received(group, 2, WAIT)) == 2
    of_topic = [] if java.version == "4.9" else ["-t", topic]
    client = java.client_id(group)
    printed = java.mqadmin("queryMsgById", *of_topic, "-i", sent.offset_msg_id, "-g", group, "-d", client)
    assert "CR_SUCCESS" in printed
    assert [message.body for message in java.received(group, 3, WAIT)][1:] == [b"again", b"again"]
    java.stop_consumer(group)


def test_reset_offset_by_time_repeats_messages(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    group = consumed(store, java, topic, 4)
    eventually(lambda: store.group(group).lag(topic) == 0, lambda: store.group(group).states(topic))
    printed = java.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert sorted(rows(printed, store.name)) == [[store.name, "0", "0"], [store.name, "1", "0"]]
    again = java.received(group, 8, WAIT)[4:]
    assert sorted(message.body for message in again) == [b"0", b"1", b"2", b"3"]
    java.stop_consumer(group)


def test_reset_offset_by_time_without_members(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    sent = []
    for number in range(4):
        sent.append(store.topic(topic).send(b"%d" % number))
        time.sleep(0.01)
    group = store.group(f"group-of-{topic}")
    group.reset(topic, to="earliest")
    at_ms = store.message(sent[2].msg_id).store_time_ms
    java.mqadmin("resetOffsetByTime", "-g", group.name, "-t", topic, "-s", str(at_ms))
    assert group.lag(topic) == 2
    java.mqadmin("resetOffsetByTime", "-g", group.name, "-t", topic, "-s", "now", "-f", "false")
    assert group.lag(topic) == 2
    java.mqadmin("resetOffsetByTime", "-g", group.name, "-t", topic, "-s", "now")
    assert group.lag(topic) == 0
    store.topic(topic).send(b"more")
    java.mqadmin("skipAccumulatedMessage", "-g", group.name, "-t", topic)
    assert group.lag(topic) == 0


def test_reset_of_an_unknown_group_is_refused(java: JavaClients, store: mq.LocalBroker, topic: str) -> None:
    with pytest.raises(RequestFailed) as failed:
        java.mqadmin("resetOffsetByTime", "-g", "mistyped", "-t", topic, "-s", "0")
    assert failed.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "mistyped" not in store.groups()


def test_messages_are_found_by_key(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    sent = [store.topic(topic).send(b"%d" % n, keys=f"key{n % 2}") for n in range(6)]
    found = rows(java.mqadmin("queryMsgByKey", "-t", topic, "-k", "key1"), sent[0].msg_id[:16])
    expected = {(s.msg_id, str(s.queue.queue_id), str(s.queue_offset)) for s in sent[1::2]}
    assert {tuple(row) for row in found} == expected


def test_messages_are_shown_by_their_place(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    sent = [store.topic(topic).send(b"body %d" % n, keys=f"k{n}") for n in range(3)]
    printed = java.mqadmin("printMsg", "-t", topic, "-d", "true")
    assert set(re.findall(r"^MSGID: (\w+)", printed, re.MULTILINE)) == {each.msg_id for each in sent}
    place = ["-b", store.name, "-i", str(sent[2].queue.queue_id), "-o", str(sent[2].queue_offset)]
    assert re.search(r"^Keys: +\[k2\]$", java.mqadmin("queryMsgByOffset", "-t", topic, *place), re.MULTILINE)


def test_clone_group_offset_copies_offsets(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    for _ in range(6):
        store.topic(topic).send(b"x")
    source, copy = store.group(f"source-{topic}"[:100]), store.group(f"copy-{topic}"[:100])
    source.reset(topic, to="latest")
    java.mqadmin("cloneGroupOffset", "-s", source.name, "-d", copy.name, "-t", topic)
    assert copy.offsets(topic) == source.offsets(topic)


def test_a_message_is_found_by_its_ids(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    sent = java.send(topic, b"body", keys="k7", tags="paid")
    assert sent.offset_msg_id is not None
    of_topic = [] if java.version == "4.9" else ["-t", topic]
    for printed in (
        java.mqadmin("queryMsgById", *of_topic, "-i", sent.offset_msg_id),
        java.mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", sent.msg_id),
    ):
        shown = dict(re.findall(r"^([A-Z][\w ]+): +(\S.*)$", printed, re.MULTILINE))
        assert shown["Topic"] == topic
        assert shown["Tags"] == "[paid]"
        assert shown["Keys"] == "[k7]"
        assert shown["Queue ID"] == str(sent.queue_id)
        assert shown["Queue Offset"] == str(sent.queue_offset)


def test_what_became_of_a_message_is_told(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    group = consumed(store, java, topic, 1)
    java.stop_consumer(group)
    before = store.topic(topic).queues[0].read(0).messages or store.topic(topic).queues[1].read(0).messages
    printed = java.mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", before[0].msg_id)
    assert f"consumerGroup={group}" in printed
    assert "NOT_ONLINE" in printed


def test_send_message_stores_one(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    printed = java.mqadmin("sendMessage", "-t", topic, "-p", "hello", "-k", "k9", "-c", "paid")
    ((_, queue_id, status, msg_id),) = rows(printed, store.name)
    assert status == "SEND_OK"
    message = store.message(msg_id)
    assert (message.body, message.tags, message.queue_id) == (b"hello", "paid", int(queue_id))
    assert [found.msg_id for found in store.query(topic, "k9")] == [msg_id]


def test_consume_message_shows_what_is_there(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    sent = [store.topic(topic).send(b"body %d" % n) for n in range(4)]
    printed = java.mqadmin("consumeMessage", "-t", topic)
    assert set(re.findall(r"^MSGID: (\w+)", printed, re.MULTILINE)) == {each.msg_id for each in sent}
    printed = java.mqadmin("consumeMessage", "-t", topic, "-b", store.name, "-i", "1", "-o", "1")
    assert re.findall(r"BODY: (.*)$", printed, re.MULTILINE) == [
        message.body.decode() for message in store.topic(topic).queues[1].read(1).messages
    ]


def test_broker_status_shows_the_log(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    store.topic(topic).send(b"x")
    end = store.replication.log_range[1]
    shown = dict(
        re.findall(r"^(\w+) +: (.*)$", java.mqadmin("brokerStatus", "-b", server.address), re.MULTILINE)
    )
    assert shown["commitLogMaxOffset"] == str(end)
    assert shown["brokerActive"] == "true"
    assert int(shown["msgPutTotalTodayNow"]) >= 1
    assert server.address in java.mqadmin("brokerStatus", "-c", "DefaultCluster")


def test_cluster_list_shows_the_broker(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    for _ in range(7):
        store.topic(topic).send(b"x")
    start = ["DefaultCluster", store.name, "0", server.address, "V5_3_3"]
    (row,) = rows(java.mqadmin("clusterList"), "DefaultCluster")
    assert row[:5] == start
    assert float(row[5].partition("(")[0]) > 0
    (more,) = rows(java.mqadmin("clusterList", "-m"), "DefaultCluster")
    assert int(more[4]) >= 7


@pytest.mark.parametrize("command", ["deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"])
def test_what_is_too_old_is_deleted(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str, command: str
) -> None:
    store.topic(topic).send(b"kept")
    assert "success" in java.mqadmin(command, "-b", server.address)
    assert sum(queue.max_offset - queue.min_offset for queue in store.topic(topic).queues) == 1


def test_stats_all_shows_the_traffic(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    group = consumed(store, java, topic, 6)
    java.stop_consumer(group)
    arguments = ["statsAll", "-t", topic]
    (row,) = rows(java.mqadmin(*arguments), topic)
    assert row[1:3] == [group, "0"]
    assert float(row[3]) == pytest.approx(0.1, abs=0.01)
    assert row[5] == "6"


def test_broker_consume_stats_show_every_group(
    store: mq.LocalBroker, server: Server, java: JavaClients, topic: str
) -> None:
    sender = store.topic(topic)
    for _ in range(4):
        sender.send(b"x")
    queue = store.readable(topic)[0]
    for group in ("first", "second"):
        store.consumer_groups.assigned(group).claim(queue).commit(1)
    printed = java.mqadmin("brokerConsumeStats", "-b", server.address)
    # The tool leaves out queues of which nothing was consumed.
    found = [[row[1], *row[3:7]] for row in rows(printed, topic)]
    assert sorted(found) == [["first", "0", "2", "1", "1"], ["second", "0", "2", "1", "1"]]


def test_producer_connection_shows_the_producers(server: Server, java: JavaClients, topic: str) -> None:
    group = f"shop-{topic}"[:100]
    java.start_producer(group, group=group, heartbeat_ms=500)
    java.send(topic, b"x", producer=group)
    eventually(lambda: group in server.served.members.producer_groups(), server.clients)
    (row,) = rows(java.mqadmin("producerConnection", "-g", group, "-t", topic), "0001")
    assert row[2].startswith("127.0.0.1:")
    assert row[3] == "JAVA"
    if java.version == "5.3":
        assert f"producer group ({group})" in java.mqadmin("producer", "-b", server.address)
    java.stop_producer(group)


def test_a_trace_is_found_by_the_id_of_its_message(
    store: mq.LocalBroker, java: JavaClients, topic: str
) -> None:
    printed = java.mqadmin("sendMessage", "-t", topic, "-p", "hello", "-m", "true")
    ((_, _, _, msg_id),) = rows(printed, store.name)
    eventually(lambda: has_messages(store, TRACE_TOPIC, msg_id), lambda: store.readable(TRACE_TOPIC))
    (row,) = rows(java.mqadmin("queryMsgTraceById", "-i", msg_id), "Pub")
    assert row[-1] == "success"


def test_a_cluster_stands_for_its_brokers(store: mq.LocalBroker, java: JavaClients, topic: str) -> None:
    store.topic(topic).send(b"x", keys="k1")
    if java.version == "5.3":
        assert len(rows(java.mqadmin("topicStatus", "-t", topic, "-c", "DefaultCluster"), store.name)) == 2
        assert (
            len(rows(java.mqadmin("queryMsgByKey", "-t", topic, "-k", "k1", "-c", "DefaultCluster"), "")) == 2
        )
    assert "DefaultCluster" in java.mqadmin("topicClusterList", "-t", topic)


def test_operators_need_a_key_without_rights_of_its_own(directory: Path) -> None:
    keys: AccessKeys = {"someone": ("someones-secret", {"*": "PUB|SUB"}), "operator": "operators-secret"}
    with mq.open(directory) as store, serve(store, port=0, namesrv_port=0, access_keys=keys) as server:
        store.create_topic("orders", 1)
        with JavaClients(server.name_server, account=Account("operator", "operators-secret")) as operator:
            assert operator.mqadmin("topicList").split() == ["orders"]
        with JavaClients(server.name_server, account=Account("someone", "someones-secret")) as someone:
            with pytest.raises(RequestFailed) as refused:
                someone.mqadmin("topicList")
            assert refused.value.code == ResponseCode.NO_PERMISSION
            assert "SEND_OK" in someone.mqadmin("sendMessage", "-t", "orders", "-p", "hello")
            assert "BODY: hello" in someone.mqadmin("consumeMessage", "-t", "orders")
