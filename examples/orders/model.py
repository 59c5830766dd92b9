"""The orders of a day, and what must have become of each when all is done. Pure: no message, no database.

How an order ends depends on the order alone, never on which process is quicker, so what is expected here is
computed one order after the other:

    by card        the customer has the money: paid, at once or when the card company can be reached again
                   the customer has not: unpayable
    by transfer    the bank carries it out before the deadline: paid
                   after it: cancelled, and the money goes back when it comes
                   never: cancelled

Who has no money pays by card, and who has some has enough for all that he orders.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "FINAL_STATES",
    "LATEST",
    "SHOP",
    "TRIES_MAX",
    "Change",
    "Expected",
    "Order",
    "World",
    "expected",
    "generate",
    "movements",
]

SHOP = "the shop"
TRIES_MAX = 3  # at a card
LATEST = 2.0  # when the bank pays, in times of the deadline
FINAL_STATES = ("paid", "cancelled", "unpayable")

ORDERS_OF_ONE = 20  # customer, on average
POOR_PART = 0.05
CARD_PART = 0.7
UNREACHABLE_PART = 0.1  # of the orders by card, at the first try
CENTS_MIN, CENTS_MAX = 100, 50_000


class Order(NamedTuple):
    """What a customer wants, and how he pays."""

    number: int
    customer: str
    cents: int
    method: str  # "card" or "transfer"
    unreachable_times: int  # that the card company does not answer
    transfer_at: float | None  # in times of the deadline: when the bank pays; None is never


class Change(NamedTuple):
    """Something that happens to an order, of which a message tells."""

    number: int
    what: str  # a final state, or "refunded"
    customer: str
    cents: int


@dataclass(frozen=True, slots=True)
class World:
    """What there is before the first order comes in."""

    accounts: dict[str, int]  # cents
    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What there is after the last."""

    accounts: dict[str, int]
    states: dict[int, str]  # of each order
    changes: frozenset[Change]


def generate(seed: int, count: int) -> World:
    """The same world for the same seed and count."""
    chance = random.Random(seed)
    customers = [f"customer {number}" for number in range(1, max(2, count // ORDERS_OF_ONE) + 1)]
    poor = set(customers[: max(1, int(len(customers) * POOR_PART))])
    accounts = {
        customer: chance.randrange(CENTS_MIN) if customer in poor else chance.randrange(CENTS_MAX)
        for customer in customers
    }
    accounts[SHOP] = 0
    orders: list[Order] = []
    for number in range(1, count + 1):
        customer = chance.choice(customers)
        cents = chance.randint(CENTS_MIN, CENTS_MAX)
        by_card = customer in poor or chance.random() < CARD_PART
        unreachable_times = 0
        transfer_at: float | None = None
        if by_card:
            if customer not in poor and chance.random() < UNREACHABLE_PART:
                unreachable_times = chance.randrange(1, TRIES_MAX)
        else:
            # Not close to the deadline: what happens there is for the clock to say.
            transfer_at = chance.choice([chance.uniform(0.1, 0.8), chance.uniform(1.2, LATEST), None])
        if customer not in poor:
            accounts[customer] += cents
        method = "card" if by_card else "transfer"
        orders.append(Order(number, customer, cents, method, unreachable_times, transfer_at))
    return World(accounts, tuple(orders))


def expected(world: World) -> Expected:
    accounts = dict(world.accounts)
    states: dict[int, str] = {}
    changes: set[Change] = set()
    for order in world.orders:
        if order.method == "card":
            happens = ["paid" if accounts[order.customer] >= order.cents else "unpayable"]
        elif order.transfer_at is None:
            happens = ["cancelled"]
        else:
            happens = ["paid"] if order.transfer_at < 1 else ["cancelled", "refunded"]
        states[order.number] = happens[0]
        for what in happens:
            change = Change(order.number, what, order.customer, order.cents)
            changes.add(change)
            for payer, payee, cents in movements(change):
                accounts[payer] -= cents
                accounts[payee] += cents
    return Expected(accounts, states, frozenset(changes))


def movements(change: Change) -> Sequence[tuple[str, str, int]]:
    """Who pays whom how much when this happens."""
    there = (change.customer, SHOP, change.cents)
    if change.what == "paid":
        return (there,)
    if change.what == "refunded":
        return (there, (SHOP, change.customer, change.cents))
    return ()
