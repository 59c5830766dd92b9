"""What operators ask beside statistics, over a broker of each kind; test_mqadmin.py has their tool ask it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from mq.remoting.codec.bodies.consuming import ConsumerConnections, QueueOffsets, RunningInfo
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat
from mq.remoting.codec.bodies.heartbeat import Subscription as SubscriptionData
from mq.remoting.codec.bodies.route import KeyValues, TopicNames
from mq.remoting.codec.bodies.settings import GroupSettings, GroupSettingsList, GroupTable
from mq.remoting.codec.fields import Request, decode_fields, encode_fields
from mq.remoting.codec.frame import Frame, answer_to
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.language import Language, version_name, version_of
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.requests import requests
from mq.remoting.codec.requests.brokers import (
    CleanExpiredQueues,
    CleanUnusedTopics,
    DeleteExpiredFiles,
    GetBrokerRuntimeInfo,
    ResumeCheckHalfMessage,
)
from mq.remoting.codec.requests.groups import (
    DeleteGroup,
    GetAllGroups,
    GetGroup,
    HeartBeat,
    UpdateGroup,
    UpdateGroups,
)
from mq.remoting.codec.requests.name_servers import (
    DeleteKeyValue,
    GetKeyValue,
    GetKeyValues,
    GetRoute,
    GetSystemTopics,
    GetTopicList,
    PutKeyValue,
)
from mq.remoting.codec.requests.offsets import ResetConsumerOffset
from mq.remoting.codec.requests.pushed import ConsumeMessageDirectly, GetConsumerRunningInfo
from mq.remoting.codec.requests.statistics import (
    GetAllProducers,
    GetBrokerConsumeStats,
    GetConsumerConnections,
    QueryConsumeTimeSpan,
    ViewBrokerStats,
)
from mq.remoting.codec.requests.topics import DeleteTopicInBroker, GetSystemTopicsOfBroker, UpdateTopics
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import Credentials
from mq.remoting.server.access import AccessKeys
from mq.remoting.server.handlers import ALL
from mq.remoting.server.server import Server
from mq.remoting.server.transport.connection import ASKED_MAX
from tests.support.eventually import eventually
from tests.support.raw_requests import RawClient, ask, body

LIMIT = 60.0


OPERATORS: list[Request] = [
    ConsumeMessageDirectly("billing", "gone", "00"),
    CleanExpiredQueues(),
    CleanUnusedTopics(),
    DeleteExpiredFiles(),
    DeleteGroup("billing", clean_offset=True),
    DeleteKeyValue("ORDER_TOPIC_CONFIG", "orders"),
    GetAllProducers(),
    GetBrokerConsumeStats(False),
    GetBrokerRuntimeInfo(),
    GetConsumerRunningInfo("billing", "gone"),
    GetKeyValue("ORDER_TOPIC_CONFIG", "orders"),
    GetKeyValues("ORDER_TOPIC_CONFIG"),
    GetSystemTopics(),
    GetSystemTopicsOfBroker(),
    PutKeyValue("ORDER_TOPIC_CONFIG", "orders", "mq:1"),
    QueryConsumeTimeSpan("orders", "billing"),
    ResumeCheckHalfMessage("00"),
    ResetConsumerOffset("orders", "billing", 0, True),
    ViewBrokerStats("TOPIC_PUT_NUMS", "orders"),
]


def started_group(store: mq.Broker, count: int) -> mq.Group:
    """A group that is at the begin of topic orders, which has so many messages in one queue."""
    topic = store.create_topic("orders", 1)
    for number in range(count):
        topic.send(b"%d" % number)
    group = store.group("billing")
    group.reset("orders", to="earliest")
    return group


@pytest.fixture
def member(store: mq.Broker, server: Server) -> Iterator[RawClient]:
    """The connection of client remote-1 of group billing, which consumes topic orders."""
    started_group(store, 1)
    group = ConsumerGroup("billing", subscription_data_set=(SubscriptionData("orders", "*"),))
    with RawClient(server) as client:
        answer = client.ask(HeartBeat(), to_json(Heartbeat("remote-1", consumer_data_set=(group,))))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        yield client


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


def test_a_consumer_is_asked_what_it_is_at(server: Server, member: RawClient) -> None:
    request = GetConsumerRunningInfo("billing", "remote-1", True)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, request)
        got = member.asked(GetConsumerRunningInfo)
        assert decode_fields(GetConsumerRunningInfo, got.fields) == request
        member.send(answer_to(got, 0, body=to_json(RunningInfo({"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}))))
        answer = asked.result(LIMIT)
    assert body(RunningInfo, answer).properties == {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}


def test_a_consumer_is_handed_one_message(store: mq.Broker, server: Server, member: RawClient) -> None:
    (message,) = store.topic("orders").queues[0].read(0).messages
    with ThreadPoolExecutor(1) as pool:
        request = ConsumeMessageDirectly("billing", "remote-1", message.msg_id)
        asked = pool.submit(ask, server, request)
        got = member.asked(ConsumeMessageDirectly)
        assert decode_records(got.body, store.name)[0].body == message.body
        member.send(answer_to(got, ResponseCode.SYSTEM_ERROR, remark="no listener"))
        answer = asked.result(LIMIT)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no listener")


def test_a_consumer_that_is_lost_does_not_answer(server: Server, member: RawClient) -> None:
    request = GetConsumerRunningInfo("billing", "remote-1")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, request)
        member.asked(GetConsumerRunningInfo)
        member.close()
        lost = asked.result(LIMIT)
    assert (lost.code, "closed the connection" in lost.remark) == (ResponseCode.SYSTEM_ERROR, True)


def test_a_consumer_that_answers_late(
    server: Server, member: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.remoting.server.handlers.operators.clients.ANSWER_SECONDS", 0.1)
    answer = ask(server, GetConsumerRunningInfo("billing", "remote-1"))
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "did not answer GET_CONSUMER_RUNNING_INFO" in answer.remark
    [remote] = server.served.members.of_group("billing")
    eventually(lambda: remote.connection.asked_count == 0, lambda: remote.connection.asked_count)
    late = answer_to(member.asked(GetConsumerRunningInfo), 0, body=to_json(RunningInfo()))
    member.send(late)
    assert member.ask(HeartBeat(), to_json(Heartbeat("remote-1"))).code == ResponseCode.SUCCESS


def test_a_consumer_that_answers_nothing_is_asked_no_more_than_so_often(
    server: Server, member: RawClient
) -> None:
    request = Frame(GetConsumerRunningInfo.CODE, encode_fields(GetConsumerRunningInfo("billing", "remote-1")))
    with RawClient(server) as operator:
        for _ in range(ASKED_MAX + 1):
            operator.send(request)
        answer = operator.receive()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert f"has {ASKED_MAX} requests that it has not answered" in answer.remark


def test_a_local_consumer_is_told_of(store: mq.Broker, server: Server) -> None:
    started_group(store, 1)
    with mq.PushConsumer(store, "billing", client_id="local-1") as consumer:
        consumer.subscribe("orders", "paid", listener=lambda _: None)
        consumer.start()
        group = store.group("billing")
        eventually(lambda: group.states("orders")[0].owner is not None, lambda: group.states("orders"))
        found = body(RunningInfo, ask(server, GetConsumerRunningInfo("billing", "local-1")))
    assert found.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert list(found.mq_table) == list(store.readable("orders"))
    assert [(each.topic, each.sub_string) for each in found.subscription_set] == [("orders", "paid")]


def test_a_consumer_that_is_not_there(store: mq.Broker, server: Server, member: RawClient) -> None:
    for request in (
        GetConsumerRunningInfo("billing", "gone"),
        ConsumeMessageDirectly("billing", "gone", "00"),
        ConsumeMessageDirectly("billing", "remote-1", "F" * 32),
    ):
        answer = ask(server, request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not online" in answer.remark or "no message" in answer.remark


def test_settings_of_order_are_those_of_topics(store: mq.Broker, server: Server) -> None:
    store.create_topic("orders", 2, ordered=True)
    space, value = "ORDER_TOPIC_CONFIG", f"{store.name}:2"
    if not isinstance(store, mq.LocalBroker):
        assert ask(server, GetKeyValue(space, "orders")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return
    assert body(KeyValues, ask(server, GetKeyValues(space))).table == {"orders": value}
    assert ask(server, DeleteKeyValue(space, "orders")).code == ResponseCode.SUCCESS
    assert ask(server, GetKeyValue(space, "orders")).code == ResponseCode.QUERY_NOT_FOUND
    assert ask(server, PutKeyValue(space, "orders", value)).code == ResponseCode.SUCCESS
    assert ask(server, GetKeyValue(space, "orders")).fields == {"value": value}
    for request, code in (
        (PutKeyValue(space, "orders", f"{store.name}:3"), ResponseCode.INVALID_PARAMETER),
        (PutKeyValue(space, "gone", value), ResponseCode.TOPIC_NOT_EXIST),
        (PutKeyValue("other", "orders", value), ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ):
        assert ask(server, request).code == code


def test_what_operators_ask_needs_a_key_without_rights_of_its_own(store: mq.Broker) -> None:
    store.create_topic("orders", 1)
    keys: AccessKeys = {"someone": ("secret", {"*": "PUB|SUB"}), "operator": "secret"}
    with serve(store, port=0, namesrv_port=0, access_keys=keys) as server:
        for request in OPERATORS:
            for signer in (None, Credentials("someone", "secret"), Credentials("operator", "wrong")):
                assert ask(server, request, signer=signer).code == ResponseCode.NO_PERMISSION, request
            answer = ask(server, request, signer=Credentials("operator", "secret"))
            assert answer.code != ResponseCode.NO_PERMISSION, request


def test_a_group_is_found_by_its_retry_topic(store: mq.Broker, server: Server) -> None:
    started_group(store, 1)
    assert ask(server, GetRoute("%RETRY%gone")).code == ResponseCode.TOPIC_NOT_EXIST
    assert ask(server, GetRoute("%RETRY%billing")).code == ResponseCode.SUCCESS
    store.group("shipping").reset("orders", to="earliest")
    found = body(TopicNames, ask(server, GetTopicList())).topic_list
    assert found == ("%RETRY%billing", "%RETRY%shipping", "orders")
    assert store.group("billing").lag("orders") == 1


def test_a_client_of_another_server_is_shown_as_what_it_is(store: mq.Broker, server: Server) -> None:
    store.create_topic("orders", 1)
    group = ConsumerGroup("billing", subscription_data_set=(SubscriptionData("orders", "*"),))
    with serve(store, port=0, namesrv_port=0) as other, RawClient(other) as client:
        content = to_json(Heartbeat("remote-1", consumer_data_set=(group,)))
        client.send(Frame(HeartBeat.CODE, {}, content, language=Language.GO, version=409))
        while not client.receive().is_response:
            pass
        [shown] = body(ConsumerConnections, ask(server, GetConsumerConnections("billing"))).connection_set
        [there] = body(ConsumerConnections, ask(other, GetConsumerConnections("billing"))).connection_set
        assert (shown.language, shown.version) == ("GO", 409)
        assert shown == there
        info = body(RunningInfo, ask(server, GetConsumerRunningInfo("billing", "remote-1")))
        assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_8"


@pytest.mark.parametrize("version", [0, 63, 211, 212, 213, 232, 409, 412, 413, 478, 479])
def test_a_version_is_found_by_its_name(version: int) -> None:
    assert version_of(version_name(version)) == version


def group_body(**members: object) -> bytes:
    return to_json(GroupSettings("billing", **members))  # type: ignore[arg-type]  # of what is tested


def test_a_group_is_made_by_its_settings(store: mq.Broker, server: Server) -> None:
    assert ask(server, GetGroup("billing")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    for _ in range(2):
        answer = ask(server, UpdateGroup(), content=group_body(broker_id=1, consume_timeout_minute=5))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert store.groups() == ["billing"]
    assert list(body(GroupTable, ask(server, GetAllGroups())).subscription_group_table) == ["billing"]
    assert body(GroupSettings, ask(server, GetGroup("billing"))) == GroupSettings("billing")
    content = to_json(GroupSettingsList((GroupSettings("billing"), GroupSettings("shipping"))))
    assert ask(server, UpdateGroups(), content=content).code == ResponseCode.SUCCESS
    assert store.groups() == ["billing", "shipping"]


@pytest.mark.parametrize("members", [{"consume_enable": False}, {"retry_max_times": 3}])
def test_settings_that_no_group_has_are_refused(
    store: mq.Broker, server: Server, members: dict[str, object]
) -> None:
    answer = ask(server, UpdateGroup(), content=group_body(**members))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert next(iter(members)) in answer.remark
    assert store.groups() == []


@pytest.mark.parametrize("flag", ["clean_offset", "remove_offset"])
def test_a_group_is_deleted_with_its_offsets(store: mq.Broker, server: Server, flag: str) -> None:
    group = started_group(store, 1)
    assert ask(server, DeleteGroup("billing")).code == ResponseCode.SUCCESS
    assert ask(server, DeleteGroup("billing", **{flag: False})).code == ResponseCode.SUCCESS
    assert store.groups() == ["billing"]
    answer = ask(server, DeleteGroup("billing", **{flag: True}))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert (store.groups(), group.offsets("orders")) == ([], {})
    assert ask(server, GetGroup("billing")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert ask(server, GetRoute("%RETRY%billing")).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_group_that_was_made_by_its_settings_is_deleted(store: mq.Broker, server: Server) -> None:
    assert ask(server, UpdateGroup(), content=group_body()).code == ResponseCode.SUCCESS
    assert ask(server, DeleteGroup("billing", clean_offset=True)).code == ResponseCode.SUCCESS
    assert (store.groups(), store.topics()) == ([], [])


def test_a_group_with_a_remote_member_is_not_deleted(
    store: mq.Broker, server: Server, member: RawClient
) -> None:
    answer = ask(server, DeleteGroup("billing", clean_offset=True))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "remote-1" in answer.remark
    with pytest.raises(mq.NotPermitted, match="remote-1"):
        store.group("billing").delete()
    assert store.group("billing").offsets("orders")


@pytest.mark.parametrize("kind", ["%RETRY%", "%DLQ%"])
def test_a_groups_own_topic_is_deleted(store: mq.Broker, server: Server, kind: str) -> None:
    store.create_topic(kind + "billing", 1).send(b"failed")
    for _ in range(2):
        assert ask(server, DeleteTopicInBroker(kind + "billing")).code == ResponseCode.SUCCESS
        assert store.topics() == []


def test_requests_without_an_answer_are_refused_by_name(server: Server) -> None:
    answer = ask(server, UpdateTopics())
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "request type 18 not supported" in answer.remark
    assert "UPDATE_AND_CREATE_TOPIC_LIST" in answer.remark


def test_the_documents_list_all_requests() -> None:
    text = (Path(mq.__file__).parents[1] / "docs" / "serving.md").read_text()
    answered, refused = text[text.index("## Request codes") :].split("| not answered")
    rows = [line for line in answered.splitlines() if line.startswith("| ")]
    assert {int(code) for code in re.findall(r"\b\d{2,}\b", "".join(rows))} == ALL.by_code.keys()
    codes = re.findall(r"\b\d{2,}\b", "".join(re.findall(r"^\|[^|]+\|", refused, re.MULTILINE)))
    to_clients = {39, 40, 220, 221, 326}
    assert {int(code) for code in codes} == requests().keys() - ALL.by_code.keys() - to_clients
