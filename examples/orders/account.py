"""Compare the result of a run with the model. Pure, except for `found`, which reads the result."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import mq
from examples.orders.books import Books
from examples.orders.model import SHOP, Change, Expected, Order, World
from examples.orders.office import DEAD_LETTERS, DUE, number_of
from examples.orders.plan import Plan
from examples.orders.shop import CHANGES, ORDERS, Placed, Shop

__all__ = ["Alarm", "Found", "SentMessage", "found", "verdict"]


class SentMessage(NamedTuple):
    """A message that was committed together with a change of the database."""

    msg_id: str
    number: int
    what: str  # "placed", or of a Change


class Alarm(NamedTuple):
    """The message that an order's deadline has come."""

    number: int
    due_ms: int
    came_ms: int


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of the databases and the topics."""

    orders: Sequence[Placed]
    accounts: Mapping[str, int]
    outbox: Mapping[str, bool]
    sent: Sequence[SentMessage]
    written: frozenset[Change]  # in the books
    moved: Mapping[str, int]  # in the books, by account
    dead: Sequence[int]  # orders of the dead letters
    alarms: Sequence[Alarm]
    undecided: int  # transactions


def verdict(found: Found, world: World, expected: Expected) -> dict[str, bool]:
    """Each statement about the run, with whether it holds."""
    deadlines = {order.number: order.deadline_ms for order in found.orders}
    unpayable = {number for number, state in expected.states.items() if state == "unpayable"}
    states = Counter(expected.states.values())
    committed = sorted(msg_id for msg_id, is_sent in found.outbox.items() if is_sent)
    sent = Counter((each.number, each.what) for each in found.sent)
    happened = Counter((change.number, change.what) for change in expected.changes)
    happened.update((order.number, "placed") for order in world.orders)
    moved = {account: cents - world.accounts[account] for account, cents in expected.accounts.items()}
    income = expected.accounts[SHOP] / 100
    listed = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    return {
        f"each of {len(world.orders):,} orders is in one final state, the model's: {listed}": (
            sorted((order.number, order.state) for order in found.orders) == sorted(expected.states.items())
        ),
        f"{len(expected.accounts):,} balances are the model's; the shop has {income:,.2f} €": (
            found.accounts == expected.accounts
        ),
        f"{len(committed):,} transactions were committed: the message of each was sent, once, and no other": (
            sorted(each.msg_id for each in found.sent) == committed
        ),
        "no transaction is left undecided": found.undecided == 0,
        f"{sum(happened.values()):,} messages tell of what has happened, each of another thing": sent
        == happened,
        "the books, kept from messages alone, say the same, and are balanced": (
            found.written == expected.changes
            and sum(found.moved.values()) == 0
            and {account: found.moved.get(account, 0) for account in moved} == moved
        ),
        f"{len(unpayable):,} orders are in the dead letters: the unpayable ones": set(found.dead)
        == unpayable,
        f"the alarm of each of {len(world.orders):,} orders came, none before its deadline": (
            {alarm.number for alarm in found.alarms} == set(deadlines)
            and all(alarm.came_ms >= alarm.due_ms >= deadlines[alarm.number] for alarm in found.alarms)
        ),
        f"none of {states['cancelled']:,} orders was cancelled before its deadline": all(
            order.changed_ms is not None and order.changed_ms >= order.deadline_ms
            for order in found.orders
            if order.state == "cancelled"
        ),
    }


def found(plan: Plan) -> Found:
    with Shop(plan.shop) as shop, Books(plan.books) as books, plan.open_broker() as broker:
        sent = [
            SentMessage(message.msg_id, Order(*json.loads(message.body)).number, "placed")
            for message in messages(broker, ORDERS)
        ]
        for message in messages(broker, CHANGES):
            change = Change(*json.loads(message.body))
            sent.append(SentMessage(message.msg_id, change.number, change.what))
        return Found(
            orders=[Placed(*row) for row in shop.rows("SELECT * FROM orders")],
            accounts=dict(shop.rows("SELECT name, cents FROM accounts")),
            outbox=dict(shop.rows("SELECT msg_id, is_sent FROM outbox")),
            sent=sent,
            written=frozenset(books.changes()),
            moved=books.movements(),
            dead=[number_of(message) for message in messages(broker, DEAD_LETTERS)],
            alarms=[
                Alarm(number_of(message), int(message.body), message.store_time_ms)
                for message in messages(broker, DUE)
                if message.tags == "alarm"
            ],
            undecided=len(broker.transactions.undecided()),
        )


def messages(broker: mq.Broker, topic: str) -> Iterator[mq.MessageExt]:
    """All messages of a topic."""
    with suppress(mq.TopicNotFound):
        for queue in broker.topic(topic).queues:
            result = queue.read(queue.min_offset, count_max=1000)
            while result.messages:
                yield from result.messages
                result = queue.read(result.next_offset, count_max=1000)
