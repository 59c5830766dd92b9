"""How much came and went in the last minute, hour and day, by RocketMQ's names of such statistics.

RocketMQ: store/stats/BrokerStatsManager.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.names import check_group, check_topic
from mq.remoting.codec.bodies.stats import BrokerStats, Rate
from mq.remoting.codec.requests.statistics import ViewBrokerStats
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.figures import WINDOWS, Growth
from mq.remoting.server.options import CLUSTER
from mq.remoting.server.replies import Refusal, Reply

__all__ = ["handlers"]

handlers = Handlers()


@handlers.on(ViewBrokerStats)
def view(request: ViewBrokerStats, call: Call) -> Reply:
    """Of a topic (TOPIC_PUT_NUMS), of topic@group (GROUP_GET_NUMS), or of all by the name of the cluster."""
    figures, broker = call.served.figures, call.served.broker
    key = request.stats_key
    if request.stats_name == "TOPIC_PUT_NUMS":
        check_topic(key)
        broker.topic(key)  # Raises TopicNotFound.
        return _reply(figures.stored([key], *WINDOWS))
    if request.stats_name == "GROUP_GET_NUMS":
        topic, _, group = key.partition("@")
        check_topic(topic)
        check_group(group)
        return _reply(figures.consumed(group, topic))
    if request.stats_name == "BROKER_PUT_NUMS" and key == CLUSTER:
        return _reply(figures.stored(broker.topics(), *WINDOWS))
    raise Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The stats <{request.stats_name}> <{key[:200]}> not exist: there are TOPIC_PUT_NUMS of a topic,"
        f" GROUP_GET_NUMS of topic@group and BROKER_PUT_NUMS of {CLUSTER}",
    )


def _reply(growths: Sequence[Growth]) -> Reply:
    """The answer of a minute, an hour and a day."""
    minute, hour, day = (Rate(growth.grown, growth.per_second) for growth in growths)
    return Reply(body=BrokerStats(minute, hour, day))
