"""What the processes of test_points.py do: one half message, and its end, wherever MQ_FAIL has them die."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import mq

__all__ = ["ender"]

GROUP = "payers"
PREPARED_SECONDS = 0.5


def ender(root: str, place: str, state: str, flush: Any, fail: str) -> None:
    """Begin a transaction, write down where, and end it. `fail` is of fail.h: from the half message on."""
    with mq.open(root, flush=flush) as broker:
        queue = broker.publishable("orders")[0]
        prepare, end = broker.transactions.preparer(queue, GROUP), broker.transactions.ender(GROUP)
        os.environ["MQ_FAIL"] = fail
        result = prepare(mq.Message("orders", b"one"), b"one", 0)
        assert result is not None
        log_offset = int(result.offset_msg_id[-16:], 16)
        fresh = Path(place).with_suffix(".new")
        fresh.write_text(f"{log_offset} {result.queue_offset}")
        fresh.replace(place)
        if fail.endswith("stop"):
            # Else the thread that makes room may be stopped with the log's lock.
            time.sleep(PREPARED_SECONDS)
        end(log_offset, result.queue_offset, mq.TransactionState[state])
