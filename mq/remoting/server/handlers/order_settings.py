"""Which topics are for messages in order: to RocketMQ's tools a setting of the name server, broker:queues.

Here it is the topic's own setting, and the count of queues is what the topic has. A name server of mq keeps
no other settings.

RocketMQ: namesrv/kvconfig/KVConfigManager.java.
"""

from __future__ import annotations

from mq.broker.local import LocalBroker
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
    broker = _directory(call, request.namespace)
    settings = broker.replication.topics().get(request.key)
    if settings is None:
        raise TopicNotFound(request.key)
    own = _value(broker, settings.write_queue_count)
    if own not in request.value.split(";"):
        raise ValueError(
            f"topic {request.key} has queues as in {own!r}, not {request.value[:200]!r}: change their count"
            " by mqadmin updateTopic"
        )
    broker.create_topic(request.key, ordered=True)
    return DONE


@handlers.on(DeleteKeyValue)
def delete(request: DeleteKeyValue, call: Call) -> Reply:
    """Mark it as ordered no more."""
    if request.key in _ordered(call, request.namespace):
        call.served.broker.create_topic(request.key, ordered=False)
    return DONE


def _ordered(call: Call, namespace: str) -> dict[str, str]:
    """The topics that are marked as ordered, with the setting of each."""
    broker = _directory(call, namespace)
    topics = broker.replication.topics().items()
    return {name: _value(broker, each.write_queue_count) for name, each in topics if each.ordered}


def _value(broker: LocalBroker, queue_count: int) -> str:
    return f"{broker.name}:{queue_count}"


def _directory(call: Call, namespace: str) -> LocalBroker:
    broker = call.served.broker
    if namespace != NAMESPACE or not isinstance(broker, LocalBroker):
        raise NotSupported(f"settings in {namespace[:200]!r} are not kept here: those in {NAMESPACE!r} are")
    return broker
