"""What a broker of the tests is: its place in the cluster and the lines of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.support.cluster.programs import Version

Role = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]

# Messages that come back (their levels begin at the third) come after a second each, not after 10 s to 2 h.
QUICK_DELAY_LEVELS = "1s 2s" + " 1s" * 16

SETTINGS: Mapping[str, object] = {
    "brokerClusterName": "tests",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "messageDelayLevel": QUICK_DELAY_LEVELS,
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 128 << 20,
    "diskMaxUsedSpaceRatio": 95,
    # A broker on a machine under load is slow, and that alone is no reason to refuse a send.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 60_000,
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 2000,
    "transactionOpBatchInterval": 500,
    # A flush of the timer wheel compares all of its 38 MB: a quarter of a core, once a second.
    "timerFlushIntervalMs": 10_000,
    # The least that RocketMQ allows: a name server that comes back knows its brokers again after 10 s.
    "registerNameServerPeriod": 10_000,
    "reviveQueueNum": 1,
    "traceTopicEnable": "false",
    "inSyncReplicas": 1,
    # Without it a slave of 5.3 refuses every pull (SYSTEM_BUSY), and the master never sends a reader to it.
    "slaveReadEnable": "true",
}

# What of SETTINGS a measurement leaves as RocketMQ has it.
ONLY_FOR_TESTS = ("messageDelayLevel", "mappedFileSizeCommitLog", "timerFlushIntervalMs", "reviveQueueNum")


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """A broker to be started. `settings` are lines of its configuration file, over those of SETTINGS.

    A slave has the name of its master, role SLAVE and a broker_id above 0.
    """

    name: str = "a"
    version: Version = "5.3"
    role: Role = "ASYNC_MASTER"
    broker_id: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)
    at_full_speed: bool = False  # as for a measurement: slower to start, more memory, RocketMQ's own settings

    @property
    def label(self) -> str:
        """What the cluster calls it: the broker's name, for a slave with its number."""
        return f"{self.name}-slave{self.broker_id}" if self.role == "SLAVE" else self.name


def slave_of(master: BrokerPlan, broker_id: int = 1) -> BrokerPlan:
    """A plan for a slave with the master's settings."""
    return BrokerPlan(master.name, master.version, "SLAVE", broker_id, master.settings, master.at_full_speed)


def double_write(name: str = "a", version: Version = "5.3") -> BrokerPlan:
    """A plan for a master that answers a send once a slave has it too.

    A 5.3 broker waits for inSyncReplicas copies, the master's included; a 4.9 one for a slave.
    """
    return BrokerPlan(name, version, "SYNC_MASTER", settings={"inSyncReplicas": 2})
