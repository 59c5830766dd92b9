"""Frames worked out by hand, and read by RocketMQ 4.9.8: we write and read the same, byte for byte."""

from __future__ import annotations

from mq.remoting.codec.batch import decode_batch, encode_batch
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup, Subscription
from mq.remoting.codec.fields import decode_fields, encode_fields
from mq.remoting.codec.frame import Frame, FrameReader, HeaderEncoding, encode
from mq.remoting.codec.json_body import from_json, to_json
from mq.remoting.codec.language import Language
from mq.remoting.codec.records import decode_records
from mq.remoting.codec.requests.consuming import PullAnswer, PullMessage
from mq.remoting.codec.requests.groups import HeartBeat
from mq.remoting.codec.requests.name_servers import GetRoute
from mq.remoting.codec.requests.offsets import UpdateConsumerOffset
from mq.remoting.codec.requests.sending import SendAnswer, SendMessageV2
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import Credentials, is_signed_by, signature_of, signed
from tests.remoting.vectors import PULLED

JAVA_4_9_8 = {"language": Language.JAVA, "version": 409}

ROUTE = (
    "00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696354657374227d2c22"
    "666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a312c2273657269616c697a655479706543757272"
    "656e74525043223a224a534f4e222c2276657273696f6e223a3430397d"
)
BINARY_ROUTE = (
    "0000002d010000290069030199000000020000000000000000000000140005746f70696300000009546f70696354657374"
)
BINARY_NO_ROUTE = "000000210100001d00110001990000000200000001000000086e6f20726f75746500000000"
SEND = (
    "00000179000001707b22636f6465223a3331302c226578744669656c6473223a7b2261223a225049445f41222c2262223a22546f"
    "70696354657374222c2263223a22544257313032222c2264223a2234222c2265223a2232222c2266223a2230222c2267223a2231"
    "373030303030303030303030222c2268223a2230222c2269223a224b4559535c75303030316b315c7530303032554e49515f4b45"
    "595c753030303137463030303030313030303130303030303030303030303030303041303030305c7530303032574149545c7530"
    "303031747275655c7530303032544147535c7530303031546167415c7530303032222c226a223a2230222c226b223a2266616c73"
    "65222c226d223a2266616c7365222c226e223a2262726f6b65722d61227d2c22666c6167223a302c226c616e6775616765223a22"
    "4a415641222c226f7061717565223a332c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276"
    "657273696f6e223a3430397d68656c6c6f"
)
SENT = (
    "0000011e0000011a7b22636f6465223a302c226578744669656c6473223a7b226d73674964223a22374630303030303130303030324139"
    "4630303030303030303030303031303030222c2271756575654964223a2232222c2271756575654f6666736574223a2235222c22747261"
    "6e73616374696f6e4964223a223746303030303031303030313030303030303030303030303030304130303030222c224d53475f524547"
    "494f4e223a2244656661756c74526567696f6e222c2254524143455f4f4e223a2274727565227d2c22666c6167223a312c226c616e6775"
    "616765223a224a415641222c226f7061717565223a332c2273657269616c697a655479706543757272656e74525043223a224a534f4e22"
    "2c2276657273696f6e223a3430397d"
)
HEARTBEAT = (
    "00000201000000607b22636f6465223a33342c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a"
    "352c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3430397d7b22636c6965"
    "6e744944223a223132372e302e302e314031222c22636f6e73756d657244617461536574223a5b7b22636f6e73756d6546726f6d576865"
    "7265223a22434f4e53554d455f46524f4d5f4c4153545f4f4646534554222c22636f6e73756d6554797065223a22434f4e53554d455f50"
    "4153534956454c59222c2267726f75704e616d65223a224349445f41222c226d6573736167654d6f64656c223a22434c5553544552494e"
    "47222c22737562736372697074696f6e44617461536574223a5b7b22636c61737346696c7465724d6f6465223a66616c73652c22636f64"
    "65536574223a5b323539383931395d2c2265787072657373696f6e54797065223a22544147222c22737562537472696e67223a22546167"
    "41222c2273756256657273696f6e223a313730303030303030303030302c2274616773536574223a5b2254616741225d2c22746f706963"
    "223a22546f70696354657374227d5d2c22756e69744d6f6465223a66616c73657d5d2c2270726f647563657244617461536574223a5b7b"
    "2267726f75704e616d65223a225049445f41227d5d7d"
)
BINARY_ONEWAY = (
    "0000006601000062000f0001990000000600000002000000000000004d000d636f6e73756d657247726f7570000000054349445f410005"
    "746f70696300000009546f706963546573740007717565756549640000000132000c636f6d6d69744f66667365740000000136"
)
BATCH = (
    "0000001f0000000000000000000000000000000262300007544147530154020000001f0000000000000000000000000000000262310007"
    "54414753015402"
)
PROPERTIES = "KEYS\x01k1\x02UNIQ_KEY\x017F0000010001000000000000000A0000\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def read(text: str) -> Frame:
    (frame,) = FrameReader().feed(bytes.fromhex(text))
    return frame


def test_a_json_request_encodes_as_rocketmqs() -> None:
    frame = Frame(GetRoute.CODE, encode_fields(GetRoute("TopicTest")), opaque=1, **JAVA_4_9_8)  # type: ignore[arg-type]  # of several types
    assert encode(frame).hex() == ROUTE
    assert read(ROUTE) == frame


def test_a_binary_request_encodes_as_rocketmqs() -> None:
    frame = Frame(
        GetRoute.CODE,
        encode_fields(GetRoute("TopicTest")),
        opaque=2,
        version=409,
        encoding=HeaderEncoding.BINARY,
    )
    assert encode(frame).hex() == BINARY_ROUTE
    assert read(BINARY_ROUTE) == frame


