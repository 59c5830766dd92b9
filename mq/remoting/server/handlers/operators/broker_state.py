"""What the broker is and how it is: its settings, and figures.

RocketMQ: broker/processor/AdminBrokerProcessor.java (getBrokerConfig, prepareRuntimeInfo).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from mq.broker.replication import Replicated
from mq.errors import NotPermitted, TopicNotFound
from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.language import VERSION, version_name
from mq.remoting.codec.requests.brokers import BrokerConfigAnswer, GetBrokerConfig, GetBrokerRuntimeInfo
from mq.remoting.codec.text_properties import encode_properties
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.figures import RECENT
from mq.remoting.server.handlers.standby import replication_of
from mq.remoting.server.options import CLUSTER
from mq.remoting.server.replies import Reply

__all__ = ["handlers"]

handlers = Handlers()

# What tools read all the same, as it is without a directory, or where mq has no figure of it.
DEFAULTS: Final = {
    "commitLogDirCapacity": "Total : 0 B, Free : 0 B.",
    "getMissTps": "0.0 0.0 0.0",
    "putMessageDistributeTime": "[<=0ms]:0",
    "remainHowManyDataToFlush": "0 B",
}
ZEROS: Final = frozenset(
    """commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes
    dispatchMaxBuffer getMessageEntireTimeMax pageCacheLockTimeMills pullThreadPoolQueueCapacity
    pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageAverageSize putMessageEntireTimeMax
    putMessageSizeTotal queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueSize remainTransientStoreBufferNumbs sendThreadPoolQueueCapacity
    sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind""".split()  # noqa: SIM905 - as a list it would fill a screen
)


@handlers.on(GetBrokerConfig)
def config(_request: GetBrokerConfig, call: Call) -> Reply:
    sizes = replication_of(call, "the configuration of a broker").file_sizes
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
    """RocketMQ's names, of which tools read some without looking whether they are there. What mq has no
    figure of is 0: no request waits in a thread pool's queue here, and nobody measures a single send."""
    told = dict.fromkeys(ZEROS, "0") | DEFAULTS | call.served.figures.kept(lambda: _counts(call))
    if isinstance(call.served.broker, Replicated):
        told |= _storage(call.served.broker)
        told["putMessageAverageSize"] = str(
            int(told["putMessageSizeTotal"]) / max(1, int(told["putMessageTimesTotal"]))
        )
    return Reply(body=KeyValues(told))


def _counts(call: Call) -> dict[str, str]:
    """What came and went. Stored: in the directory, by all processes. Got: by the clients of this server."""
    figures, broker, traffic = call.served.figures, call.served.broker, call.served.traffic
    up_ms = time.time_ns() // 1_000_000 - figures.began_ms
    minutes, seconds = divmod(up_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    stored, pulled = figures.stored_day_counts(), figures.pulled_day_counts(traffic.pulled)
    put_tps = _rates(growth.per_second for growth in figures.stored(broker.topics(), *RECENT))
    get_tps = _rates(figures.pulled_per_second(traffic.pulled))
    return {
        "brokerActive": "true",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": "V" + version_name(VERSION).replace(".", "_"),
        "bootTimestamp": str(figures.began_ms),
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        "msgPutTotalTodayNow": str(stored.now),
        "msgPutTotalTodayMorning": str(stored.today),
        "msgPutTotalYesterdayMorning": str(stored.yesterday),
        "msgGetTotalTodayNow": str(pulled.now),
        "msgGetTotalTodayMorning": str(pulled.today),
        "msgGetTotalYesterdayMorning": str(pulled.yesterday),
        "putMessageTimesTotal": str(stored.now),
        "putTps": put_tps,
        "getFoundTps": get_tps,
        "getTotalTps": get_tps,
        "getTransferredTps": get_tps,
        "getTransferedTps": get_tps,  # RocketMQ 4 spells it so.
        "earliestMessageTimeStamp": str(_oldest_ms(call)),
    }


def _oldest_ms(call: Call) -> int:
    """When the oldest message that is kept was stored; -1 where there is none."""
    broker, found = call.served.broker, set()
    for topic in broker.topics():
        with suppress(TopicNotFound, NotPermitted):
            queues = broker.readable(topic)
            found |= {call.served.stored_ms(queue, broker.min_offset(queue)) for queue in queues}
    return min(found - {0}, default=-1)


def _storage(broker: Replicated) -> dict[str, str]:
    """The log, and the disk that it is on."""
    begin, end = broker.replication.log_range
    disk = shutil.disk_usage(broker.path)
    ratio = str((disk.total - disk.free) / disk.total)
    return {
        "commitLogMinOffset": str(begin),
        "commitLogMaxOffset": str(end),
        "putMessageSizeTotal": str(end),
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_readable(disk.total)}, Free : {_readable(disk.free)}.",
    }


def _rates(rates: Iterable[float]) -> str:
    """Of 10, 60 and 600 seconds."""
    return " ".join(f"{rate:.3f}" for rate in rates)


def _readable(size: int) -> str:
    """A number of bytes as Java's tools read it: 1.5 GiB."""
    unit = max(0, size.bit_length() - 1) // 10
    return f"{size / (1 << 10 * unit):.1f} {'KMGTPE'[unit - 1]}iB" if unit else f"{size} B"
