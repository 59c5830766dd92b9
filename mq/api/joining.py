"""What is checked when a consumer joins a group: what it is, and that it agrees with the other members. And
when a group is to be deleted: that it has none.

Members of a group subscribe to the same, or are refused: a queue given to a member that wants nothing of its
topic would not be consumed by anybody.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence

from mq.api.group import Member, Model, Subscription
from mq.errors import GroupInvalid, NotPermitted, SubscriptionConflict
from mq.names import check_group, check_topic, is_system_group

__all__ = ["check_agreement", "check_deletable", "check_unused", "checked", "joining"]

MODELS = ("clustering", "broadcasting")
CONSUME_TYPES = ("push", "pull")
KINDS = ("TAG", "SQL92")
TIME_MAX = 1 << 62
NAMED_MAX = 5  # members, in an error


def check_agreement(group: str, others: Mapping[int, Member], member: Member) -> None:
    """Raises SubscriptionConflict for a member that would differ, GroupInvalid for a client id in use."""
    for other in others.values():
        if other.client_id == member.client_id:
            raise GroupInvalid(
                f"group {group} has a live consumer with the client id {member.client_id!r} already, in"
                f" process {other.pid}: each has one of its own"
            )
        ours, theirs = _manner(member), _manner(other)
        if ours != theirs or _differ(member, other):
            raise SubscriptionConflict(
                f"group {group} has a live consumer, in process {other.pid}, that does otherwise. It:"
                f" {theirs}, {_shown(other)}; this one: {ours}, {_shown(member)}. All consumers of a group"
                " subscribe to the same: use another group, or close that consumer first",
                group=group,
                ours=member.subscriptions,
                theirs=other.subscriptions,
                pid=other.pid,
            )


def check_deletable(group: str) -> None:
    """Raises GroupInvalid, NotPermitted for what is no group of a user's."""
    check_group(group)
    if is_system_group(group):
        raise NotPermitted(f"{group} is one of RocketMQ's own groups and stays")


def check_unused(group: str, members: Sequence[Member]) -> None:
    """Raises NotPermitted for a group that has members."""
    if members:
        named = ", ".join(f"{each.client_id} ({_place(each)})" for each in members[:NAMED_MAX])
        more = f" and {len(members) - NAMED_MAX:,} more" if len(members) > NAMED_MAX else ""
        raise NotPermitted(
            f"group {group} cannot be deleted while it has live consumers: {named}{more}. Close them first"
        )


def _place(member: Member) -> str:
    """Where a member is. The brokers of a cluster do not tell its process."""
    return f"pid {member.pid} on {member.host}" if member.pid else member.host


def _manner(member: Member) -> str:
    return f"{member.model}, {'ordered' if member.ordered else 'concurrent'}"


def _differ(ours: Member, theirs: Member) -> bool:
    """Whether both subscribe, and to different things."""
    return bool(ours.subscriptions and theirs.subscriptions and ours.subscriptions != theirs.subscriptions)


def _shown(member: Member) -> str:
    wanted = (f"{topic} by {kind} {expression!r}" for topic, expression, kind in member.subscriptions)
    return " and ".join(wanted) or "no topic yet"


def checked(subscriptions: Sequence[Subscription]) -> tuple[Subscription, ...]:
    for topic, expression, kind in subscriptions:
        check_topic(topic)
        if kind not in KINDS:
            raise ValueError(f"the kind of a subscription is {kind!r}: give 'TAG' or 'SQL92'")
        if not isinstance(expression, str):
            raise TypeError(f"an expression is a str, not {type(expression).__name__}")
    topics = [subscription[0] for subscription in subscriptions]
    if len(set(topics)) != len(topics):
        raise ValueError(f"a topic is subscribed to twice: {sorted(topics)}")
    return tuple(sorted(Subscription(*subscription) for subscription in subscriptions))


def joining(
    client_id: str,
    model: Model,
    consume_type: str,
    ordered: bool,
    subscriptions: Sequence[Subscription],
    consume_from: str | int | None,
    host: str | None,
) -> Member:
    """A consumer that this process is about to have join. Raises ValueError, TypeError, TopicInvalid."""
    if not isinstance(client_id, str) or not client_id:
        raise ValueError(f"client_id is {client_id!r}: give some text")
    if model not in MODELS:
        raise ValueError(f"model is {model!r}: give 'clustering' or 'broadcasting'")
    if consume_type not in CONSUME_TYPES:
        raise ValueError(f"consume_type is {consume_type!r}: give 'push' or 'pull'")
    is_time = isinstance(consume_from, int) and not isinstance(consume_from, bool)
    if consume_from not in ("first", "last", None) and not (is_time and abs(int(consume_from)) < TIME_MAX):
        raise ValueError(f"consume_from is {consume_from!r}: give 'first', 'last', or a time in ms")
    process = os.getpid(), host or socket.gethostname(), time.time_ns() // 1_000_000
    return Member(client_id, *process, model, consume_type, bool(ordered), checked(subscriptions))
