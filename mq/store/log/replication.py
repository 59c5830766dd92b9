"""Waiting for followers: a send with replicas= returns once so many of them have the message.

Which process accepts the followers is of no matter (see source.py). RocketMQ: store/ha/DefaultHAService.java,
GroupTransferService; store/config/MessageStoreConfig.java for the limits.
"""

from __future__ import annotations

from mq.api.results import SendStatus
from mq.store.native import check, lib
from mq.store.store import Store

__all__ = ["REPLICAS_MAX", "replicated"]

REPLICAS_MAX = int(lib.MQ_REPLICAS_MAX)
TIMEOUT_MS = 3000  # RocketMQ: slaveTimeout
LAG_MAX = 256 << 20  # RocketMQ: haSlaveFallbehindMax


def replicated(store: Store, end: int, replicas: int) -> SendStatus:
    """Wait until so many followers have everything below a log offset.

    SLAVE_NOT_AVAILABLE, at once, where there are not as many within 256 MiB of it; FLUSH_SLAVE_TIMEOUT after
    3 s. The message is stored in either case.
    """
    store.live()
    assert store.control is not None
    result = lib.mq_replication_wait(store.control.handle, end, replicas, LAG_MAX, TIMEOUT_MS)
    if result == lib.MQ_MISSING:
        return SendStatus.SLAVE_NOT_AVAILABLE
    if result == lib.MQ_BUSY:
        return SendStatus.FLUSH_SLAVE_TIMEOUT
    check(result, str(store.root))
    return SendStatus.SEND_OK
