"""The verdict on a run of orders is worth something: each way to get one wrong is noticed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from examples.orders.account import Alarm, Found, SentMessage, verdict
from examples.orders.model import SHOP, Change, Order, World, expected
from examples.orders.shop import Placed

WORLD = World(
    {"ann": 1000, "bob": 10, SHOP: 0},
    (
        Order(1, "ann", 100, "card", 0, None),
        Order(2, "bob", 100, "card", 0, None),
        Order(3, "ann", 200, "transfer", 0, None),
        Order(4, "ann", 300, "transfer", 0, 1.5),
    ),
)
EXPECTED = expected(WORLD)
DEADLINE = 5_000


def flawless() -> Found:
    """A run in which all was right; one transaction was rolled back."""
    happened = [(order.number, "placed") for order in WORLD.orders]
    happened += [(change.number, change.what) for change in sorted(EXPECTED.changes)]
    sent = [SentMessage(f"id {at}", number, what) for at, (number, what) in enumerate(happened)]
    orders = [
        Placed(
            order.number,
            order.customer,
            order.cents,
            order.method,
            DEADLINE,
            None,
            EXPECTED.states[order.number],
            DEADLINE + 3,
            order.number == 4,
        )
        for order in WORLD.orders
    ]
    return Found(
        orders=orders,
        accounts=EXPECTED.accounts,
        outbox={**{each.msg_id: True for each in sent}, "id of a dead one": False},
        sent=sent,
        written=EXPECTED.changes,
        moved=Counter({"ann": -100, SHOP: 100}),
        dead=[2],
        alarms=[Alarm(order.number, DEADLINE, DEADLINE + 1) for order in WORLD.orders],
        undecided=0,
    )


def failing(found: Found) -> list[str]:
    return [statement for statement, holds in verdict(found, WORLD, EXPECTED).items() if not holds]


def test_a_run_without_fault_passes() -> None:
    assert failing(flawless()) == []


def test_what_comes_twice_as_it_may_is_no_fault() -> None:
    found = flawless()
    again = Alarm(1, DEADLINE + 50, DEADLINE + 51)
    assert failing(replace(found, dead=[2, 2], alarms=[*found.alarms, again])) == []


FAULTS: dict[str, tuple[Callable[[Found], Found], str]] = {
    "an order is lost": (lambda found: replace(found, orders=found.orders[1:]), "final state"),
    "an order is twice there": (
        lambda found: replace(found, orders=[*found.orders, found.orders[0]]),
        "final state",
    ),
    "an order is left": (
        lambda found: replace(found, orders=[found.orders[0]._replace(state="placed"), *found.orders[1:]]),
        "final state",
    ),
    "a cent is lost": (
        lambda found: replace(found, accounts={**found.accounts, "ann": found.accounts["ann"] - 1}),
        "balances",
    ),
    "a message is lost": (lambda found: replace(found, sent=found.sent[:-1]), "transactions were committed"),
    "a message is sent twice": (
        lambda found: replace(found, sent=[*found.sent, found.sent[0]]),
        "transactions were committed",
    ),
    "a message of a transaction that was rolled back is sent": (
        lambda found: replace(found, sent=[*found.sent, SentMessage("id of a dead one", 4, "paid")]),
        "transactions were committed",
    ),
    "a transaction is left": (lambda found: replace(found, undecided=1), "left undecided"),
    "a change is made twice, each time with a message": (
        lambda found: replace(
            found, sent=[*found.sent, SentMessage("id", 1, "paid")], outbox={**found.outbox, "id": True}
        ),
        "each of another thing",
    ),
    "the books miss a change": (
        lambda found: replace(found, written=found.written - {Change(1, "paid", "ann", 100)}),
        "the books",
    ),
    "the books count a sum twice": (
        lambda found: replace(found, moved=Counter({"ann": -200, SHOP: 200})),
        "the books",
    ),
    "a dead letter is lost": (lambda found: replace(found, dead=[]), "dead letters"),
    "a customer with money is in the dead letters": (
        lambda found: replace(found, dead=[1, 2]),
        "dead letters",
    ),
    "an alarm is lost": (lambda found: replace(found, alarms=found.alarms[:-1]), "alarm"),
    "an alarm comes early": (
        lambda found: replace(found, alarms=[Alarm(1, DEADLINE, DEADLINE - 1), *found.alarms[1:]]),
        "alarm",
    ),
    "an order is cancelled early": (
        lambda found: replace(
            found,
            orders=[
                order._replace(changed_ms=DEADLINE - 1) if order.state == "cancelled" else order
                for order in found.orders
            ],
        ),
        "cancelled before",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str) -> None:
    change, noticed = FAULTS[fault]
    assert any(noticed in statement for statement in failing(change(flawless())))
