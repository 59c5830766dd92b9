"""What a replica asks its master beside the log, over the Remoting wire, as a RocketMQ slave does.

    26    the sizes of its files
    28    where its log begins and ends
    21    topics                201   groups
    43    consumer offsets      45    how far each delay level is delivered

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
from mq.remoting.codec.fields import Request, decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody, from_json
from mq.remoting.codec.requests.brokers import GetBrokerConfig, GetBrokerRuntimeInfo
from mq.remoting.codec.requests.groups import AllGroupsAnswer, GetAllGroups
from mq.remoting.codec.requests.offsets import GetAllConsumerOffset, GetAllDelayOffset
from mq.remoting.codec.requests.topics import AllTopicsAnswer, GetAllTopics
from mq.remoting.codec.text_properties import decode_properties

__all__ = ["LogRange", "Master"]

PAGES_MAX = 1000

Body = TypeVar("Body", bound=JsonBody)


class LogRange(NamedTuple):
    """Where a master's log begins and ends, as log offsets."""

    begin: int
    end: int


class Master:
    """One master, asked from any thread. All calls raise RemotingError, RequestTimeout."""

    def __init__(self, address: str, options: RemotingOptions) -> None:
        self.address: Final = address
        self._remoting = Remoting(f"master {address}", options)

    def log_file_size(self) -> int | None:
        """How many bytes a file of its log has; None where it does not say."""
        told = decode_properties(self._ask(GetBrokerConfig()).body).get("mappedFileSizeCommitLog", "")
        return int(told) if told.isascii() and told.isdigit() else None

    def log_range(self) -> LogRange:
        """Where its log begins and ends now."""
        told = from_json(KeyValues, self._ask(GetBrokerRuntimeInfo()).body).table
        try:
            # Of a RocketMQ broker without any file, -1.
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
        """How far each group is in each queue."""
        return from_json(ConsumerOffsets, self._ask(GetAllConsumerOffset()).body)

    def delay_offsets(self) -> DelayOffsets:
        """How far each delay level is delivered."""
        return from_json(DelayOffsets, self._ask(GetAllDelayOffset()).body)

    def _ask(self, request: Request) -> Frame:
        return checked(self._remoting.call(self.address, framed(request)), type(request), self.address)

    def close(self) -> None:
        self._remoting.close()
