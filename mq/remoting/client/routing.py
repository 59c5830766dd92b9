"""The queues of a topic for producers and for consumers, from its route. Pure.

RocketMQ: client/impl/factory/MQClientInstance.java, topicRouteData2TopicPublishInfo.
"""

from __future__ import annotations

from mq.api.results import MessageQueue
from mq.remoting.codec.bodies.route import READ, WRITE, TopicRoute

__all__ = ["ordered_queues", "readable_queues", "writable_queues"]

QUEUE_COUNT_MAX = 1 << 16  # per broker; a larger number in a route is ignored


def writable_queues(topic: str, route: TopicRoute, count_max: int = QUEUE_COUNT_MAX) -> list[MessageQueue]:
    """The writable queues of brokers with a master, at most count_max per broker; in the topic's own order if
    it is an ordered topic."""
    if route.order_topic_conf:
        return ordered_queues(topic, route.order_topic_conf)
    masters = {broker.broker_name for broker in route.broker_datas if broker.master is not None}
    return sorted(
        MessageQueue(topic, each.broker_name, queue_id)
        for each in route.queue_datas
        if each.perm & WRITE and each.broker_name in masters
        for queue_id in range(min(each.write_queue_nums, count_max))
    )


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The readable queues."""
    return sorted(
        MessageQueue(topic, each.broker_name, queue_id)
        for each in route.queue_datas
        if each.perm & READ
        for queue_id in range(min(each.read_queue_nums, QUEUE_COUNT_MAX))
    )


def ordered_queues(topic: str, conf: str) -> list[MessageQueue]:
    """The queues of an order configuration `broker:count;broker:count`. Malformed parts are ignored."""
    queues = []
    for part in conf.split(";"):
        name, _, count = part.rpartition(":")
        if name and count.isdecimal() and len(count) < 6:
            queues += [MessageQueue(topic, name, queue_id) for queue_id in range(int(count))]
    return queues
