"""What one process does for all: flush, index, checkpoint, delete what is too old.

Every broker has a thread for it, and mq/duties a lock on one byte: whoever gets it does the work until he
closes or dies, which drops the lock, and the next one goes on where the words in shared memory say. The
others look every quarter of a second whether it is their turn.

    flush_interval   log to disk                    RocketMQ: flushIntervalCommitLog, 500 ms
    1 s              queue units to disk, index     flushIntervalConsumeQueue
    5 s              checkpoint
    10 s             retention                      cleanResourceInterval
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mq.errors import MQError
from mq.store import retention
from mq.store.locks import lock_byte, open_own_file
from mq.store.named import named_errors
from mq.store.store import Store

__all__ = ["Duties"]

TURN_INTERVAL = 0.25
QUEUES_INTERVAL = 1.0
CHECKPOINT_INTERVAL = 5.0
RETENTION_INTERVAL = 10.0


class Duties:
    """The thread of one broker that does the duties, or waits for its turn."""

    def __init__(
        self, store: Store, flush_interval: float, retention_ms: int, disk_ratio_max: float | None
    ) -> None:
        self._store = store
        self._flush_interval = flush_interval
        self._retention_ms = retention_ms
        self._disk_ratio_max = disk_ratio_max
        self.last_error: BaseException | None = None
        self._stopping = threading.Event()
        with named_errors(store.root):
            self._fd = open_own_file(store.root / "mq" / "duties")
        store.close_in_child(self._fd)
        self._thread = threading.Thread(target=self._run, name="mq-duties", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(TURN_INTERVAL):
            if lock_byte(self._fd, 0):
                self._work()
                return

    def _work(self) -> None:
        rounds: list[tuple[float, Callable[[], object]]] = [
            (self._flush_interval, self._store.flush_log),
            (QUEUES_INTERVAL, self._store.flush_queues),
            (QUEUES_INTERVAL, self._store.bring_index_up),
            (CHECKPOINT_INTERVAL, self._checkpoint),
            (RETENTION_INTERVAL, self._expire),
        ]
        due = [time.monotonic() + interval for interval, _ in rounds]
        while not self._stopping.wait(max(0.0, min(due) - time.monotonic())):
            now = time.monotonic()
            for place, (interval, duty) in enumerate(rounds):
                if due[place] > now or self._stopping.is_set():
                    continue
                try:
                    duty()
                except (MQError, OSError) as error:
                    # A full disk, a damaged record: senders and readers meet it themselves. Duties go on.
                    self.last_error = error
                due[place] = time.monotonic() + interval

    def _checkpoint(self) -> None:
        self._store.sync_index()
        self._store.write_checkpoint(sync=True)

    def _expire(self) -> None:
        now = time.time_ns() // 1_000_000
        retention.expire(self._store, now, self._retention_ms, disk_ratio_max=self._disk_ratio_max)
        # Who only reads and writes lets go of what another process deleted.
        self._store.release_old()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._store.closed_here(fd)
