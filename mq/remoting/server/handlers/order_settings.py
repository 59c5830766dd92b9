"""Which topics are for messages in order: to RocketMQ's tools a setting of the name server, broker:queues.

Here it is the topic's own setting, and the count of queues is what the topic has. A name server of mq keeps
no other settings.

RocketMQ: namesrv/kvconfig/KVConfigManager.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from mq.broker.topics.config import TopicSettings
from mq.errors import NotSupported, TopicNotFound
from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.requests.name_servers import (
    DeleteKeyValue,
    GetKeyValue,
    GetKeyValues,
    PutKeyValue,
    ValueAnswer,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.handlers.standby import replication_of
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()

NAMESPACE = "ORDER_TOPIC_CONFIG"


@handlers.on(GetKeyValue)
def get(request: GetKeyValue, call: Call) -> Reply:
    found = _ordered(call, request.namespace).get(request.key)
    if found is None:
        raise Refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {request.namespace} Key: {request.key[:200]}",
        )
    return Reply(ValueAnswer(found))


@handlers.on(GetKeyValues)
def get_all(request: GetKeyValues, call: Call) -> Reply:
    return Reply(body=KeyValues(_ordered(call, request.namespace)))


@handlers.on(PutKeyValue)
def put(request: PutKeyValue, call: Call) -> Reply:
    """Mark a topic as ordered. Its queues are those that it has: another count is refused."""
    settings = _topics(call, request.namespace).get(request.key)
    if settings is None:
        raise TopicNotFound(request.key)
    own = _value(call, settings.write_queue_count)
    if own not in request.value.split(";"):
        raise ValueError(
            f"topic {request.key} has queues as in {own!r}, not {request.value[:200]!r}: change their count"
            " by mqadmin updateTopic"
        )
    call.served.broker.create_topic(request.key, ordered=True)
    return DONE


@handlers.on(DeleteKeyValue)
def delete(request: DeleteKeyValue, call: Call) -> Reply:
    """Mark it as ordered no more."""
    if request.key in _ordered(call, request.namespace):
        call.served.broker.create_topic(request.key, ordered=False)
    return DONE


def _ordered(call: Call, namespace: str) -> dict[str, str]:
    """The topics that are marked as ordered, with the setting of each."""
    topics = _topics(call, namespace).items()
    return {name: _value(call, each.write_queue_count) for name, each in topics if each.ordered}


def _value(call: Call, queue_count: int) -> str:
    return f"{call.served.broker.name}:{queue_count}"


def _topics(call: Call, namespace: str) -> Mapping[str, TopicSettings]:
    if namespace != NAMESPACE:
        raise NotSupported(f"settings in {namespace[:200]!r} are not kept here: those in {NAMESPACE!r} are")
    return replication_of(call, "the setting of a topic's order").topics()
