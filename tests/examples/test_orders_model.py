"""The world of orders is the same for the same seed, has every kind of order, and its money adds up."""

from collections import Counter

import pytest

from examples.orders.model import (
    FINAL_STATES,
    SHOP,
    TRIES_MAX,
    Change,
    Order,
    World,
    expected,
    generate,
    movements,
)


def test_a_seed_is_one_world() -> None:
    assert generate(4, 500) == generate(4, 500)
    assert generate(4, 500) != generate(5, 500)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_order_comes_up(seed: int) -> None:
    world = generate(seed, 1000)
    what = expected(world)
    assert Counter(what.states.values()).keys() == set(FINAL_STATES)
    assert {change.what for change in what.changes} == {*FINAL_STATES, "refunded"}
    assert {order.unreachable_times for order in world.orders} == set(range(TRIES_MAX))
    # What happens near the deadline would depend on the clock.
    assert not any(0.8 < order.transfer_at < 1.2 for order in world.orders if order.transfer_at is not None)


@pytest.mark.parametrize("seed", range(5))
def test_no_money_is_created_and_no_account_is_negative(seed: int) -> None:
    world = generate(seed, 1000)
    what = expected(world)
    assert sum(what.accounts.values()) == sum(world.accounts.values())
    assert min(what.accounts.values()) >= 0
    paid = [order.cents for order in world.orders if what.states[order.number] == "paid"]
    assert what.accounts[SHOP] == sum(paid)


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_of_an_order_does_not_depend_on_the_others(seed: int) -> None:
    world = generate(seed, 1000)
    backwards = World(world.accounts, world.orders[::-1])
    assert expected(backwards) == expected(world)


@pytest.mark.parametrize(
    ("cents", "method", "transfer_at", "happens"),
    [
        (500, "card", None, ["paid"]),
        (501, "card", None, ["unpayable"]),
        (500, "transfer", 0.8, ["paid"]),
        (500, "transfer", 1.2, ["cancelled", "refunded"]),
        (500, "transfer", None, ["cancelled"]),
    ],
)
def test_what_comes_of_one_order(
    cents: int, method: str, transfer_at: float | None, happens: list[str]
) -> None:
    world = World({"ann": 500, SHOP: 7}, (Order(1, "ann", cents, method, 0, transfer_at),))
    what = expected(world)
    assert what.states == {1: happens[0]}
    assert what.changes == {Change(1, each, "ann", cents) for each in happens}
    assert what.accounts == ({"ann": 0, SHOP: 507} if happens == ["paid"] else world.accounts)


def test_what_is_refunded_has_been_there() -> None:
    assert list(movements(Change(1, "refunded", "ann", 5))) == [("ann", SHOP, 5), (SHOP, "ann", 5)]
    assert list(movements(Change(1, "cancelled", "ann", 5))) == []
