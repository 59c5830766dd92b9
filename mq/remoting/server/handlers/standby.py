"""What a broker that copies this one asks: a replica of mq, or a slave of RocketMQ.

A slave registers with the name server, and learns from its answer whose log to follow. Then it asks the
broker for topics, groups and offsets from time to time. The log itself goes over the HA port, if there is
one.

RocketMQ: broker/slave/SlaveSynchronize.java, namesrv/processor/DefaultRequestProcessor.java.
"""

from __future__ import annotations

import time

from mq.broker.replication import Replication, replicated
from mq.errors import NotSupported
from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.bodies.settings import (
    DataVersion,
    DelayOffsets,
    GroupSettings,
    GroupTable,
    RequestModes,
    TimerCounts,
)
from mq.remoting.codec.requests.groups import AllGroupsAnswer, GetAllGroups, GetAllRequestModes
from mq.remoting.codec.requests.name_servers import (
    BrokerHeartbeat,
    DataVersionAnswer,
    QueryDataVersion,
    RegisterBroker,
    RegisterBrokerAnswer,
    UnregisterBroker,
)
from mq.remoting.codec.requests.offsets import GetAllDelayOffset, GetTimerCheckPoint, GetTimerMetrics
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.options import CLUSTER
from mq.remoting.server.replies import DONE, Reply

__all__ = ["handlers", "replication_of"]

handlers = Handlers()


def replication_of(call: Call, what: str) -> Replication:
    """What copies of the served store are made of. Raises NotSupported for another kind of broker object."""
    return replicated(call.served.broker, what, "what is served here").replication


def _version() -> DataVersion:
    """Newer than any that was told before: a slave drops a table whose version it knows."""
    now_ms = time.time_ns() // 1_000_000
    return DataVersion(counter=now_ms, timestamp=now_ms)


@handlers.on(RegisterBroker)
def register(request: RegisterBroker, call: Call) -> Reply:
    """A slave's: there is one master, this one."""
    if request.cluster_name != CLUSTER or request.broker_name != call.served.broker.name:
        raise NotSupported(
            f"broker {request.broker_name!r} of cluster {request.cluster_name!r} cannot be registered: this"
            f" name server is that of {call.served.broker.name!r} in {CLUSTER!r} and its slaves alone"
        )
    if request.broker_id <= 0:
        raise NotSupported(
            f"brokerId {request.broker_id} is a master's, and {call.served.address(call.connection)} is that:"
            " give a slave another brokerId and brokerRole=SLAVE"
        )
    served, connection = call.served, call.connection
    answer = RegisterBrokerAnswer(served.ha_address_for(connection), served.address(connection))
    return Reply(answer, KeyValues())


@handlers.on(QueryDataVersion)
def query_version(_request: QueryDataVersion, _call: Call) -> Reply:
    return Reply(DataVersionAnswer(changed=True), DataVersion())


@handlers.on(UnregisterBroker, BrokerHeartbeat)
def noted(_request: object, _call: Call) -> Reply:
    return DONE


@handlers.on(GetAllGroups)
def groups(_request: GetAllGroups, call: Call) -> Reply:
    table = {name: GroupSettings(name) for name in call.served.broker.groups()}
    return Reply(AllGroupsAnswer(len(table)), GroupTable(table, data_version=_version()))


@handlers.on(GetAllDelayOffset)
def delays(_request: GetAllDelayOffset, call: Call) -> Reply:
    return Reply(body=DelayOffsets(replication_of(call, "the delay offsets").delay_offsets(), _version()))


@handlers.on(GetTimerCheckPoint)
def timer_check(_request: GetTimerCheckPoint, call: Call) -> Reply:
    """A slave that takes the place of this master delivers no timer message again that was due before."""
    return Reply(body=replication_of(call, "the progress of timer messages").timer_check().packed())


@handlers.on(GetTimerMetrics)
def timer_counts(_request: GetTimerMetrics, _call: Call) -> Reply:
    """Nothing is counted by topic here; a slave counts for itself what it delivers."""
    return Reply(body=TimerCounts(data_version=DataVersion()))


@handlers.on(GetAllRequestModes)
def request_modes(_request: GetAllRequestModes, _call: Call) -> Reply:
    """No group consumes by pop."""
    return Reply(body=RequestModes())
