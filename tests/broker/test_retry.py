"""Handed back and tried again, sixteen times and then no more: what is stored, where, and when it comes.

The attempts run on a store in memory with a clock that is set (store.py); what is stored, on a broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq
from mq.broker.delay.levels import SCHEDULE_TOPIC
from mq.broker.groups.retry import handed_back
from mq.broker.local import LocalBroker
from mq.message import MessageExt
from mq.store.directory.delay_levels import LEVELS, parse_levels
from mq.store.log.reappend import changed
from tests.broker.fake_delay_store import Deliverer, FakeDelayStore, until_done
from tests.support import assigned
from tests.support.store.encoder import Record

MINUTE = 60_000
# What RocketMQ waits before each attempt, ms.
ATTEMPTS_MS = [
    10_000,
    30_000,
    *(MINUTE * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]


def message_of(properties: str = "", *, topic: str = "orders", times: int = 0) -> MessageExt:
    record = Record(topic, b"body", properties.encode(), queue_id=3, log_offset=4096, reconsume_times=times)
    return MessageExt(record.encode(), "mq")


class TestAttempts:
    """On a clock that is set."""

    def test_all_sixteen_come_after_their_delays_and_then_a_dead_letter(self, tmp_path: Path) -> None:
        store = FakeDelayStore()
        deliverer = Deliverer(store, tmp_path, parse_levels(LEVELS))
        store.put("orders", 2, b"body", b"UNIQ_KEY\x01ID\x02TAGS\x01t\x02own\x01value\x02")
        (message,) = store.delivered("orders", 2)
        born, origin = message.born_time_ms, message.offset_msg_id
        waited = []
        while True:
            failed_at = store.now
            back = handed_back(message, "billing")
            if back.delay_level == 0:
                break
            aside = {"DELAY": str(back.delay_level), "REAL_TOPIC": back.topic, "REAL_QID": "0"}
            store.put(
                SCHEDULE_TOPIC,
                back.delay_level - 1,
                message.stored_body,
                changed(message.encoded, {**back.properties, **aside}),
                reconsume_times=back.reconsume_times,
                born_time=message.born_time_ms,
            )
            list(until_done(store, deliverer.deliver))
            message = store.delivered("%RETRY%billing")[-1]
            # To the ms in which the delay ends, which has to be over.
            waited.append(store.now - failed_at - 1)
            store.now += 50  # The listener fails some time later.
            assert message.reconsume_times == len(waited)
            assert (message.msg_id, message.tags, message.body, message.born_time_ms) == (
                "ID",
                "t",
                b"body",
                born,
            )
            properties = message.properties
            assert properties["own"] == "value"
            assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("orders", origin)
        assert waited == ATTEMPTS_MS
        assert len(store.delivered("%RETRY%billing")) == 16
        assert (back.topic, back.reconsume_times) == ("%DLQ%billing", 17)
        assert back.properties["DLQ_ORIGIN_TOPIC"] == "orders"
        assert back.properties["DLQ_ORIGIN_MESSAGE_ID"] == origin

    @pytest.mark.parametrize(("times", "level"), [(0, 3), (1, 4), (15, 18)])
    def test_the_delay_grows_with_the_attempts(self, times: int, level: int) -> None:
        assert handed_back(message_of(times=times), "g").delay_level == level

    def test_or_is_the_one_that_was_asked_for(self) -> None:
        assert handed_back(message_of(times=7), "g", 2).delay_level == 2

    @pytest.mark.parametrize(("times", "limit"), [(16, 16), (17, 16), (3, 3), (0, 0), (16, -1)])
    def test_the_last_failure_makes_a_dead_letter(self, times: int, limit: int) -> None:
        back = handed_back(message_of(times=times), "g", 5, limit)
        assert (back.topic, back.delay_level, back.reconsume_times) == ("%DLQ%g", 0, times + 1)

    def test_a_level_below_zero_makes_one_at_once(self) -> None:
        assert handed_back(message_of(), "g", -1).topic == "%DLQ%g"

    @pytest.mark.parametrize(("times", "limit"), [(15, 16), (15, -1), (2, 3)])
    def test_a_retry_is_not_delivered_before_its_delay(self, times: int, limit: int) -> None:
        assert handed_back(message_of(times=times), "g", 0, limit).topic == "%RETRY%g"

    def test_the_first_topic_and_the_first_id_stay(self) -> None:
        first = message_of()
        properties = handed_back(first, "g").properties
        assert properties["RETRY_TOPIC"] == "orders"
        assert properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
        later = message_of("RETRY_TOPIC\x01first\x02ORIGIN_MESSAGE_ID\x01AB\x02", topic="%RETRY%g", times=1)
        properties = handed_back(later, "g").properties
        assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("first", "AB")


class TestBroker:
    @pytest.fixture(params=["async", "sync"])
    def broker(self, directory: Path, request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
        with mq.open(directory, flush=request.param, message_delay_level="30ms 60ms") as broker:
            broker.create_topic("orders", 1)
            yield broker

    @pytest.fixture
    def message(self, broker: LocalBroker) -> mq.MessageExt:
        topic = broker.topic("orders")
        topic.send(b"zipped " * 2000, tags="t", keys="k1", properties={"own": "value"})
        return topic.queues[0].read(0).messages[0]

    @staticmethod
    def came(broker: LocalBroker, topic: str, offset: int = 0) -> mq.MessageExt:
        (queue,) = broker.topic(topic).queues
        (message,) = queue.read(offset, wait=60.0).messages
        return message

    def test_it_comes_again_in_the_retry_topic(self, broker: LocalBroker, message: mq.MessageExt) -> None:
        before = time.time()
        assigned.send_back(broker, message, "billing", delay_level=2)
        again = self.came(broker, "%RETRY%billing")
        assert time.time() - before >= 0.06
        assert (again.topic, again.queue_id, again.reconsume_times) == ("%RETRY%billing", 0, 1)
        same = (
            "body",
            "stored_body",
            "flag",
            "sys_flag",
            "tags",
            "keys",
            "msg_id",
            "born_time_ms",
            "born_host",
        )
        assert [getattr(again, name) for name in same] == [getattr(message, name) for name in same]
        assert again.properties == {
            **message.properties,
            "RETRY_TOPIC": "orders",
            "ORIGIN_MESSAGE_ID": message.offset_msg_id,
            "WAIT": "false",
            "DELAY": "2",
            "REAL_TOPIC": "%RETRY%billing",
            "REAL_QID": "0",
        }

    def test_and_again_from_there(self, broker: LocalBroker, message: mq.MessageExt) -> None:
        origin = message.offset_msg_id
        for times in range(1, 4):
            assigned.send_back(broker, message, "billing")  # There is no level above the last one.
            again = self.came(broker, "%RETRY%billing", times - 1)
            assert again.reconsume_times == times
            assert again.properties["ORIGIN_MESSAGE_ID"] == origin != again.offset_msg_id
            assert again.properties["RETRY_TOPIC"] == "orders"
            message = again

    def test_a_dead_letter_can_be_read_at_once(self, broker: LocalBroker, message: mq.MessageExt) -> None:
        assigned.send_back(broker, message, "billing", max_reconsume_times=0)
        (queue,) = broker.topic("%DLQ%billing").queues
        (dead,) = queue.read(0, wait=60.0).messages
        assert (dead.body, dead.msg_id, dead.reconsume_times) == (message.body, message.msg_id, 1)
        assert dead.properties == {
            **message.properties,
            "RETRY_TOPIC": "orders",
            "ORIGIN_MESSAGE_ID": message.offset_msg_id,
            "DLQ_ORIGIN_TOPIC": "orders",
            "DLQ_ORIGIN_MESSAGE_ID": message.offset_msg_id,
            "WAIT": "false",
            "DELAY": "0",
        }
        assert queue.read(0, expression="t").messages == [dead]
        assert broker.query("%DLQ%billing", "k1") == [dead]

    def test_each_group_has_its_own(self, broker: LocalBroker, message: mq.MessageExt) -> None:
        assigned.send_back(broker, message, "a", delay_level=1)
        assigned.send_back(broker, message, "b", delay_level=1)
        assert self.came(broker, "%RETRY%a").msg_id == self.came(broker, "%RETRY%b").msg_id == message.msg_id

    def test_a_message_without_an_id_gets_the_one_that_it_had(self, broker: LocalBroker) -> None:
        """As another program may have stored it: its id is the place where it was stored."""
        bare = message_of("TAGS\x01t\x02")
        assigned.send_back(broker, bare, "billing", delay_level=1)
        assert self.came(broker, "%RETRY%billing").msg_id == bare.msg_id == bare.offset_msg_id

    def test_a_born_host_of_more_bytes_is_kept(self, broker: LocalBroker) -> None:
        host = bytes.fromhex("20010db8000000000000000000000001") + (51000).to_bytes(4, "big")
        record = Record("orders", b"v6", b"UNIQ_KEY\x01ID\x02", sys_flag=0x10, born_host=host).encode()
        assigned.send_back(broker, MessageExt(record, "mq"), "billing", delay_level=1)
        again = self.came(broker, "%RETRY%billing")
        assert (again.born_host, again.body) == ("[2001:db8::1]:51000", b"v6")

    def test_a_topic_that_may_not_be_written_refuses(
        self, broker: LocalBroker, message: mq.MessageExt
    ) -> None:
        broker.create_topic("%RETRY%billing", 1, perm="r")
        with pytest.raises(mq.NotPermitted, match="%RETRY%billing"):
            assigned.send_back(broker, message, "billing")

    def test_what_is_no_group_is_refused(self, broker: LocalBroker, message: mq.MessageExt) -> None:
        with pytest.raises(mq.GroupInvalid):
            assigned.send_back(broker, message, "no group")

    def test_properties_that_leave_no_room_are_refused(self, broker: LocalBroker) -> None:
        topic = broker.topic("orders")
        topic.send(b"x", properties={"p": "v" * 32_600})
        with pytest.raises(mq.MessageInvalid, match="properties"):
            assigned.send_back(broker, topic.queues[0].read(0).messages[0], "billing")

    def test_without_automatic_topics_too(self, directory: Path, message: mq.MessageExt) -> None:
        with mq.open(directory, auto_create_topics=False, message_delay_level="30ms 60ms") as broker:
            assigned.send_back(broker, message, "billing", delay_level=1)
            assert self.came(broker, "%RETRY%billing").body == message.body


def test_a_read_only_process_sends_nothing_back(directory: Path) -> None:
    with mq.open(directory) as broker:
        broker.create_topic("orders", 1).send(b"x")
    with mq.open(directory, read_only=True) as broker:
        (message,) = broker.topic("orders").queues[0].read(0).messages
        with pytest.raises(mq.NotPermitted, match="read_only"):
            assigned.send_back(broker, message, "billing")
