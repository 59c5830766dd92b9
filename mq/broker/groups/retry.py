"""What a consumer could not consume: handed back for another attempt, and dead letters in the end.

Handed back, a message is stored again, once more consumed: for the topic %RETRY%<group>, put aside in the
delay level that was asked for, else in 3 + the number of attempts before (10 s, 30 s, 1 min … 2 h). After
the last attempt it becomes a dead letter: stored in %DLQ%<group>, where it stays until somebody sends it
back (redrive). A copy keeps body, flag, tags, keys, the time and host of its birth, its unique id, and says
where it comes from:

    RETRY_TOPIC            the topic that it was sent to, through all attempts
    ORIGIN_MESSAGE_ID      the offset id of the message that was sent
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID    the same of a dead letter

Sent back, a dead letter is stored in the group's retry topic, to be consumed at once and by this group alone.
Where all groups are to have it, it is stored in its topic instead, in the queue that it was first sent to, as
long as the log still has the message of ORIGIN_MESSAGE_ID; in any queue after that. Either way it is as if it
had never been consumed, and DLQ_ORIGIN_MESSAGE_ID names the dead letter. So it is known which ones were sent
back, also after the process that did it died.

RocketMQ: broker/processor/AbstractSendMessageProcessor.java, consumerSendMsgBack.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mq.api.group import Claim
from mq.api.results import MessageQueue, PullStatus
from mq.broker.delay.schedule import Schedule
from mq.broker.groups.claim import LocalClaim
from mq.errors import MessageNotFound, MQError, NotPermitted, StoreCorrupted, TopicInvalid, TopicNotFound
from mq.fastpath import Guard
from mq.filter.selection import Selection
from mq.message import MessageExt
from mq.names import DEAD_PREFIX, RETRY_PREFIX, check_group
from mq.store.log.reappend import Turn, TurnOver, changed
from mq.store.shared.lock_guards import file_lock

if TYPE_CHECKING:
    from mq.broker.local import LocalBroker
    from mq.broker.topics.registry import Catalog

__all__ = ["DEAD_PREFIX", "RETRY_PREFIX", "HandBack", "Redriven", "handed_back", "redrive", "send_back"]

LEVELS_BEFORE = 3  # The first attempt after the first failure is of level 3.
RECONSUME_TIMES_MAX = 16
REDRIVE_GROUP = "CID_RMQ_SYS_redrive"  # Its offsets of %DLQ% topics are those up to which all are sent back.
READ_COUNT, READ_SIZE = 32, 256 << 10
COPIES_MAX = 1024  # How often one message may have died and been sent back.

log = logging.getLogger("mq.groups")


class HandBack(NamedTuple):
    """What becomes of a message that is handed back."""

    topic: str
    delay_level: int  # 0: stored in its topic at once
    reconsume_times: int
    properties: dict[str, str]  # to be set


def handed_back(
    message: MessageExt, group: str, delay_level: int = 0, max_reconsume_times: int = RECONSUME_TIMES_MAX
) -> HandBack:
    """What becomes of a message handed back after its listener failed. Pure.

    delay_level 0 leaves the delay to the number of attempts, below 0 makes it a dead letter at once, as
    max_reconsume_times failures do; -1 of those stands for RocketMQ's 16.
    """
    times = message.reconsume_times
    known = message.properties
    origin_topic = known.get("RETRY_TOPIC") or message.topic
    origin_id = known.get("ORIGIN_MESSAGE_ID") or message.offset_msg_id
    properties = {
        "RETRY_TOPIC": origin_topic,
        "ORIGIN_MESSAGE_ID": origin_id,
        "WAIT": "false",
    }
    if max_reconsume_times < 0:
        max_reconsume_times = RECONSUME_TIMES_MAX
    if times >= max_reconsume_times or delay_level < 0:
        properties |= {
            "DELAY": "0",
            "DLQ_ORIGIN_TOPIC": origin_topic,
            "DLQ_ORIGIN_MESSAGE_ID": origin_id,
        }
        return HandBack(DEAD_PREFIX + group, 0, times + 1, properties)
    level = delay_level or LEVELS_BEFORE + times
    return HandBack(RETRY_PREFIX + group, level, times + 1, properties)


def send_back(
    schedule: Schedule,
    topics: Catalog,
    message: MessageExt,
    group: str,
    delay_level: int = 0,
    max_reconsume_times: int = RECONSUME_TIMES_MAX,
    claim: Claim | None = None,
) -> bool:
    """See Broker.send_back."""
    check_group(group)
    back = handed_back(message, group, delay_level, max_reconsume_times)
    queue_id = random.randrange(topics.target(back.topic).write_queue_count)
    try:
        with topics.first_send([(back.topic, queue_id)]):
            turn = claim.turn_of_it() if isinstance(claim, LocalClaim) else None
            _store_back(schedule, queue_id, message, back, turn)
    except TurnOver:
        return False
    return True


def _store_back(
    schedule: Schedule, queue_id: int, message: MessageExt, back: HandBack, turn: Turn | None
) -> None:
    if back.delay_level:
        schedule.put_aside(
            back.topic,
            queue_id,
            message,
            back.properties,
            schedule.level(back.delay_level),
            back.reconsume_times,
            turn,
        )
    else:
        copy = schedule.copies.append(
            back.topic,
            queue_id,
            message,
            changed(message.encoded, back.properties),
            reconsume_times=back.reconsume_times,
            turn=turn,
        )
        schedule.kept(copy)


class Redriven(NamedTuple):
    """What became of a group's dead letters."""

    sent: int  # to be consumed again; with dry_run, that would be
    left: int  # not selected
    known: int  # sent back before
    stuck: int  # whose topic is gone, or may not be written; the log says which


