"""What operators and their tools ask.

broker_state.py   settings and figures of the broker    clients.py   what they ask of one consumer
statistics.py     where queues and groups are           rates.py     how fast they move
upkeep.py         what is done at once
"""

from __future__ import annotations

from mq.remoting.server.dispatch import Handlers
from mq.remoting.server.handlers.operators import broker_state, clients, rates, statistics, upkeep

__all__ = ["handlers"]

handlers = Handlers()
for each in (broker_state, clients, rates, statistics, upkeep):
    handlers.add(each.handlers)
