"""A replica's requests to its master besides the log, over the Remoting protocol, as a RocketMQ slave sends
them.

    26    the sizes of its files
    28    the range of its log
    21    topics                201   groups
    202   ends of queues
    43    consumer offsets      45    delay offsets

The address is the master's listen port: by RocketMQ's rule, and mq's, the port before the HA port.
RocketMQ: broker/slave/SlaveSynchronize.java, broker/out/BrokerOuterAPI.java.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from mq.errors import RemotingError
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.bodies.consuming import ConsumerOffsets
from mq.remoting.codec.bodies.route import KeyValues
from mq.remoting.codec.bodies.settings import (
    DelayOffsets,
    GroupSettings,
    GroupTable,
    TopicSettings,
    TopicTable,
)
from mq.remoting.codec.bodies.stats import TopicStats
from mq.remoting.codec.fields import Request, decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody, from_json
from mq.remoting.codec.requests.brokers import GetBrokerConfig, GetBrokerRuntimeInfo
from mq.remoting.codec.requests.groups import AllGroupsAnswer, GetAllGroups
from mq.remoting.codec.requests.offsets import GetAllConsumerOffset, GetAllDelayOffset
from mq.remoting.codec.requests.statistics import GetTopicStats
from mq.remoting.codec.requests.topics import AllTopicsAnswer, GetAllTopics
from mq.remoting.codec.text_properties import decode_properties

__all__ = ["LogRange", "Master"]

PAGES_MAX = 1000

Body = TypeVar("Body", bound=JsonBody)


class LogRange(NamedTuple):
    """The begin and end of a master's log, as log offsets."""

    begin: int
    end: int


class Master:
    """The requests to one master. Thread-safe. All calls raise RemotingError, RequestTimeout."""

    def __init__(self, address: str, options: RemotingOptions) -> None:
        self.address: Final = address
        self._remoting = Remoting(f"master {address}", options)

    def log_file_size(self) -> int | None:
        """The size of a log file in bytes; None if the master does not tell it."""
        told = decode_properties(self._ask(GetBrokerConfig()).body).get("mappedFileSizeCommitLog", "")
        return int(told) if told.isascii() and told.isdigit() else None

    def log_range(self) -> LogRange:
        """The current range of its log."""
        told = from_json(KeyValues, self._ask(GetBrokerRuntimeInfo()).body).table
        try:
            # A RocketMQ broker without files answers -1.
            return LogRange(*(max(0, int(told[f"commitLog{which}Offset"])) for which in ("Min", "Max")))
        except (KeyError, ValueError):
            raise RemotingError(
                f"{self.address} does not say where its log begins and ends: is it a broker?",
                address=self.address,
            ) from None

    def topics(self) -> dict[str, TopicSettings]:
        """All topics by name. 5.x answers page by page."""
        found: dict[str, TopicSettings] = {}
        for _ in range(PAGES_MAX):
            answer = self._ask(GetAllTopics(topic_seq=len(found)))
            page = from_json(TopicTable, answer.body).topic_config_table
            known = len(found)
            found.update(page)
            total = decode_fields(AllTopicsAnswer, answer.fields).total_topic_num
            if total is None or len(found) >= total or len(found) == known:
                break
        return found

    def queue_ends(self, topic: str) -> dict[int, int]:
        """The end of each queue of a topic, as a queue offset."""
        told = from_json(TopicStats, self._ask(GetTopicStats(topic)).body)
        return {queue.queue_id: ends.max_offset for queue, ends in told.offset_table.items()}

    def groups(self) -> dict[str, GroupSettings]:
        """The settings of all groups by name."""
        found: dict[str, GroupSettings] = {}
        for _ in range(PAGES_MAX):
            answer = self._ask(GetAllGroups(group_seq=len(found)))
            page = from_json(GroupTable, answer.body).subscription_group_table
            known = len(found)
            found.update(page)
            total = decode_fields(AllGroupsAnswer, answer.fields).total_group_num
            if total is None or len(found) >= total or len(found) == known:
                break
        return found

    def consumer_offsets(self) -> ConsumerOffsets:
        """The committed offset of each group in each queue."""
        return from_json(ConsumerOffsets, self._ask(GetAllConsumerOffset()).body)

    def delay_offsets(self) -> DelayOffsets:
        """The delivered offset of each delay level."""
        return from_json(DelayOffsets, self._ask(GetAllDelayOffset()).body)

    def _ask(self, request: Request) -> Frame:
        return checked(self._remoting.call(self.address, framed(request)), type(request), self.address)

    def close(self) -> None:
        self._remoting.close()
