"""Replies that reach another server of the same directory than the one that their producer is connected to.

A server whose producers ask for replies is a member of REPLY_GROUP, from before the first such request is
stored. A reply whose producer is not connected where it arrives is stored without PUSH_REPLY_TIME, the
property of what was pushed. Each member reads the topic of replies from then on, and pushes to its own
producers what nobody has pushed.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from mq.api.broker import Broker
from mq.api.group import Membership, Subscription
from mq.api.queues import READ_SIZE_MAX, Puller
from mq.api.results import MessageQueue
from mq.errors import BrokerClosed, MQError, TopicNotFound
from mq.message import MessageExt
from mq.names import SYSTEM_GROUP_PREFIX
from mq.properties import decode
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.pushed import PushReplyMessage
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.event_loop import EventLoop
from mq.remoting.server.groups.members import RemoteMembers
from mq.remoting.server.holding import Held, Holding
from mq.remoting.server.messages import REPLY_TO
from mq.remoting.server.options import REPLY_TOPIC
from mq.remoting.server.transport.workers import Workers

__all__ = ["REPLY_SECONDS", "ReplyRelay", "pushed_now"]

log = logging.getLogger("mq.remoting")

REPLY_GROUP: Final = SYSTEM_GROUP_PREFIX + "SERVERS_OF_REPLIES"
REPLY_SECONDS: Final = 10.0  # for the producer that gets a reply; RocketMQ's figure
PUSHED: Final = "PUSH_REPLY_TIME"
COUNT_MAX = 32  # replies of one read


def pushed_now(properties: str) -> tuple[str, int]:
    """The properties of a reply that is pushed now, and when, in ms."""
    now_ms = time.time_ns() // 1_000_000
    kept = properties.rstrip("\x02")
    return f"{kept}\x02{PUSHED}\x01{now_ms}\x02", now_ms


class ReplyRelay:
    """The part of one server. Thread-safe."""

    def __init__(
        self,
        broker: Broker,
        events: EventLoop,
        holding: Holding,
        members: RemoteMembers,
        workers: Workers,
    ) -> None:
        self._broker = broker
        self._events = events
        self._holding = holding
        self._members = members
        self._workers = workers
        self._lock = threading.Lock()
        self._membership: Membership | None = None
        self._holds = set[object]()  # those of the membership, whose identity they are
        self._queues = set[MessageQueue]()  # which are read
        self._version = -1  # of the topics, when it was found out which ones there are
        self._is_closed = False

    def listen(self) -> None:
        """Push from now on what arrives elsewhere for producers that are connected here. To be called before
        a request for a reply is stored; without effect after the first time, unless topics have changed."""
        version = self._broker.route_version()
        if self._membership is not None and version == self._version:
            return
        with self._lock:
            if self._is_closed:
                return
            try:
                if self._membership is None:
                    self._listen()
                else:
                    self._listen_to_more()
                self._version = version
            except MQError as error:
                log.warning("replies that reach other servers of this store are not pushed here: %s", error)

    def _listen(self) -> None:
        try:
            queues = self._broker.readable(REPLY_TOPIC)
        except TopicNotFound:
            self._broker.create_topic(REPLY_TOPIC, 1)
            queues = self._broker.readable(REPLY_TOPIC)
        ends = {queue: self._broker.max_offset(queue) for queue in queues}
        self._membership = self._broker.consumer_groups.join(
            REPLY_GROUP,
            client_id=f"serve@{os.getpid()}@{secrets.token_hex(4)}",
            model="broadcasting",
            consume_type="push",
            ordered=False,
            subscriptions=[Subscription(REPLY_TOPIC)],
            consume_from=None,
        )
        self._holds, self._queues = set(), set()
        self._read_from(ends)

    def _listen_to_more(self) -> None:
        """Read the queues that the topic has got since, all of them."""
        queues = self._broker.readable(REPLY_TOPIC)
        self._read_from({queue: self._broker.min_offset(queue) for queue in {*queues} - self._queues})

    def _read_from(self, begins: Mapping[MessageQueue, int]) -> None:
        self._queues |= begins.keys()
        for queue, begin in begins.items():
            self._events.post(self._hold, self._holds, queue, self._broker.puller(queue), begin)

    def is_heard_elsewhere(self) -> bool:
        """Whether another server of this store has producers that ask for replies."""
        own = self._membership
        members = self._broker.consumer_groups.members(REPLY_GROUP)
        return any(own is None or member.client_id != own.client_id for member in members)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._leave()

    def _leave(self) -> None:
        membership, self._membership = self._membership, None
        holds, self._holds = self._holds, set()
        if membership is not None:
            self._events.post(self._holding.drop_all, holds)
            membership.leave()

    # The topic of replies.

    def _hold(self, holds: set[object], queue: MessageQueue, puller: Puller, offset: int) -> None:
        """Wait for the next reply. Called by the loop, perhaps after this member dropped its holds."""

        def again(_: bool) -> None:
            self._workers.submit(self, partial(self._read, holds, queue, puller, offset))

        if holds is self._holds:
            self._holding.hold(Held((queue, offset, None), math.inf, again, holds))

    def _read(self, holds: set[object], queue: MessageQueue, puller: Puller, offset: int) -> None:
        """Push what was stored since the offset."""
        if holds is not self._holds:
            return
        try:
            while True:
                found = puller(offset, COUNT_MAX, READ_SIZE_MAX, None, 0.0)
                for message in found.messages:
                    self._push(message)
                if found.next_offset == offset:
                    break
                offset = found.next_offset
        except BrokerClosed:
            return
        except (MQError, ValueError) as error:  # The topic was deleted: the next request begins anew.
            log.warning("replies that reach other servers of this store are not pushed here: %s", error)
            with self._lock:
                if holds is self._holds:
                    self._leave()
            return
        self._events.post(self._hold, holds, queue, puller, offset)

    def _push(self, message: MessageExt) -> None:
        properties = decode(message.encoded)
        client_id = properties.get(REPLY_TO, "")
        producer = self._members.producer(client_id)
        if producer is None or PUSHED in properties:
            return

        def answered(answer: Frame | MQError) -> None:
            if not isinstance(answer, Frame) or answer.code != ResponseCode.SUCCESS:
                reason = answer.remark if isinstance(answer, Frame) else answer
                log.warning("a reply, %s, is not pushed to %s: %s", message.msg_id, client_id, reason)

        told, now_ms = pushed_now(message.encoded.decode("utf-8", "replace"))
        request = PushReplyMessage(
            REPLY_GROUP,
            message.topic,
            message.topic,
            1,
            message.queue_id,
            0,
            message.born_time_ms,
            message.flag,
            born_host=message.born_host,
            store_host=message.store_host,
            store_timestamp=now_ms,
            properties=told,
            reconsume_times=message.reconsume_times,
            unit_mode=False,
        )
        producer.ask(request, answered, REPLY_SECONDS, message.body)
