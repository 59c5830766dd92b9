"""The ends of queues, and how far groups are.

RocketMQ: broker/processor/ConsumerManageProcessor.java, AdminBrokerProcessor.java.
"""

from __future__ import annotations

from mq.api.results import MessageQueue
from mq.errors import GroupInvalid, TopicInvalid
from mq.names import check_group
from mq.remoting.codec.bodies.consuming import ConsumerOffsets, QueueOffsets
from mq.remoting.codec.bodies.heartbeat import ConsumeFrom
from mq.remoting.codec.requests.offsets import (
    GetAllConsumerOffset,
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    OffsetAnswer,
    QueryConsumerOffset,
    ResetConsumerOffset,
    SearchOffsetByTimestamp,
    TimestampAnswer,
    UpdateConsumerOffset,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.dispatch import Call, Handlers
from mq.remoting.server.replies import DONE, Refusal, Reply

__all__ = ["commit", "handlers"]

handlers = Handlers()


@handlers.on(GetMaxOffset)
def max_offset(request: GetMaxOffset, call: Call) -> Reply:
    queue = _readable(call, request.topic, request.queue_id)
    return Reply(OffsetAnswer(call.served.broker.max_offset(queue)))


@handlers.on(GetMinOffset)
def min_offset(request: GetMinOffset, call: Call) -> Reply:
    queue = _readable(call, request.topic, request.queue_id)
    return Reply(OffsetAnswer(call.served.broker.min_offset(queue)))


@handlers.on(SearchOffsetByTimestamp)
def offset_at(request: SearchOffsetByTimestamp, call: Call) -> Reply:
    queue = _readable(call, request.topic, request.queue_id)
    broker = call.served.broker
    if (request.boundary_type or "").lower() == "upper":
        # The last message that was stored then or before.
        after = broker.offset_at(queue, request.timestamp + 1)
        return Reply(OffsetAnswer(max(broker.min_offset(queue), after - 1)))
    return Reply(OffsetAnswer(broker.offset_at(queue, request.timestamp)))


@handlers.on(GetEarliestStoreTime)
def earliest_store_time(request: GetEarliestStoreTime, call: Call) -> Reply:
    queue = _readable(call, request.topic, request.queue_id)
    broker = call.served.broker
    found = broker.puller(queue)(broker.min_offset(queue), 1, 1, None, 0.0).messages
    return Reply(TimestampAnswer(found[0].store_time_ms if found else -1))


@handlers.on(QueryConsumerOffset)
def query(request: QueryConsumerOffset, call: Call) -> Reply:
    check_group(request.consumer_group)
    served, group = call.served, request.consumer_group
    queue = _readable(call, request.topic, request.queue_id)
    member = served.members.of(call.connection, group)

    def committed() -> int | None:
        return served.broker.consumer_groups.offsets(group, queue.topic).get(queue)

    if member is not None:
        offset = member.tell_offset(queue, committed)
    else:
        offset = served.members.known(call.connection, group).told(queue, committed)
    if offset is None and request.set_zero_if_not_found is not False:
        # RocketMQ's own rule; a client that begins at a time asks for its offset.
        begins_at_time = member is not None and member.consume_from is ConsumeFrom.TIMESTAMP
        if not begins_at_time and served.broker.min_offset(queue) <= 0:
            offset = 0
    if offset is None:
        raise Refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"Not found, maybe this group consumer boot first: {group} has no offset of"
            f" {queue.topic}/{queue.queue_id}",
        )
    return Reply(OffsetAnswer(offset))


@handlers.on(GetAllConsumerOffset)
def all_offsets(_: GetAllConsumerOffset, call: Call) -> Reply:
    """Every offset of every group."""
    broker = call.served.broker
    table = {}
    for group in broker.groups():
        for topic in broker.consumer_groups.topics(group):
            offsets = broker.consumer_groups.offsets(group, topic)
            table[f"{topic}@{group}"] = {queue.queue_id: offset for queue, offset in offsets.items()}
    return Reply(body=ConsumerOffsets(table))


