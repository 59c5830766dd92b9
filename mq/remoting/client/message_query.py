"""Queries for messages of a cluster: by offset id, by unique id, by key; and the recall of delayed messages.

RocketMQ: client/impl/MQAdminImpl.java.
"""

from __future__ import annotations

import time

from mq.api.queries import check_query
from mq.api.recall import RecallHandle
from mq.errors import MessageNotFound, MQError, NotPermitted, RemotingError, TopicNotFound
from mq.message import MessageExt
from mq.names import is_system_topic
from mq.properties import value_of
from mq.remoting.client.broker_errors import denied, is_final, no_route, translated
from mq.remoting.client.brokers import Brokers
from mq.remoting.client.connections.answers import checked, fields_of, framed, records_of
from mq.remoting.client.namespace import Namespace
from mq.remoting.client.offset_id import OffsetId
from mq.remoting.client.sending import PRODUCER_GROUP
from mq.remoting.client.topics import RemoteTopics
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.language import Language
from mq.remoting.codec.requests.consuming import QueryMessage, ViewMessageById
from mq.remoting.codec.requests.sending import RecallAnswer, RecallMessage
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["MessageQuery"]

INDEX_MS = 1000  # RocketMQ's index stores whole seconds, rounded down, so queries begin one second earlier
COUNT_MAX = 32  # messages of one unique id that a broker is asked for


