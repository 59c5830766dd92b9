"""The queues of a topic, as producers and consumers see them, out of its route. Pure.

RocketMQ: client/impl/factory/MQClientInstance.java, topicRouteData2TopicPublishInfo.
"""

from __future__ import annotations

from mq.api.results import MessageQueue
from mq.remoting.codec.bodies.route import READ, WRITE, TopicRoute

__all__ = ["ordered_queues", "readable_queues", "writable_queues"]

QUEUE_COUNT_MAX = 1 << 16  # of one broker; a route that says more is not believed


def writable_queues(topic: str, route: TopicRoute, count_max: int = QUEUE_COUNT_MAX) -> list[MessageQueue]:
    """Those of brokers with a master that may be written, at most so many of each broker; in the order of an
    ordered topic, if it is one."""
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
    """Those that may be read."""
    return sorted(
        MessageQueue(topic, each.broker_name, queue_id)
        for each in route.queue_datas
        if each.perm & READ
        for queue_id in range(min(each.read_queue_nums, QUEUE_COUNT_MAX))
    )


def ordered_queues(topic: str, conf: str) -> list[MessageQueue]:
    """Out of `broker:count;broker:count`. What is no such part is left out."""
    queues = []
    for part in conf.split(";"):
        name, _, count = part.rpartition(":")
        if name and count.isdecimal() and len(count) < 6:
            queues += [MessageQueue(topic, name, queue_id) for queue_id in range(int(count))]
    return queues
