"""A seller takes in orders: a row of the database and a message, together."""

import signal
from multiprocessing.connection import Connection

import mq
from examples.orders.plan import SELLER_COUNT, Doom, Plan, fate
from examples.orders.shop import Shop

__all__ = ["sell"]


def sell(plan: Plan, number: int, doom: Doom | None, parent: Connection) -> None:
    """Take in those orders of one seller that are not in the database yet. Then be there to be asked about
    those of a seller who died, until the parent says that it is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        plan.open_broker() as broker,
        Shop(plan.shop, fate(doom)) as shop,
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
