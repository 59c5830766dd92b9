"""The broker object of a cluster, with sends that return once consumers can see what was sent.

A broker of RocketMQ acknowledges a message when its log has it, and puts it into its queue, where consumers
see it, some ms later. Tests that send and read at once use this one.
"""

from __future__ import annotations

from collections.abc import Sequence

import mq
from mq.api.queues import Appender
from mq.remoting.client.connections.options import RemotingOptions
from tests.support.cluster.shared import attached
from tests.support.eventually import eventually

SEEN_SECONDS = 60.0


class SettledBroker(mq.RemoteBroker):
    """Of a shared cluster, in a namespace."""

    def __init__(self, kind: str, namespace: str) -> None:
        super().__init__(attached(kind).name_server, RemotingOptions(timeout=30.0), namespace)

    def appender(self, queue: mq.MessageQueue) -> Appender:
        append = super().appender(queue)

        def append_and_wait(
            message: mq.Message, body: bytes, sys_flag: int, unique_id: str | None = None, /
        ) -> mq.SendResult | None:
            result = append(message, body, sys_flag, unique_id)
            if result is not None and not _is_late(message):
                self._see(result.queue, result.queue_offset)
            return result

        return append_and_wait

    def append_batch(self, queue: mq.MessageQueue, messages: Sequence[mq.Message]) -> mq.SendResult:
        result = super().append_batch(queue, messages)
        self._see(result.queue, result.queue_offset + len(messages) - 1)
        return result

    def _see(self, queue: mq.MessageQueue, offset: int) -> None:
        eventually(
            lambda: self._end(queue) > offset,
            lambda: f"{queue} does not show offset {offset}",
            SEEN_SECONDS,
            pause=0.001,
        )

    def _end(self, queue: mq.MessageQueue) -> int:
        try:
            return self.max_offset(queue)
        except mq.TopicNotFound:
            return 0  # The message has made the topic, and no name server knows it yet.


def _is_late(message: mq.Message) -> bool:
    return bool(message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None)