@handlers.on(UpdateConsumerOffset)
def update(request: UpdateConsumerOffset, call: Call) -> Reply:
    queue = call.served.queue(request.topic, request.queue_id, None)
    commit(call, request.consumer_group, queue, request.commit_offset, may_fall=True)
    return DONE


@handlers.on(ResetConsumerOffset)
def reset(request: ResetConsumerOffset, call: Call) -> Reply:
    """Have a group consume from elsewhere: its members find out by their next pulls. Without is_force it goes
    back, and not forward, unless one queue is named. The answer is where the group is then."""
    group, broker = request.group, call.served.broker
    check_group(group)
    if group not in broker.groups():
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"group {group} does not exist: it does once a consumer of it has started or an offset was set",
        )
    committed = broker.consumer_groups.offsets(group, request.topic)
    if request.queue_id is not None and request.queue_id >= 0:
        queue = _readable(call, request.topic, request.queue_id)
        targets = {queue: _named_offset(request, call, queue)}
    else:
        targets = {queue: _offset_at(request, call, queue) for queue in broker.readable(request.topic)}
        if not request.is_force:
            targets = {queue: min(at, committed.get(queue, at)) for queue, at in targets.items()}
    broker.consumer_groups.reset(group, targets)
    return Reply(body=QueueOffsets(targets))


def _named_offset(request: ResetConsumerOffset, call: Call, queue: MessageQueue) -> int:
    """The offset that a reset of one queue names, else that of its time. Raises ValueError."""
    offset, broker = request.offset, call.served.broker
    if offset is None or offset < 0:
        return _offset_at(request, call, queue)
    begin, end = broker.min_offset(queue), broker.max_offset(queue)
    if not begin <= offset <= end:
        raise ValueError(
            f"offset {offset} is not in {queue.topic}/{queue.queue_id}: give one of {begin} to {end}"
        )
    return offset


def _offset_at(request: ResetConsumerOffset, call: Call, queue: MessageQueue) -> int:
    """The first offset of the time that a reset names; the end of the queue for a time below 0."""
    broker = call.served.broker
    if request.timestamp < 0:
        return broker.max_offset(queue)
    return broker.offset_at(queue, request.timestamp)


def commit(call: Call, group: str, queue: MessageQueue, offset: int, *, may_fall: bool = False) -> None:
    """Store a group's offset; may_fall: also one below what is committed, unless another member has the
    queue. After a reset that the client has not heard of, nothing is stored."""
    check_group(group)
    if offset < 0:
        return  # Some clients say so that they have nothing to commit.
    if queue.queue_id < 0:
        raise TopicInvalid(f"topic {queue.topic} has no queue {queue.queue_id}: the first one is 0")
    served = call.served
    member = served.members.of(call.connection, group)
    kept = member.kept(queue) if member is not None else None
    if member is not None and kept is not None and member.commit(queue, kept, offset, may_fall=may_fall):
        return
    if member is not None and member.model == "broadcasting":
        raise GroupInvalid(f"group {group} is broadcasting: its consumers keep their own offsets")
    known = member.known if member is not None else served.members.known(call.connection, group)
    # It takes note of what was reset until now, and stores nothing after another one.
    claim = known.assigned.claim(queue)
    if not known.covers(queue, known.now(queue)):
        return
    committed = served.broker.consumer_groups.offsets(group, queue.topic).get(queue)
    if committed is None or offset > committed:
        claim.commit(offset)
    elif may_fall and offset < committed and not _has_owner(call, group, queue):
        claim.correct(offset)


def _has_owner(call: Call, group: str, queue: MessageQueue) -> bool:
    states = call.served.broker.consumer_groups.states(group, queue.topic)
    return any(state.owner is not None for state in states if state.queue == queue)


def _readable(call: Call, topic: str, queue_id: int) -> MessageQueue:
    """A queue of a topic that there is. Raises TopicNotFound, NotPermitted, ValueError."""
    queues = call.served.broker.readable(topic)
    for queue in queues:
        if queue.queue_id == queue_id:
            return queue
    raise ValueError(f"topic {topic} has queues 0 to {len(queues) - 1} to read, none of id {queue_id}")
