"""What each request does: one table of all handlers.

routes.py    name server: where topics are          sending.py   storing messages, replies
offsets.py   ends of queues, offsets of groups      pulling.py   pulls, and pulls that wait
groups.py    heartbeats, members, settings          locks.py     queues for consumption in order
queries.py   messages by id and by key              topics.py    making and deleting topics
send_backs.py   what a consumer failed to consume   transactions.py   how transactions end
standby.py   what replicas ask   broker_state.py   settings and figures of the broker
statistics.py   where queues and groups are, as operators ask   rates.py   how fast they move
clients.py   what operators ask of one consumer      order_settings.py   topics for messages in order
"""

from __future__ import annotations

from mq.remoting.server.dispatch import Handlers
from mq.remoting.server.handlers import (
    broker_state,
    clients,
    groups,
    locks,
    offsets,
    order_settings,
    pulling,
    queries,
    rates,
    routes,
    send_backs,
    sending,
    standby,
    statistics,
    topics,
    transactions,
)

__all__ = ["ALL"]

ALL = Handlers()
for each in (
    broker_state,
    clients,
    groups,
    locks,
    offsets,
    order_settings,
    pulling,
    queries,
    rates,
    routes,
    send_backs,
    sending,
    standby,
    statistics,
    topics,
    transactions,
):
    ALL.add(each.handlers)
