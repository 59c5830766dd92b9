"""Making, changing and deleting topics.

RocketMQ: broker/processor/AdminBrokerProcessor.java, namesrv/processor/DefaultRequestProcessor.java.
"""

from __future__ import annotations

import time
from contextlib import suppress

from mq.api.topic import Permission
from mq.broker.replication import Replicated
from mq.broker.topics.config import TopicSettings as KeptTopic
from mq.errors import TopicNotFound
from mq.remoting.codec.bodies.route import READ, WRITE
from mq.remoting.codec.bodies.settings import DataVersion, TopicSettings, TopicTable
from mq.remoting.codec.requests.name_servers import DeleteTopicInNameServer
from mq.remoting.codec.requests.topics import (
    AllTopicsAnswer,
    DeleteTopicInBroker,
    GetAllTopics,
    GetTopic,
    UpdateTopic,
)
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.handlers.routes import queue_counts
from mq.remoting.server.replies import DONE, Reply
from mq.remoting.server.served import Served

__all__ = ["handlers", "letters"]

handlers = Handlers()


@handlers.on(UpdateTopic)
def update(request: UpdateTopic, call: Call) -> Reply:
    call.served.broker.create_topic(
        request.topic,
        read_queue_count=request.read_queue_nums,
        write_queue_count=request.write_queue_nums,
        perm=letters(request.perm),
        ordered=request.order,
    )
    return DONE


@handlers.on(DeleteTopicInBroker)
def delete(request: DeleteTopicInBroker, call: Call) -> Reply:
    with suppress(TopicNotFound):  # RocketMQ's brokers say so of any topic.
        call.served.broker.delete_topic(request.topic)
    return DONE


@handlers.on(DeleteTopicInNameServer)
def forget(_request: DeleteTopicInNameServer, _call: Call) -> Reply:
    """Nothing: routes are what the broker has."""
    return DONE


@handlers.on(GetTopic)
def topic(request: GetTopic, call: Call) -> Reply:
    found = settings_of(call.served, request.topic)
    if found is None:
        raise TopicNotFound(request.topic)
    return Reply(body=found)


@handlers.on(GetAllTopics)
def all_topics(_: GetAllTopics, call: Call) -> Reply:
    """All of them on one page."""
    broker = call.served.broker
    if isinstance(broker, Replicated):
        told = broker.replication.topics()
        table = {name: _kept(settings) for name, settings in list(told.items())}
        # A slave drops a table of a version that it knows, and versions begin anew with the control file.
        version = DataVersion(broker.route_version(), time.time_ns() // 1_000_000)
        return Reply(AllTopicsAnswer(len(table)), TopicTable(table, version))
    found = {name: settings_of(call.served, name) for name in broker.topics()}
    table = {name: settings for name, settings in found.items() if settings is not None}
    return Reply(AllTopicsAnswer(len(table)), TopicTable(table, DataVersion(broker.route_version())))


def _kept(settings: KeptTopic) -> TopicSettings:
    return TopicSettings(
        settings.name,
        settings.read_queue_count,
        settings.write_queue_count,
        settings.perm,
        order=settings.ordered,
        begin_log_offset=settings.begin_log_offset or None,
    )


def settings_of(served: Served, topic: str) -> TopicSettings | None:
    """What is told of a topic; None where it is gone. The border does not say whether one is ordered."""
    counts = queue_counts(served, topic)
    if not counts:
        return None
    return TopicSettings(topic, counts[0].read_queue_nums, counts[0].write_queue_nums, counts[0].perm)


def letters(perm: int) -> Permission:
    """RocketMQ's bits as mq writes them."""
    if perm & READ:
        return "rw" if perm & WRITE else "r"
    return "w" if perm & WRITE else ""
