"""Names with and without their namespace."""

from __future__ import annotations

import pytest

from mq.message import MessageExt
from mq.remoting.client.namespace import Namespace
from tests.support.records import encode_record

SHOP = Namespace("shop")


@pytest.mark.parametrize(
    ("plain", "wire"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("TBW102", "TBW102"),
    ],
)
def test_a_name_has_a_prefix_on_the_wire(plain: str, wire: str) -> None:
    assert SHOP.wire(plain) == wire
    assert SHOP.wire(wire) == wire
    assert SHOP.plain(wire) == plain


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("RETRY_TOPIC\x01shop%orders\x02TAGS\x01a\x02", "RETRY_TOPIC\x01orders\x02TAGS\x01a\x02"),
        ("TAGS\x01a\x02RETRY_TOPIC\x01shop%orders", "TAGS\x01a\x02RETRY_TOPIC\x01orders"),
        ("REAL_TOPIC\x01%RETRY%shop%billing", "REAL_TOPIC\x01%RETRY%billing"),
        ("DLQ_ORIGIN_TOPIC\x01shop%orders\x02", "DLQ_ORIGIN_TOPIC\x01orders\x02"),
        ("MY_RETRY_TOPIC\x01shop%a\x02RETRY_TOPIC\x01shop%a", "MY_RETRY_TOPIC\x01shop%a\x02RETRY_TOPIC\x01a"),
        ("RETRY_TOPIC\x01orders", "RETRY_TOPIC\x01orders"),
    ],
)
def test_the_topics_in_properties_have_no_namespace(stored: str, shown: str) -> None:
    """Of 4.9 the last property ends without a separator."""
    record = encode_record("%RETRY%shop%billing", 0, 0, 0, b"body", stored.encode(), checksum=False)
    (message,) = SHOP.plain_messages([MessageExt(record, "a")])
    assert message.encoded == shown.encode()
    assert message.topic == "%RETRY%billing"
    assert message.body == b"body"
