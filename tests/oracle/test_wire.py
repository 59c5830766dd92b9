"""The wire as RocketMQ's own classes have it: fields, frames and bodies, read and written by either side.

RocketMQ 5.3.3. One process of Java is asked everything.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from mq.remoting.codec.batch import encode_batch
from mq.remoting.codec.bodies.settings import DataVersion, TopicSettings, TopicTable
from mq.remoting.codec.body_kind import Raw
from mq.remoting.codec.fields import HeaderFields, Int, Long, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, HeaderEncoding, encode
from mq.remoting.codec.json_body import JsonBody, from_json, to_json
from mq.remoting.codec.registration import Registration, decode_registration, encode_registration
from mq.remoting.codec.requests import requests
from mq.remoting.codec.requests.groups import GetAllGroups
from mq.remoting.codec.requests.topics import GetAllTopics
from mq.remoting.codec.signature import signature_of
from mq.remoting.codec.wire_names import wire_name
from tests.support import oracle
from tests.support.wire_values import Values

# The first test of a run waits for Maven, which may have all to download.
pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

# Where RocketMQ's name of the class of the header is not that of the request.
WITHOUT_A_CLASS = {GetAllGroups, GetAllTopics}  # in 5.3.3
HEADERS = {
    "SEND_MESSAGE_V2": "SendMessageRequestHeaderV2",
    "SEND_BATCH_MESSAGE": "SendMessageRequestHeaderV2",
    "SEND_REPLY_MESSAGE": "SendMessageRequestHeader",
    "SEND_REPLY_MESSAGE_V2": "SendMessageRequestHeaderV2",
    "CONSUMER_SEND_MSG_BACK": "ConsumerSendMsgBackRequestHeader",
    "LITE_PULL_MESSAGE": "PullMessageRequestHeader",
    "SEARCH_OFFSET_BY_TIMESTAMP": "SearchOffsetRequestHeader",
    "VIEW_MESSAGE_BY_ID": "ViewMessageRequestHeader",
    "HEART_BEAT": "HeartbeatRequestHeader",
    "GET_CONSUMER_LIST_BY_GROUP": "GetConsumerListByGroupRequestHeader",
    "RESET_CONSUMER_CLIENT_OFFSET": "ResetOffsetRequestHeader",
    "INVOKE_BROKER_TO_RESET_OFFSET": "ResetOffsetRequestHeader",
    "GET_CONSUMER_STATUS_FROM_CLIENT": "GetConsumerStatusRequestHeader",
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS": "GetConsumerStatusRequestHeader",
    "CONSUME_MESSAGE_DIRECTLY": "ConsumeMessageDirectlyResultRequestHeader",
    "PUSH_REPLY_MESSAGE_TO_CLIENT": "ReplyMessageRequestHeader",
    "UPDATE_AND_CREATE_TOPIC": "CreateTopicRequestHeader",
    "DELETE_TOPIC_IN_BROKER": "DeleteTopicRequestHeader",
    "DELETE_SUBSCRIPTIONGROUP": "DeleteSubscriptionGroupRequestHeader",
    "GET_SUBSCRIPTIONGROUP_CONFIG": "GetSubscriptionGroupConfigRequestHeader",
    "GET_TOPIC_STATS_INFO": "GetTopicStatsInfoRequestHeader",
    "GET_BROKER_CONSUME_STATS": "GetConsumeStatsInBrokerHeader",
    "QUERY_CORRECTION_OFFSET": "QueryCorrectionOffsetHeader",
    "QUERY_TOPIC_CONSUME_BY_WHO": "QueryTopicConsumeByWhoRequestHeader",
    "GET_ROUTEINFO_BY_TOPIC": "GetRouteInfoRequestHeader",
    "UNREGISTER_BROKER": "UnRegisterBrokerRequestHeader",
    "GET_TOPICS_BY_CLUSTER": "GetTopicsByClusterRequestHeader",
    "DELETE_TOPIC_IN_NAMESRV": "DeleteTopicFromNamesrvRequestHeader",
    "REGISTER_TOPIC_IN_NAMESRV": "RegisterTopicRequestHeader",
    "PUT_KV_CONFIG": "PutKVConfigRequestHeader",
    "GET_KV_CONFIG": "GetKVConfigRequestHeader",
    "DELETE_KV_CONFIG": "DeleteKVConfigRequestHeader",
    "GET_KVLIST_BY_NAMESPACE": "GetKVListByNamespaceRequestHeader",
    "WIPE_WRITE_PERM_OF_BROKER": "WipeWritePermOfBrokerRequestHeader",
    "ADD_WRITE_PERM_OF_BROKER": "AddWritePermOfBrokerRequestHeader",
}
ANSWERS = {
    "SendAnswer": "SendMessageResponseHeader",
    "RecallAnswer": "RecallMessageResponseHeader",
    "PullAnswer": "PullMessageResponseHeader",
    "QueryAnswer": "QueryMessageResponseHeader",
    "OffsetAnswer": "GetMaxOffsetResponseHeader",
    "TimestampAnswer": "GetEarliestMsgStoretimeResponseHeader",
    "BrokerConfigAnswer": "GetBrokerConfigResponseHeader",
    "RegisterBrokerAnswer": "RegisterBrokerResponseHeader",
    "DataVersionAnswer": "QueryDataVersionResponseHeader",
    "WipeAnswer": "WipeWritePermOfBrokerResponseHeader",
    "AddAnswer": "AddWritePermOfBrokerResponseHeader",
    "ValueAnswer": "GetKVConfigResponseHeader",
}
BODIES = {
    "TopicRoute": "TopicRouteData",
    "ClusterInfo": "ClusterInfo",
    "BrokerMembers": "GetBrokerMemberGroupResponseBody",
    "TopicNames": "TopicList",
    "KeyValues": "KVTable",
    "Heartbeat": "HeartbeatData",
    "ClientCheck": "CheckClientRequestBody",
    "ConsumerIds": "GetConsumerListByGroupResponseBody",
    "QueueLock": "LockBatchRequestBody",
    "LockedQueues": "LockBatchResponseBody",
    "QueueOffsets": "ResetOffsetBody",
    "ConsumersStatus": "GetConsumerStatusBody",
    "ConsumerOffsets": "ConsumerOffsetSerializeWrapper",
    "ConsumerConnections": "ConsumerConnection",
    "ProducerConnections": "ProducerConnection",
    "RunningInfo": "ConsumerRunningInfo",
    "ConsumedDirectly": "ConsumeMessageDirectlyResult",
    "DataVersion": "DataVersion",
    "TopicSettings": "TopicConfig",
    "TopicSettingsList": "CreateTopicListRequestBody",
    "TopicTable": "TopicConfigAndMappingSerializeWrapper",
    "GroupSettings": "SubscriptionGroupConfig",
    "GroupSettingsList": "SubscriptionGroupList",
    "GroupTable": "SubscriptionGroupWrapper",
    "RequestModes": "MessageRequestModeSerializeWrapper",
    "TopicStats": "TopicStatsTable",
    "ConsumeStats": "ConsumeStats",
    "GroupNames": "GroupList",
    "GroupSubscription": "QuerySubscriptionResponseBody",
    "QueueTimeSpans": "QueryConsumeTimeSpanBody",
    "CorrectionOffsets": "QueryCorrectionOffsetBody",
    "BrokerStats": "BrokerStatsData",
    "ProducerTable": "ProducerTableInfo",
}
JAVA_TYPES = {
    str: {"String", "BoundaryType", "TopicFilterType"},
    bool: {"boolean", "Boolean"},
    Int: {"int", "Integer"},
    Long: {"long", "Long"},
}

# Fields that every header of 5.x may have; and those that are not in the class, but put beside it.
COMMON = {"ns", "nsd", "oway", "lo", "bname"}
NOT_IN_THE_CLASS = {
    ("QueryMessageRequestHeader", "_UNIQUE_KEY_QUERY"),
    ("SendMessageResponseHeader", "MSG_REGION"),
    ("SendMessageResponseHeader", "TRACE_ON"),
    ("DeleteSubscriptionGroupRequestHeader", "removeOffset"),  # of 4.9
}
WORDS = {
    "mode": "POP",
    "language": "PYTHON",
    "topic_filter_type": "SINGLE_TAG",
    "boundary_type": "UPPER",
    "forbidden_table": None,
    "topic_queue_mapping_by_broker": None,
    "topic_queue_mapping_info_map": {},
    "topic_queue_mapping_detail_map": {},
    "commit_or_rollback": 8,
    "group_retry_policy": {"type": "CUSTOMIZED"},
    "begin_log_offset": None,  # of mq alone
}


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def ask(tasks: Sequence[dict[str, Any]]) -> list[Any]:
    answers = oracle.wire(tasks)
    assert len(answers) == len(tasks)
    failures = [(task, answer) for task, answer in zip(tasks, answers, strict=True) if "failure" in answer]
    assert failures == []
    return [answer["answer"] for answer in answers]


def java_header(name: str) -> str:
    known = HEADERS.get(name)
    return known or "".join(word.capitalize() for word in name.split("_")) + "RequestHeader"


def declared_headers() -> list[tuple[type[HeaderFields], str]]:
    """Our classes with fields, and RocketMQ's."""
    found: dict[type[HeaderFields], str] = {}
    for request in requests().values():
        if fields(request) and request not in WITHOUT_A_CLASS:
            found[request] = java_header(request.NAME)
    for request in requests().values():
        if request.ANSWER.__name__ in ANSWERS:
            found[request.ANSWER] = ANSWERS[request.ANSWER.__name__]
    return list(found.items())


