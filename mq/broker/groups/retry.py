"""What a consumer could not consume: handed back for another attempt, and dead letters in the end.

Handed back, a message is stored again, once more consumed: for the topic %RETRY%<group>, put aside in the
delay level that was asked for, else in 3 + the number of attempts before (10 s, 30 s, 1 min … 2 h). After
the last attempt it becomes a dead letter: stored in %DLQ%<group>, where it stays until somebody sends it
back (redrive.py). A copy keeps body, flag, tags, keys, the time and host of its birth, its unique id, and
says where it comes from:

    RETRY_TOPIC            the topic that it was sent to, through all attempts
    ORIGIN_MESSAGE_ID      the offset id of the message that was sent
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID    the same of a dead letter

RocketMQ: broker/processor/AbstractSendMessageProcessor.java, consumerSendMsgBack.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from mq.broker.delay.schedule import Schedule
from mq.broker.topics.registry import Catalog
from mq.message import MessageExt
from mq.names import DEAD_PREFIX, RETRY_PREFIX, check_group
from mq.store.log.reappend import Turn, TurnOver, changed

__all__ = ["HandBack", "SendBack", "handed_back", "send_back"]

LEVELS_BEFORE = 3  # The first attempt after the first failure is of level 3.
RECONSUME_TIMES_MAX = 16

# send_back for one broker: message, group, delay_level, max_reconsume_times, turn
SendBack = Callable[[MessageExt, str, int, int, "Callable[[], Turn | None]"], bool]


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
    delay_level: int,
    max_reconsume_times: int,
    turn: Callable[[], Turn | None],
) -> bool:
    """See Claim.send_back. turn() is that of the claim; None where nobody owns the queue. Raises TurnOver."""
    topics.check_writable()
    check_group(group)
    back = handed_back(message, group, delay_level, max_reconsume_times)
    queue_id = random.randrange(topics.target(back.topic).write_queue_count)
    try:
        with topics.first_send([(back.topic, queue_id)]):
            _store_back(schedule, queue_id, message, back, turn())
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
