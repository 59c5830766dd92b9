"""Names of topics and groups: what RocketMQ allows, and what it keeps for itself.

ASCII letters, digits and % | _ - alone: 1 to 127 of them for a topic, 1 to 120 for a group (whose
retry topic %RETRY%<group> must be a topic's name as well). Dots and spaces are not allowed.
"""

from __future__ import annotations

import re

from mq.errors import GroupInvalid, TopicInvalid

TOPIC_SIZE_MAX = 127
GROUP_SIZE_MAX = 120

# RocketMQ's own topics, besides every name that starts with rmq_sys_.
SYSTEM_TOPICS = frozenset(
    """TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC
    TRANS_CHECK_MAX_TIME_TOPIC RMQ_SYS_TRACE_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT
    CHECKPOINT_TOPIC""".split()  # noqa: SIM905 - as a list it would fill a screen
)
SYSTEM_PREFIX = "rmq_sys_"
RETRY_PREFIX = "%RETRY%"  # with the name of a group: the topic of what it failed to consume
DEAD_PREFIX = "%DLQ%"  # the same, of what it gave up
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"  # Its offsets are those up to which all transactions have ended.
REDRIVE_GROUP = "CID_RMQ_SYS_redrive"  # Its offsets of %DLQ% topics are those up to which all are sent back.
# Those of them that a user may not send to. The timer topic is our addition: what does not say when it is due
# would never leave it.
UNSENDABLE_TOPICS = frozenset(
    """SCHEDULE_TOPIC_XXXX RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC
    SELF_TEST_TOPIC OFFSET_MOVED_EVENT rmq_sys_wheel_timer""".split()  # noqa: SIM905 - as a list it would fill a screen
)

# Topics found good before: a send asks here first. Emptied when full.
known_topics: set[str] = set()
_KNOWN_TOPICS_MAX = 4096

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def check_topic(name: str) -> None:
    """Raises TopicInvalid for what is no name of a topic."""
    if type(name) is not str:
        raise TypeError(f"a topic is a str, not {type(name).__name__}")
    if name in known_topics:
        return
    if not 1 <= len(name) <= TOPIC_SIZE_MAX or not _ALLOWED.fullmatch(name):
        raise TopicInvalid(_explain("topic", name, TOPIC_SIZE_MAX))
    if len(known_topics) >= _KNOWN_TOPICS_MAX:
        known_topics.clear()
    known_topics.add(name)


def check_group(name: str) -> None:
    """Raises GroupInvalid for what is no name of a group."""
    if type(name) is not str:
        raise TypeError(f"a group is a str, not {type(name).__name__}")
    if not 1 <= len(name) <= GROUP_SIZE_MAX or not _ALLOWED.fullmatch(name):
        raise GroupInvalid(_explain("group", name, GROUP_SIZE_MAX))


def is_system_group(name: str) -> bool:
    """Whether a group is one of RocketMQ's own, whose offsets say how far its own topics are done."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


def is_group_name(name: str) -> bool:
    """Whether a group may have this name, wherever it comes from."""
    try:
        check_group(name)
    except GroupInvalid:
        return False
    return True


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name, wherever it comes from."""
    try:
        check_topic(name)
    except TopicInvalid:
        return False
    return True


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def _explain(kind: str, name: str, size_max: int) -> str:
    shown = name if len(name) <= 140 else name[:137] + "..."
    return (
        f"{kind} {shown!r} must have 1 to {size_max} characters, and has {len(name)},"
        " of which each must be one of A-Z a-z 0-9 _ - % |"
    )
