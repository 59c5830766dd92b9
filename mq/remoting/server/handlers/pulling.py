"""Pulls, at once or once there is a message.

A member of a group pulls from a queue that is held for it (groups/member.py); a client that is no member, or
names no subscription of it, reads like any reader. What is found is filtered here, tags and SQL92 alike.

RocketMQ: broker/processor/PullMessageProcessor.java, broker/longpolling/PullRequestHoldService.java.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import monotonic

from mq.api.queues import READ_SIZE_MAX, Puller
from mq.api.results import MessageQueue, PullResult, PullStatus
from mq.errors import BrokerClosed, MQError
from mq.filter.selection import Selection
from mq.names import check_group
from mq.remoting.codec.requests.consuming import (
    LitePullMessage,
    PullAnswer,
    PullFields,
    PullFlag,
    PullMessage,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers, Lane
from mq.remoting.server.groups.member import Kept, RemoteMember
from mq.remoting.server.groups.members import selection_of
from mq.remoting.server.handlers.offsets import commit
from mq.remoting.server.holding import Held
from mq.remoting.server.replies import Refusal, Reply, refused

__all__ = ["handlers"]

handlers = Handlers()

COUNT_MAX = 1024  # messages of one pull, as many as a client of RocketMQ may ask for
HOLD_SECONDS_MAX = 30.0
SCAN_COUNT_MAX = 800  # messages that a pull looks at when none is selected
# The same of one that waits for messages: it is held at the end of the queue alone. Others of the loop wait
# for so many; then the client goes on with another pull.
WAITING_SCAN_COUNT_MAX = 16_000


@handlers.on(PullMessage, LitePullMessage, lane=Lane.HOT)
def pull(request: PullFields, call: Call) -> Reply | None:
    check_group(request.consumer_group)
    queue = call.served.queue(request.topic, request.queue_id, request.broker_name)
    if request.sys_flag & PullFlag.COMMIT and request.commit_offset > 0:
        commit(call, request.consumer_group, queue, request.commit_offset)
    return Pull(request, call, queue).begin()


class Pull:
    """One pull, from its first try to its answer."""

    __slots__ = (
        "asked_at",
        "call",
        "deadline",
        "is_holding",
        "member",
        "offset",
        "queue",
        "request",
        "selection",
    )

    def __init__(self, request: PullFields, call: Call, queue: MessageQueue) -> None:
        self.request = request
        self.call = call
        self.queue = queue
        self.offset = request.queue_offset
        self.asked_at = monotonic()
        self.deadline = 0.0
        self.is_holding = False  # waits for a message in the queue, which the member has
        self.member: RemoteMember | None = call.served.members.of(call.connection, request.consumer_group)
        self.selection = self._selection()

    def begin(self) -> Reply | None:
        """The reply, None where it comes later."""
        if self.request.sys_flag & PullFlag.SUSPEND:
            hold = min(self.request.suspend_timeout_millis / 1000, HOLD_SECONDS_MAX)
            self.deadline = self.asked_at + max(0.0, hold)
        return self._try(is_over=not self.deadline)

    def _selection(self) -> Selection:
        request, member = self.request, self.member
        if request.sys_flag & PullFlag.SUBSCRIPTION:
            if member is not None and self.request.topic not in member.wanted:
                self.member = None
            return selection_of((request.subscription or "").strip(), request.expression_type or "TAG")
        if member is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {request.consumer_group} has no member at this"
                " connection: send a heartbeat first",
            )
        wanted = member.wanted.get(request.topic)
        if wanted is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {request.consumer_group} does not subscribe to"
                f" {request.topic}",
            )
        if wanted.version < request.sub_version:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: the heartbeat of version {wanted.version} came, the"
                f" pull is of {request.sub_version}",
            )
        return wanted.selection

    def _try(self, is_over: bool) -> Reply | None:
        """Pull; without a message and while there is time, wait."""
        member, is_blind, version = self.member, False, 0
        puller: Puller | None = None
        if member is not None and member.model == "clustering":
            version = member.membership.version()  # Read before the queue's owner is.
            # A queue that was released meanwhile is not claimed again, unless by the client's next pull.
            kept = member.kept(self.queue) if self.is_holding else member.have(self.queue, self.asked_at)
            if kept is not None:
                with kept.lock:
                    if kept.is_released:
                        kept = None
                    elif not member.goes_on(self.queue, kept, self.offset):
                        return self._moved(member, kept)
            if kept is None:
                is_blind = True  # Another member has the queue.
                is_over = is_over or self.is_holding
            else:
                puller = kept.pull if self._selects_as(member) else self.call.served.puller(self.queue)
        else:
            puller = self.call.served.puller(self.queue)
        found = self._found(puller) if puller is not None else None
        if found is not None and found.status is not PullStatus.NO_NEW_MESSAGE:
            return self._answer(found)
        if is_over or self.call.connection.is_closed or self.call.frame.is_oneway:
            return self._nothing(found)
        self.is_holding = not is_blind
        self._hold(is_blind, version)
        return None

    def _found(self, puller: Puller) -> PullResult:
        request = self.request
        begin = self.offset
        while True:
            found = puller(
                self.offset,
                min(max(request.max_msg_nums, 1), COUNT_MAX),
                min(max(request.max_msg_bytes or READ_SIZE_MAX, 1), READ_SIZE_MAX),
                self.selection.hashes,
                0.0,
            )
            if found.status is PullStatus.FOUND:
                kept = self.selection.keep(list(found.messages))
                if kept or found.next_offset - begin >= SCAN_COUNT_MAX:
                    status = PullStatus.FOUND if kept else PullStatus.NO_MATCHED_MESSAGE
                    return PullResult(status, kept, found.next_offset, found.min_offset, found.max_offset)
            elif (
                found.status is not PullStatus.NO_MATCHED_MESSAGE
                or not self.deadline
                or found.next_offset - begin >= WAITING_SCAN_COUNT_MAX
            ):
                return found
            if found.next_offset <= self.offset:
                return found
            self.offset = found.next_offset

    def _hold(self, is_blind: bool, version: int) -> None:
        """Wait for a message, or for the queue that another member had at a version of the group."""
        served, holds = self.call.served, self.call.connection.holds
        if len(holds) >= served.limits.held_pulls or served.holding.is_full:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"{len(holds):,} pulls of this connection wait for messages already, and no more may: see"
                " held_pulls and held_pulls_total of serve()",
            )
        self.call.frame.fields = {}  # decoded already; a held pull needs no more memory than it must
        position = None if is_blind else (self.queue, self.offset, self.selection.wakes)
        held = Held(position, self.deadline, self._again, holds)
        if served.events.is_current:
            served.holding.hold(held)
        else:
            served.events.post(self._hold_late, held, version)

    def _hold_late(self, held: Held, version: int) -> None:
        """By the loop, which may have seen to all pulls that wait for queues since this one was tried."""
        if self.call.connection.is_closed:
            return
        with suppress(BrokerClosed):
            membership = self.member.membership if self.member is not None else None
            if held.position is None and membership is not None and membership.version() != version:
                self._again(False)
            else:
                self.call.served.holding.hold(held)

    def _again(self, is_over: bool) -> None:
        """By the loop: something may be there now, or the time is over."""
        connection, served = self.call.connection, self.call.served
        if connection.is_closed:
            return
        if connection.is_choked:
            connection.drained.append(lambda: self._again(is_over))
        elif served.broker.may_wait:
            served.pool.submit(connection, partial(self._try_and_answer, is_over))
        else:
            self._try_and_answer(is_over)

    def _try_and_answer(self, is_over: bool) -> None:
        try:
            reply = self._try(is_over)
        except BrokerClosed:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the other end gets an answer
            reply = refused(error, self.call.frame)
        if reply is not None:
            self.call.answer(reply)

    def _answer(self, found: PullResult) -> Reply:
        fields = PullAnswer(0, found.next_offset, found.min_offset, found.max_offset)
        served = self.call.served
        served.traffic.pulled += len(found.messages)
        body = served.store_hosts.records(found.messages, served.store_host(self.call.connection))
        return Reply(fields, body, found.status.value, found.status.name)

    def _selects_as(self, member: RemoteMember) -> bool:
        """Whether the pull selects what the member subscribes to: what that leaves out is not even read."""
        if not self.request.sys_flag & PullFlag.SUBSCRIPTION:
            return True
        wanted = member.wanted.get(self.request.topic)
        return wanted is not None and wanted.selection is self.selection

    def _moved(self, member: RemoteMember, kept: Kept) -> Reply:
        """The group's offset was reset: go on from there."""
        broker, group = self.call.served.broker, self.request.consumer_group
        # First, since both raise where the queue is gone: then the client does not hear of anything.
        low, high = broker.min_offset(self.queue), broker.max_offset(self.queue)

        def committed() -> int | None:
            return broker.consumer_groups.offsets(group, self.queue.topic).get(self.queue)

        offset = member.move(self.queue, kept, committed, low)
        fields = PullAnswer(0, offset, low, high)
        return Reply(fields, code=ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_RESET")

    def _nothing(self, found: PullResult | None) -> Reply:
        if found is None:
            broker = self.call.served.broker
            try:
                low, high = broker.min_offset(self.queue), broker.max_offset(self.queue)
            except (MQError, ValueError):
                low = high = 0
            remark = "another member of the group has the queue"
        else:
            low, high, remark = found.min_offset, found.max_offset, "NO_NEW_MESSAGE"
        fields = PullAnswer(0, self.offset, low, high)
        return Reply(fields, code=ResponseCode.PULL_NOT_FOUND, remark=remark)
