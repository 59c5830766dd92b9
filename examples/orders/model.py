"""The orders of a day, and the expected final state of each. Pure: no messages, no database.

The final state depends on the order alone, not on which process is faster, so the orders are computed one
after the other:

    by card        the customer has the money: paid, at once or when the card company answers again
                   otherwise: unpayable
    by transfer    the bank carries it out before the deadline: paid
                   after it: cancelled, and the money goes back when it comes
                   never: cancelled

A customer without money pays by card; any other customer has enough for all of their orders.
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
LATEST = 2.0  # the latest payment of the bank, as a multiple of the deadline
FINAL_STATES = ("paid", "cancelled", "unpayable")

ORDERS_OF_ONE = 20  # customer, on average
POOR_PART = 0.05
CARD_PART = 0.7
UNREACHABLE_PART = 0.1  # of the orders by card, at the first try
CENTS_MIN, CENTS_MAX = 100, 50_000


class Order(NamedTuple):
    """An order of a customer, and its means of payment."""

    number: int
    customer: str
    cents: int
    method: str  # "card" or "transfer"
    unreachable_times: int  # how often the card company does not answer
    transfer_at: float | None  # when the bank pays, as a multiple of the deadline; None: never


class Change(NamedTuple):
    """A change of an order, which a message reports."""

    number: int
    what: str  # a final state, or "refunded"
    customer: str
    cents: int


@dataclass(frozen=True, slots=True)
class World:
    """The state before the first order."""

    accounts: dict[str, int]  # cents
    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """The state after the last order."""

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
            # Not close to the deadline, where the result would depend on the clock.
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
    """The payments of a change: payer, payee and cents."""
    there = (change.customer, SHOP, change.cents)
    if change.what == "paid":
        return (there,)
    if change.what == "refunded":
        return (there, (SHOP, change.customer, change.cents))
    return ()
