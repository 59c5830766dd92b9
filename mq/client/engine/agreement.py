"""Members of a group subscribe to the same: who differs is refused at once, not only when it joins."""

from __future__ import annotations

from mq.api.broker import Broker
from mq.api.group import Subscription
from mq.errors import SubscriptionConflict

__all__ = ["check_agreement"]


def check_agreement(broker: Broker, group: str, wanted: Subscription) -> None:
    """Raises SubscriptionConflict where a live member of the group subscribes to the topic otherwise."""
    for member in broker.group_members(group):
        for other in member.subscriptions:
            if other.topic == wanted.topic and other != wanted:
                raise SubscriptionConflict(
                    f"group {group}: this consumer would subscribe to {_shown(wanted)}, but the live member"
                    f" {member.client_id} (pid {member.pid}) has {_shown(other)}: give both the same, or this"
                    " one a group of its own",
                    group=group,
                    ours=(wanted,),
                    theirs=member.subscriptions,
                    pid=member.pid,
                )


def _shown(subscription: Subscription) -> str:
    return f"{subscription.topic} by {subscription.kind} {subscription.expression!r}"


def check_consume_from(consume_from: str | int) -> None:
    """Raises ValueError."""
    if consume_from not in ("first", "last") and not (isinstance(consume_from, int) and consume_from >= 0):
        raise ValueError(f"consume_from is {consume_from!r}: give 'first', 'last', or a time in ms")