def test_every_header_has_the_fields_of_rocketmqs_class() -> None:
    pairs = declared_headers()
    for (ours, java), theirs in zip(
        pairs, ask([{"do": "fields", "type": java} for _, java in pairs]), strict=True
    ):
        hints = get_type_hints(ours, include_extras=True)
        own = fields(ours)  # type: ignore[arg-type]  # every header class is a dataclass
        names = ours.LETTERS or [wire_name(one) for one in own]
        for one, name in zip(own, names, strict=True):
            if (java, name) in NOT_IN_THE_CLASS:
                continue
            kind, required = theirs[name]
            assert (one.default is MISSING) == required, (ours, name)
            assert kind in JAVA_TYPES[plain_type(hints[one.name])], (ours, name, kind)
        left_out = theirs.keys() - set(names)
        assert left_out <= COMMON, (ours, left_out)


def plain_type(hint: Any) -> Any:
    alternatives = [one for one in get_args(hint) if one is not NoneType]
    return alternatives[0] if get_origin(hint) in {Union, UnionType} else hint


def test_headers_are_read_alike_in_both_encodings() -> None:
    values = Values(533, whole=True, words=WORDS)
    sent = [
        (Frame(7, encode_fields(values.header(ours)), b"body", 5, 0, "remark", encoding=encoding), ours, java)
        for ours, java in declared_headers()
        for encoding in HeaderEncoding
    ]
    tasks = [{"do": "frame", "bytes": text(encode(frame)), "type": java} for frame, _, java in sent]
    for (frame, ours, java), facts in zip(sent, ask(tasks), strict=True):
        assert facts["fields"] == frame.fields
        numbers = facts["code"], facts["opaque"], facts["flags"], facts["version"]
        assert numbers == (frame.code, frame.opaque, frame.flags, frame.version)
        assert (facts["language"], facts["remark"]) == ("PYTHON", "remark")
        assert base64.b64decode(facts["body"]) == frame.body
        outside = {name for owner, name in NOT_IN_THE_CLASS if owner == java}
        for name in ("JSON", "ROCKETMQ"):  # What Java writes of the header that it has read.
            (written,) = FrameReader().feed(base64.b64decode(facts[name]))
            expected = replace(frame, encoding=written.encoding)
            expected.fields = {key: value for key, value in frame.fields.items() if key not in outside}
            unset = written.fields.keys() - expected.fields.keys()
            assert unset <= COMMON, (ours, unset)
            for key in unset:
                del written.fields[key]
            assert written == expected, ours


