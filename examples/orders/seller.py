"""A seller accepts orders: it commits a row of the database and a message together."""

import signal
from multiprocessing.connection import Connection

import mq
from examples.orders.plan import SELLER_COUNT, KillPoint, Plan, dies_at
from examples.orders.shop import Shop

__all__ = ["sell"]


def sell(plan: Plan, number: int, kill: KillPoint | None, parent: Connection) -> None:
    """Accept the orders of one seller that are not in the database yet. Then answer checks for dead sellers,
    until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        plan.open_broker() as broker,
        Shop(plan.shop, dies_at(kill)) as shop,
        Shop(plan.shop) as asked,
        mq.TransactionProducer(broker, "sellers", asked.check) as producer,
    ):
        known = shop.numbers()
        for order in plan.world().orders[number::SELLER_COUNT]:
            if parent.poll():
                return
            if order.number not in known:
                shop.place(producer, order, plan.time_to_pay_ms)
        parent.poll(None)
