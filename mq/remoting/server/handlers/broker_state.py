"""What the broker is and how it is: its settings, and figures.

RocketMQ: broker/processor/AdminBrokerProcessor.java (getBrokerConfig, prepareRuntimeInfo).
"""

from __future__ import annotations

from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.requests.brokers import BrokerConfigAnswer, GetBrokerConfig, GetBrokerRuntimeInfo
from mq.remoting.codec.text_properties import encode_properties
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.handlers.standby import replication_of
from mq.remoting.server.options import CLUSTER
from mq.remoting.server.replies import Reply

__all__ = ["handlers"]

handlers = Handlers()


@handlers.on(GetBrokerConfig)
def config(_request: GetBrokerConfig, call: Call) -> Reply:
    sizes = replication_of(call).file_sizes
    told = {
        "brokerName": call.served.broker.name,
        "brokerClusterName": CLUSTER,
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "listenPort": str(call.served.port),
        "mappedFileSizeCommitLog": str(sizes.commitlog_file_size),
        "mappedFileSizeConsumeQueue": str(sizes.queue_file_size),
    }
    if call.served.ha_address is not None:
        told["haListenPort"] = call.served.ha_address.rpartition(":")[2]
    return Reply(BrokerConfigAnswer("0"), encode_properties(told))


@handlers.on(GetBrokerRuntimeInfo)
def runtime(_request: GetBrokerRuntimeInfo, call: Call) -> Reply:
    begin, end = replication_of(call).log_range
    return Reply(body=KeyValues({"commitLogMinOffset": str(begin), "commitLogMaxOffset": str(end)}))
