"""What a consumer subscribes to. Members of a group subscribe to the same: one that differs is refused at
once, not only when it joins."""

from __future__ import annotations

from mq.api.broker import Broker
from mq.api.group import Subscription
from mq.errors import NotPermitted, RemotingError, RequestTimeout, SubscriptionConflict
from mq.filter.selection import Selection
from mq.names import check_topic

__all__ = ["check_agreement", "subscription_of"]


def subscription_of(topic: str, expression: str | None, sql: str | None) -> tuple[Subscription, Selection]:
    """A subscription by tags, or by SQL92, and what it selects. Raises FilterSyntaxError, TopicInvalid."""
    check_topic(topic)
    selection = Selection.of(expression, sql)
    if sql is not None:
        return Subscription(topic, sql.strip(), "SQL92"), selection
    return Subscription(topic, (expression or "*").strip() or "*"), selection


def check_agreement(broker: Broker, group: str, wanted: Subscription) -> None:
    """Raises SubscriptionConflict where a live member of the group subscribes to the topic otherwise."""
    try:
        members = broker.consumer_groups.members(group)
    except (NotPermitted, RemotingError, RequestTimeout):
        return  # A cluster may tell its operators alone, and a broker of it may be down.
    for member in members:
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
