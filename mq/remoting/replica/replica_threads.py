"""The resources of a replica: its directory, a thread that appends, and a thread that copies the tables.

The threads hold a reference to this object, so close() must end them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from mq.errors import MQError, RemotingError
from mq.remoting.codec.bodies.consuming import ConsumerOffsets
from mq.remoting.codec.bodies.settings import DelayOffsets
from mq.remoting.replica.directory import ReplicaDirectory
from mq.remoting.replica.follower import Follower
from mq.remoting.replica.master import Master

__all__ = ["ReplicaThreads"]

log = logging.getLogger("mq.remoting")

LOOK_INTERVAL = 1.0  # seconds, at the end of the master's log
TABLES_INTERVAL = 3.0  # RocketMQ: 10 s in 4.9, 60 s in 5.x


class _Told(NamedTuple):
    """How far the master was when its log ended there, or before."""

    stream: object
    offsets: ConsumerOffsets
    delays: DelayOffsets
    end: int


class ReplicaThreads:
    """Starts the threads, and waits `timeout` seconds for the master's first data. close() ends them."""

    def __init__(
        self,
        address: str,
        directory: str | os.PathLike[str],
        master: Master | None,
        *,
        flush: str,
        log_file_size: int | None,
        timeout: float,
    ) -> None:
        self.address: Final = address
        self.pid: Final = os.getpid()
        self.is_closed = False
        self._master = master
        self._last_end = 0
        self._told: _Told | None = None
        others = [(LOOK_INTERVAL, self._look), (TABLES_INTERVAL, self._sync_tables)] if master else []
        self.directory: Final = ReplicaDirectory(
            directory, sync=flush == "sync", log_file_size=log_file_size, others=others
        )
        try:
            self.follower: Final = Follower(address, self.directory, master, sync=flush == "sync")
        except BaseException:
            self.directory.close()
            raise
        self.follower.met.wait(timeout)
        if self.follower.is_over and self.follower.error is not None:
            error = self.follower.error
            self.close()
            raise error

    @property
    def end(self) -> int:
        """The end of the replica's log."""
        with suppress(MQError):  # The store is closed, or its tail is being truncated: return the last value.
            self._last_end = self.directory.log.end
        return self._last_end

    def _look(self) -> None:
        """Ask the master for the range of its log."""
        follower = getattr(self, "follower", None)
        if self._master is None or follower is None:
            return
        stream = follower.stream
        if stream is None:
            return
        with suppress(RemotingError):
            known = self._master.log_range()
            follower.master_end = max(known.end, self.end)
            # Another one may have answered, that came up in its place.
            if follower.stream is stream:
                self.directory.master_begin = known.begin

    def _sync_tables(self) -> None:
        """Copy the master's topics, groups, offsets and delay offsets."""
        follower, master = getattr(self, "follower", None), self._master
        if master is None or follower is None:
            return
        stream = follower.stream
        if stream is None:
            return
        end, topics = master.log_range().end, master.topics()
        groups = master.groups()
        told = _Told(stream, master.consumer_offsets(), master.delay_offsets(), master.log_range().end)
        tables = self.directory.tables
        # Another one may have answered, that came up in its place.
        if follower.stream is not stream:
            return
        tables.put_topics(topics, end if self.end >= end else None)
        tables.put_groups(groups)
        self._put_progress(told)
        queue_ends = self._queue_ends(master, tables.without_ends(topics))
        # They count once the log has all that the queues had then.
        if queue_ends and self.end >= master.log_range().end and follower.stream is stream:
            for topic, ends in queue_ends.items():
                tables.put_ends(topic, ends)

    def _put_progress(self, newest: _Told) -> None:
        """Store how far the master was, once the log has all that this tells of. A replica that lags behind
        takes over what it was told before."""
        before, self._told = self._told, None
        for told in filter(None, (before, newest)):
            if told.stream is newest.stream and self.end >= told.end:
                self.directory.tables.put_offsets(told.offsets)
                self.directory.tables.put_delays(told.delays)
            elif told.stream is newest.stream and self._told is None:
                self._told = told

    def _queue_ends(self, master: Master, topics: Sequence[str]) -> dict[str, dict[int, int]]:
        """The ends of the queues of topics; of one that the master does not tell, none."""
        found = dict[str, dict[int, int]]()
        for topic in topics:
            try:
                found[topic] = master.queue_ends(topic)
            except RemotingError as error:
                if error.code is None:
                    raise  # There is no answer.
                log.info("%s: %s", self.directory.path, error)
                found[topic] = {}
        return found

    def close(self) -> None:
        """Stop replicating. Idempotent."""
        self.is_closed = True
        self.follower.close()
        with suppress(MQError):
            self._last_end = self.directory.log.end
        self.directory.close()
        if self._master is not None:
            self._master.close()
