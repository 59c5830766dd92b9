"""What each request does: one table of all handlers.

routes.py    name server: where topics are          sending.py   storing messages
offsets.py   ends of queues, offsets of groups      pulling.py   pulls, and pulls that wait
groups.py    heartbeats, members, settings          locks.py     queues for consumption in order
queries.py   messages by id and by key              topics.py    making and deleting topics
send_backs.py   what a consumer failed to consume   transactions.py   how transactions end
request_replies.py   what consumers reply           order_settings.py   topics for messages in order
standby.py   what replicas ask                      operators/   what operators ask of all of it
"""

from __future__ import annotations

from mq.remoting.server.dispatch import Handlers
from mq.remoting.server.handlers import (
    groups,
    locks,
    offsets,
    operators,
    order_settings,
    pulling,
    queries,
    request_replies,
    routes,
    send_backs,
    sending,
    standby,
    topics,
    transactions,
)

__all__ = ["ALL"]

ALL = Handlers()
for each in (
    groups,
    locks,
    offsets,
    operators,
    order_settings,
    pulling,
    queries,
    request_replies,
    routes,
    send_backs,
    sending,
    standby,
    topics,
    transactions,
):
    ALL.add(each.handlers)