def redrive(
    broker: LocalBroker,
    group: str,
    *,
    selection: Selection | None = None,
    count_max: int | None = None,
    dry_run: bool = False,
    all_groups: bool = False,
) -> Redriven:
    """Have a group consume its dead letters again, oldest first; each one is sent once.

    They go to the group's retry topic, so no other group gets them; its push consumers see them under the
    topic that they came from, and those of an ordered group in the order in which they are sent, beside what
    the queues of the topic hold. With all_groups they are sent to that topic itself, each to the queue that
    it was in, for every group to consume.

    selection leaves out some, which a later call may send; count_max is how many to send at the most. Raises
    GroupInvalid; NotPermitted where another process is at it.
    """
    check_group(group)
    try:
        queues = broker.readable(DEAD_PREFIX + group)
    except TopicNotFound:
        return Redriven(0, 0, 0, 0)
    with _alone(broker, group):
        total = Redriven(0, 0, 0, 0)
        for queue in queues:
            left = None if count_max is None else count_max - total.sent
            counts = _redrive_queue(broker, group, queue, selection, left, dry_run, all_groups)
            total = Redriven(*(before + more for before, more in zip(total, counts, strict=True)))
    return total


def _redrive_queue(
    broker: LocalBroker,
    group: str,
    queue: MessageQueue,
    selection: Selection | None,
    count_max: int | None,
    dry_run: bool,
    all_groups: bool,
) -> Redriven:
    sent = left = known = stuck = 0
    done = broker.committed(REDRIVE_GROUP, queue) or 0
    offset = max(done, broker.min_offset(queue))
    pull = broker.puller(queue)
    is_whole = True  # Nothing before `offset` is left to be sent by a later call.
    while count_max is None or sent < count_max:
        try:
            found = pull(offset, READ_COUNT, READ_SIZE, None, 0.0)
        except StoreCorrupted as error:
            if error.queue_offset is None:
                raise
            offset = error.queue_offset + 1
            continue
        if found.status is not PullStatus.FOUND:
            break
        messages = list(found.messages)
        wanted = messages if selection is None else selection.keep(messages)
        chosen = {message.queue_offset for message in wanted}
        for message in messages:
            if count_max is not None and sent == count_max:
                return Redriven(sent, left, known, stuck)
            topic = message.properties.get("DLQ_ORIGIN_TOPIC") or message.properties.get("RETRY_TOPIC")
            if message.queue_offset not in chosen:
                left += 1
                is_whole = False
            elif topic is None or not _has_target(broker, topic, all_groups, message):
                stuck += 1
                is_whole = False
            elif _was_sent(broker, (RETRY_PREFIX + group, topic), message):
                known += 1
            else:
                sent += 1
                if not dry_run:
                    to = topic if all_groups else RETRY_PREFIX + group
                    target = _target(broker, to, message)
                    with broker._catalog.first_send([(target.topic, target.queue_id)]):
                        _send_again(broker, target, topic, message)
            if is_whole and not dry_run:
                broker.commit(REDRIVE_GROUP, queue, message.queue_offset + 1)
        offset = found.next_offset
    return Redriven(sent, left, known, stuck)


def _has_target(broker: LocalBroker, topic: str, all_groups: bool, message: MessageExt) -> bool:
    """Whether there is still a topic to consume this from, or to send it to."""
    try:
        if all_groups:
            broker.publishable(topic)
        else:
            broker.topic(topic)
        return True
    except (TopicNotFound, TopicInvalid, NotPermitted) as error:
        log.warning("dead letter %s stays where it is: %s", message.msg_id, error)
        return False


def _target(broker: LocalBroker, topic: str, message: MessageExt) -> MessageQueue:
    """The queue of a topic that has the place of the one in which the message was."""
    queues = broker.publishable(topic)
    queue_id = _origin_queue(broker, message) if len(queues) > 1 else 0
    return random.choice(queues) if queue_id is None else queues[queue_id % len(queues)]


def _origin_queue(broker: LocalBroker, message: MessageExt) -> int | None:
    """The queue that a dead letter was first sent to; None if the log does not have that message any more."""
    try:
        return broker.message(message.properties.get("ORIGIN_MESSAGE_ID", "")).queue_id
    except (MessageNotFound, StoreCorrupted):
        return None


def _was_sent(broker: LocalBroker, topics: Iterable[str], message: MessageExt) -> bool:
    return any(
        found.properties.get("DLQ_ORIGIN_MESSAGE_ID") == message.offset_msg_id
        for topic in topics
        if broker._catalog.exists(topic)
        for found in broker.query(topic, message.msg_id, count_max=COPIES_MAX)
    )


def _send_again(broker: LocalBroker, target: MessageQueue, topic: str, message: MessageExt) -> None:
    properties = {
        "DLQ_ORIGIN_TOPIC": topic,
        "DLQ_ORIGIN_MESSAGE_ID": message.offset_msg_id,
        **dict.fromkeys(("RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "DELAY", "WAIT")),
    }
    if target.topic != topic:
        properties["RETRY_TOPIC"] = topic  # by which a consumer knows where it is from
    schedule = broker._schedule
    copy = schedule.copies.append(
        target.topic, target.queue_id, message, changed(message.encoded, properties), reconsume_times=0
    )
    schedule.kept(copy)


def _alone(broker: LocalBroker, group: str) -> Guard:
    def busy() -> MQError:
        return NotPermitted(f"another process is sending dead letters back: try {group} when it is done")

    return file_lock(broker.path / "mq" / "redrive", 0, "sending dead letters back", 0.0, busy=busy)
