"""Storing messages on a cluster's brokers: appenders, batches, half messages.

A message gets its unique id before the first attempt, and the error of a failed attempt passes it to the next
one: so a message that was stored without an answer can be detected as a duplicate.

RocketMQ: client/impl/producer/DefaultMQProducerImpl.java, client/impl/MQClientAPIImpl.java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mq.api.bulk import Row
from mq.api.queues import Appender
from mq.api.recall import RecallHandle
from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.errors import MessageInvalid, RemotingError, RequestTimeout
from mq.fastpath import time_left
from mq.message import Message
from mq.remoting.client.broker_errors import translated
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import checked, fields_of, framed, unreadable
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.offset_id import OffsetId
from mq.remoting.codec.batch import encode_batch
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.sending import SendAnswer, SendBatchMessage, SendFields, SendMessageV2
from mq.remoting.codec.response_codes import ResponseCode
from mq.store.log.unique_id import new_unique_id, new_unique_ids

__all__ = ["PRODUCER_GROUP", "Sending"]

PRODUCER_GROUP = "mq_producer"  # for sends without transactions: brokers keep statistics by group
INHERITED_TOPIC = "TBW102"  # the template of a topic that is created by its first message
INHERITED_QUEUE_COUNT = 4
CHECKED_MAX = 1 << 16  # cached queues that may be sent to
NO_HOST = bytes(8)  # of a message that was sent oneway
DELAY_MS_MAX = 1 << 62  # beyond that, a broker's time overflows and the message is delivered at once
TRANSACTION_PREPARED = 0x4  # of sys_flag
_STATUS = {status.value: status for status in SendStatus}


class Sending:
    """The sends of one broker object. version() grows when a topic changes: then earlier appenders are
    stale."""

    def __init__(
        self,
        brokers: Brokers,
        namespace: Namespace,
        version: Callable[[], int],
        check: Callable[[MessageQueue], object],
        forget: Callable[[str], object],
    ) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._version = version
        self._check = check  # raises if a queue may not be sent to
        self._checked: dict[MessageQueue, int] = {}  # the route version of the last successful check
        self._forget = forget  # drops the route of a topic that a broker no longer has

    def appender(self, queue: MessageQueue) -> Appender:
        """See Queues.appender."""
        return self._appender(queue, PRODUCER_GROUP, b"", 0)

    def oneway_appender(self, queue: MessageQueue) -> Appender:
        """See Queues.oneway_appender."""
        return self._appender(queue, PRODUCER_GROUP, b"", 0, is_oneway=True)

    def preparer(self, queue: MessageQueue, group: str) -> Appender:
        """See Transactions.preparer."""
        wire_group = self._namespace.wire(group)
        half = f"TRAN_MSG\x01true\x02PGROUP\x01{wire_group}\x02".encode()
        return self._appender(queue, wire_group, half, TRANSACTION_PREPARED)

    def append_batch(self, queue: MessageQueue, messages: Sequence[Message]) -> SendResult:
        """See Queues.append_batch."""
        self._allow(queue)
        ids = new_unique_ids(len(messages))
        entries = [
            (message.body, with_unique_id(message.encoded, unique_id), message.flag)
            for message, unique_id in zip(messages, ids, strict=True)
        ]
        waits = all(message.wait for message in messages)
        return self._append_entries(queue, entries, ids, "" if waits else "WAIT\x01false\x02")

    def append_rows(self, queue: MessageQueue, rows: Sequence[Row]) -> SendResult:
        """See Cluster.append_rows."""
        self._allow(queue)
        ids = [row.unique_id for row in rows]
        if len(rows) > 1:
            entries = [(row.body, with_unique_id(row.properties, row.unique_id), 0) for row in rows]
            return self._append_entries(queue, entries, ids, "")
        (row,) = rows
        properties = with_unique_id(row.properties, row.unique_id).decode()
        request = self._request(SendMessageV2, queue, PRODUCER_GROUP, properties, sys_flag=0, flag=0)
        return self._stored(self._call(queue, framed(request, row.body), row.unique_id), queue, ids)

    def _append_entries(
        self,
        queue: MessageQueue,
        entries: Sequence[tuple[bytes, bytes, int]],
        ids: list[str],
        properties: str,
    ) -> SendResult:
        """Store entries of body, properties and flag as one batch message with these `properties`."""
        request = self._request(
            SendBatchMessage, queue, PRODUCER_GROUP, properties, sys_flag=0, flag=0, batch=True
        )
        return self._stored(self._call(queue, framed(request, encode_batch(entries)), None), queue, ids)

    def _appender(
        self, queue: MessageQueue, group: str, added: bytes, added_flag: int, *, is_oneway: bool = False
    ) -> Appender:
        version = self._allow(queue)

        def append(
            message: Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> SendResult | None:
            if self._version() != version:
                return None
            if message.delay_ms is not None and message.delay_ms > DELAY_MS_MAX:
                raise MessageInvalid(f"delay_ms is {message.delay_ms:,}: no broker waits for so long")
            unique_id = unique_id or new_unique_id()
            properties = with_unique_id(message.encoded + added, unique_id).decode()
            request = self._request(
                SendMessageV2, queue, group, properties, sys_flag=sys_flag | added_flag, flag=message.flag
            )
            frame = framed(request, body)
            if is_oneway:
                address = self._brokers.master(queue.broker_name)
                self._brokers.remoting.send_oneway(address, frame, time_left())
                return SendResult(SendStatus.SEND_OK, queue, -1, unique_id, (NO_HOST, 0), unique_id, 0)
            return self._stored(self._call(queue, frame, unique_id), queue, [unique_id])

        return append

    def _allow(self, queue: MessageQueue) -> int:
        """The route version, after checking that the queue may be sent to. Raises NotPermitted and the
        like."""
        version = self._version()
        if self._checked.get(queue) != version:
            self._brokers.master(queue.broker_name)
            self._check(queue)
            if len(self._checked) >= CHECKED_MAX:
                self._checked.clear()
            self._checked[queue] = version
        return version

    def _request(
        self,
        kind: type[SendMessageV2 | SendBatchMessage],
        queue: MessageQueue,
        group: str,
        properties: str,
        *,
        sys_flag: int,
        flag: int,
        batch: bool = False,
    ) -> SendFields:
        wire_topic = self._namespace.wire(queue.topic)
        self._brokers.cluster.use(wire_topic)
        return kind(
            producer_group=group,
            topic=wire_topic,
            default_topic=INHERITED_TOPIC,
            default_topic_queue_nums=INHERITED_QUEUE_COUNT,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=flag,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=batch,
            broker_name=queue.broker_name,
        )

    def _call(self, queue: MessageQueue, request: Frame, unique_id: str | None) -> Frame:
        """The answer of a broker that has stored the message. An error after which the message may still have
        been stored carries the unique id."""
        address = self._brokers.master(queue.broker_name)
        try:
            answer = self._brokers.remoting.call(address, request, time_left())
            return checked(answer, SendMessageV2, address, _STATUS)
        except (RemotingError, RequestTimeout) as error:
            if isinstance(error, RemotingError) and error.code is not None:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    self._forget(queue.topic)
                raise self._named(error, queue.topic, unique_id) from None
            error.unique_id = unique_id
            raise

    def _named(self, error: RemotingError, topic: str, unique_id: str | None) -> RemotingError:
        found = translated(error, topic)
        found.unique_id = unique_id
        return found

    def _stored(self, answer: Frame, queue: MessageQueue, ids: list[str]) -> SendResult:
        try:
            fields = fields_of(SendAnswer, answer)
            host, offsets = placed(fields.msg_id, len(ids))
        except RemotingError as error:
            # The broker has stored them: a retry must have the same unique id.
            failure = error if error.address is not None else unreadable(answer, error)
            failure.unique_id = ids[0] if len(ids) == 1 else None
            raise failure from None
        handle = fields.recall_handle
        return SendResult(
            _STATUS[answer.code],
            queue._replace(queue_id=fields.queue_id),
            fields.queue_offset,
            ids[0] if len(ids) == 1 else ids,
            (host, offsets[0] if len(offsets) == 1 else offsets),
            fields.transaction_id or ids[0],
            RecallHandle.of(handle).out_ms if handle else 0,
        )


def with_unique_id(properties: bytes, unique_id: str) -> bytes:
    """The property string of a message with its unique id added."""
    return properties + f"UNIQ_KEY\x01{unique_id}\x02".encode()


def placed(msg_id: str, count: int) -> tuple[bytes, list[int]]:
    """The store host, and the log offset of each message, from the offset ids in a broker's answer. Raises
    RemotingError."""
    places = [place for text in msg_id.split(",") if (place := OffsetId.of(text)) is not None]
    if len(places) != count or msg_id.count(",") != count - 1:
        raise RemotingError(f"a broker stored {count} messages, and says that their ids are {msg_id[:200]!r}")
    return places[0].host, [place.log_offset for place in places]