class MessageQuery:
    """The message queries of one broker object."""

    def __init__(self, brokers: Brokers, namespace: Namespace, topics: RemoteTopics) -> None:
        self._brokers = brokers
        self._namespace = namespace
        self._topics = topics

    def message(self, msg_id: str) -> MessageExt:
        """See Broker.message. A unique id is searched in all topics, on every broker that answers. Raises the
        error of one that does not only if no other broker has the message."""
        failures = dict[str, MQError]()
        found = self._by_offset_id(msg_id, failures)
        if found is not None:
            return found
        for topic in self._topics.names() if msg_id else ():
            try:
                newest = self._query(topic, msg_id, COUNT_MAX, 0, None, failures)
            except (TopicNotFound, NotPermitted):
                continue  # The topic was deleted just now, or may not be read.
            for message in newest:
                if message.msg_id == msg_id:
                    return message
        for error in failures.values():
            raise error
        raise MessageNotFound(msg_id)

    def query(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int | None
    ) -> list[MessageExt]:
        """See Broker.query. A broker indexes a message some ms after it was stored. If one does not answer,
        its error is raised, since the list would lack its messages."""
        return self._query(topic, key, count_max, begin_ms, end_ms, None)

    def _query(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int | None,
        failures: dict[str, MQError] | None,
    ) -> list[MessageExt]:
        """See query(). With `failures`, by broker name, those that fail are left out and noted there."""
        if not self._topics.exists(topic):
            raise no_route(topic, self._brokers.cluster.name_servers)
        check_query(key, count_max, begin_ms, end_ms)
        end_ms = time.time_ns() // 1_000_000 + 60_000 if end_ms is None else end_ms
        found: dict[str, MessageExt] = {}
        names = sorted({queue.broker_name for queue in self._topics.readable(topic)})
        for name in names:
            if failures is not None and name in failures and not _is_answer(failures[name]):
                continue  # It would be waited for again in each topic.
            try:
                for is_unique_key in (False, True):
                    found |= self._of_broker(name, topic, key, is_unique_key, count_max, begin_ms, end_ms)
            except MQError as error:
                if failures is None:
                    raise
                if not isinstance(error, (TopicNotFound, NotPermitted)):
                    failures.setdefault(name, error)
        newest = sorted(
            found.values(), key=lambda message: (message.store_time_ms, message.log_offset), reverse=True
        )
        return newest[:count_max]

    def _of_broker(
        self,
        name: str,
        topic: str,
        key: str,
        is_unique_key: bool,
        count_max: int,
        begin_ms: int,
        end_ms: int,
    ) -> dict[str, MessageExt]:
        """What a broker has, by offset id. One answer has the newest messages, up to a limit of the broker,
        so it is asked again for older ones until it has none. More than that in one step of its index, it
        cannot tell: the rest of that step is passed over."""
        found: dict[str, MessageExt] = {}
        wire_topic, begin, until = self._namespace.wire(topic), max(begin_ms - INDEX_MS, 0), end_ms
        while until >= begin:
            request = QueryMessage(wire_topic, key, count_max, begin, until, is_unique_key)
            answer = self._brokers.ask(name, request, also=(ResponseCode.QUERY_NOT_FOUND,))
            messages = self._decoded(answer, name) if answer.code == ResponseCode.SUCCESS else []
            new = {
                message.offset_msg_id: message
                for message in messages
                if message.offset_msg_id not in found
                and begin_ms <= message.store_time_ms <= end_ms
                and _has(message, key)
            }
            found |= new
            oldest = min((message.store_time_ms for message in messages), default=0)
            if not messages or oldest >= until + INDEX_MS or len(found) >= count_max:
                break  # Later ones it was not asked for, and would tell for ever.
            # RocketMQ's index counts seconds from any ms on; a served directory finds each ms.
            step = 1 if answer.language is Language.PYTHON else INDEX_MS
            until = oldest if new else oldest - step
        return found

    def recall(self, handle: str) -> str:
        """See Broker.recall."""
        recalled = RecallHandle.of(handle)
        if is_system_topic(recalled.topic):
            raise ValueError(
                f"this recall handle is of {recalled.topic}, which is one of RocketMQ's own topics"
            )
        self._check_broker(recalled)
        wire_topic = self._namespace.wire(recalled.topic)
        request = RecallMessage(wire_topic, str(recalled._replace(topic=wire_topic)), PRODUCER_GROUP)
        try:
            answer = self._brokers.ask(recalled.broker_name, request)
        except RemotingError as error:
            if error.code == ResponseCode.ILLEGAL_OPERATION:
                text = f"message {recalled.unique_id} cannot be recalled: {error}"
                raise denied(text, error.address, code=error.code, remark=error.remark) from error
            raise
        return fields_of(RecallAnswer, answer).msg_id

    def _check_broker(self, recalled: RecallHandle) -> None:
        """Raises ValueError if the handle belongs to a broker of another cluster."""
        cluster = self._brokers.cluster
        if cluster.any_address(recalled.broker_name) is None:
            known = self._brokers.names()
            if recalled.broker_name not in known:
                raise ValueError(
                    f"this recall handle is of broker {recalled.broker_name!r}; those of this cluster are:"
                    f" {', '.join(known)}"
                )

    def _by_offset_id(self, msg_id: str, failures: dict[str, MQError]) -> MessageExt | None:
        place = OffsetId.of(msg_id)
        name = self._name_of(place.address) if place is not None else None
        if place is None or name is None:
            return None  # A unique id may look like an offset id.
        try:
            answer = self._brokers.remoting.call(place.address, framed(ViewMessageById(place.log_offset)))
            checked(answer, ViewMessageById, place.address)
            messages = self._decoded(answer, name)
        except MQError as error:
            if not _is_missing(error):
                failures[name] = translated(error) if isinstance(error, RemotingError) else error
            return None
        return messages[0] if messages and messages[0].log_offset == place.log_offset else None

    def _decoded(self, answer: Frame, broker_name: str) -> list[MessageExt]:
        return self._namespace.plain_messages(records_of(answer, broker_name))

    def _name_of(self, address: str) -> str | None:
        self._brokers.names()
        for name, broker in self._brokers.cluster.brokers.items():
            if address in broker.broker_addrs.values():
                return name
        return None


def _is_answer(error: MQError) -> bool:
    """Whether a broker has answered with this error."""
    return isinstance(error, RemotingError) and error.code is not None


def _is_missing(error: MQError) -> bool:
    """Whether a broker has answered that it has no message there. A denial of 4.9 has the same code."""
    return (
        isinstance(error, RemotingError) and error.code == ResponseCode.SYSTEM_ERROR and not is_final(error)
    )


def _has(message: MessageExt, key: str) -> bool:
    """Whether a message has this key or unique id: a broker finds messages by hash only."""
    return message.msg_id == key or key in (value_of(message.encoded, b"KEYS\x01") or "").split()