def test_a_binary_answer_with_a_remark() -> None:
    frame = Frame(
        ResponseCode.TOPIC_NOT_EXIST,
        opaque=2,
        flags=1,
        remark="no route",
        encoding=HeaderEncoding.BINARY,
        **JAVA_4_9_8,  # type: ignore[arg-type]  # of several types
    )
    assert encode(frame).hex() == BINARY_NO_ROUTE
    assert read(BINARY_NO_ROUTE) == frame
    assert frame.is_response
    assert not frame.is_oneway


def test_a_send_request_encodes_as_rocketmqs() -> None:
    header = SendMessageV2(
        "PID_A",
        "TopicTest",
        "TBW102",
        4,
        2,
        0,
        1_700_000_000_000,
        0,
        PROPERTIES,
        0,
        False,
        None,
        False,
        "broker-a",
    )
    frame = Frame(SendMessageV2.CODE, encode_fields(header), b"hello", opaque=3, **JAVA_4_9_8)  # type: ignore[arg-type]  # of several types
    assert encode(frame).hex() == SEND
    assert decode_fields(SendMessageV2, read(SEND).fields) == header
    assert read(SEND).body == b"hello"


def test_the_answer_to_a_send() -> None:
    answer = SendAnswer(
        "7F00000100002A9F0000000000001000",
        2,
        5,
        "7F0000010001000000000000000A0000",
        region="DefaultRegion",
        trace_on="true",
    )
    frame = Frame(ResponseCode.SUCCESS, encode_fields(answer), opaque=3, flags=1, **JAVA_4_9_8)  # type: ignore[arg-type]  # of several types
    assert encode(frame).hex() == SENT
    assert decode_fields(SendAnswer, read(SENT).fields) == answer


def test_a_message_that_was_pulled() -> None:
    frame = read(PULLED)
    assert decode_fields(PullMessage.ANSWER, frame.fields) == PullAnswer(0, 6, 0, 6)
    (message,) = decode_records(frame.body, "broker-a")
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 2, 5)
    assert (message.body, message.keys, message.tags) == (b"hello", ("k1",), "TagA")
    assert (message.born_host, message.store_host) == ("127.0.0.1:54321", "127.0.0.1:10911")
    assert message.log_offset == 4096
    assert message.body_crc == 0x3610A686


def test_a_heartbeat_encodes_as_rocketmqs() -> None:
    frame = read(HEARTBEAT)
    assert frame.code == HeartBeat.CODE
    assert frame.fields == {}
    heartbeat = Heartbeat(
        "127.0.0.1@1",
        (ProducerGroup("PID_A"),),
        (
            ConsumerGroup(
                "CID_A",
                subscription_data_set=(
                    Subscription("TopicTest", "TagA", "TAG", ("TagA",), (2598919,), 1_700_000_000_000),
                ),
            ),
        ),
    )
    assert from_json(Heartbeat, frame.body) == heartbeat
    # 5.x has two members more.
    ours = to_json(heartbeat).replace(b'"heartbeatFingerprint":0,', b"").replace(b',"withoutSub":false', b"")
    assert ours == frame.body


def test_a_oneway_offset_commit_encodes_as_rocketmqs() -> None:
    header = UpdateConsumerOffset("CID_A", "TopicTest", 2, 6)
    frame = Frame(
        UpdateConsumerOffset.CODE,
        encode_fields(header),
        opaque=6,
        flags=2,
        encoding=HeaderEncoding.BINARY,
        **JAVA_4_9_8,  # type: ignore[arg-type]  # of several types
    )
    assert encode(frame).hex() == BINARY_ONEWAY
    assert read(BINARY_ONEWAY) == frame
    assert frame.is_oneway


def test_the_body_of_a_batch() -> None:
    entries = [(b"b0", b"TAGS\x01T\x02", 0), (b"b1", b"TAGS\x01T\x02", 0)]
    assert encode_batch(entries).hex() == BATCH
    assert decode_batch(bytes.fromhex(BATCH)) == entries


def test_signatures_are_rocketmqs() -> None:
    pull = {"AccessKey": "RocketMQ", "queueId": "2", "topic": "TopicTest"}
    assert signature_of(pull, b"", "12345678", 409) == "f6pvscTLZgPnFQLvMUrJAMrEfxg="
    send = signed({"a": "PID_A", "b": "TopicTest"}, b"hello", Credentials("RocketMQ", "12345678"), 409)
    assert send["Signature"] == "PmSFbI7WVs4NADOJiGrzCAKkcJk="
    assert is_signed_by(send, b"hello", "12345678")
    assert not is_signed_by(send, b"hellO", "12345678")
    assert not is_signed_by({"a": "PID_A"}, b"hello", "12345678")


def test_old_servers_leave_one_field_out_of_the_signature() -> None:
    query = {"topic": "TopicTest", "_UNIQUE_KEY_QUERY": "true"}
    without = signature_of({"topic": "TopicTest"}, b"", "12345678", 0)
    assert signature_of(query, b"", "12345678", 432) == without
    assert signature_of(query, b"", "12345678", 433) != without
    for version in (432, 433):
        assert is_signed_by(signed(query, b"", Credentials("k", "12345678"), version), b"", "12345678")


def test_credentials_keep_their_secrets() -> None:
    assert "12345678" not in repr(Credentials("RocketMQ", "12345678", "87654321"))
    assert "87654321" not in repr(Credentials("RocketMQ", "12345678", "87654321"))