def test_frames_are_the_same_bytes() -> None:
    """Where a header has one field: Java's order of several is that of a hash table."""
    tasks, frames = [], []
    for encoding in HeaderEncoding:
        frame = Frame(105, {"topic": 't\u00fc\n"\\\x01'}, b"body", 5, 1, "remark", encoding=encoding)
        frames.append(frame)
        tasks.append({"do": "frame", "bytes": text(encode(frame)), "type": "GetRouteInfoRequestHeader"})
    for frame, facts in zip(frames, ask(tasks), strict=True):
        name = "JSON" if frame.encoding is HeaderEncoding.JSON else "ROCKETMQ"
        assert base64.b64decode(facts[name]) == encode(frame)


def test_json_bodies_are_the_same_bytes() -> None:
    values = Values(533, whole=True, words=WORDS)
    sent = [values.body(body) for body in declared_bodies()]
    tasks = [
        {"do": "body", "bytes": text(to_json(body)), "type": BODIES[type(body).__name__]} for body in sent
    ]
    for body, answer in zip(sent, ask(tasks), strict=True):
        written = base64.b64decode(answer)
        assert from_json(type(body), written) == body
        if type(body).__name__ != "QueueTimeSpans":  # Java adds its times as texts.
            assert written == to_json(body)


def declared_bodies() -> list[type[JsonBody]]:
    kinds = [kind for request in requests().values() for kind in (request.BODY, request.ANSWER_BODY)]
    found = {kind for kind in kinds if not isinstance(kind, Raw) and kind.__name__ in BODIES}
    assert len(found) == len(BODIES)
    return sorted(found, key=lambda body: body.__name__)


def test_batches_are_the_same_bytes() -> None:
    batch = encode_batch(
        [(b"one", b"TAGS\x01a\x02", 3), (b"two", b"", -1), (b"three" * 100, b"k\x01v\x02", 0)]
    )
    (answer,) = ask([{"do": "batch", "bytes": text(batch)}])
    assert base64.b64decode(answer) == batch


@pytest.mark.parametrize("version", [409, 479])
def test_a_compressed_registration_says_the_same(version: int) -> None:
    topics = {
        "orders": TopicSettings("orders", 4, 4, 6, attributes={"+message.type": "FIFO"}),
        "bills": TopicSettings("bills", 1, 1, 4),
    }
    sent = Registration(TopicTable(topics, DataVersion(3, 1_700_000_000_000, 1)), ("h:1",))
    body = encode_registration(sent, compressed=True, version=version)
    (answer,) = ask([{"do": "registration", "bytes": text(body), "version": version}])
    assert decode_registration(base64.b64decode(answer), compressed=True, version=479) == sent


def test_signatures_are_the_same() -> None:
    fields_signed = {"topic": "t\u00fc", "AccessKey": "RocketMQ", "queueId": "2"}
    content = "RocketMQ2t\u00fc".encode() + b"\x00body"
    (answer,) = ask([{"do": "sign", "content": text(content), "secret": "12345678"}])
    assert signature_of(fields_signed, b"\x00body", "12345678", 479) == answer
