"""An office processes orders, as five consumer groups that the offices share:

    till        orders by card: charges the card; retries later if that fails; in the end a dead letter
    reception   all orders: schedules the bank's transfer, and sets the alarm for the deadline
    clerk       due messages, in sequence for each order: accepts or returns a transfer; at the deadline
                it cancels the order, unless the card is still being retried: then it checks again later
    collector   dead letters of the till: the order is unpayable
    books       changes: records them, many at a time

A transactional message cannot be delayed as well. So the reception sets the alarm, not the seller. A consumer
works at least once, so there may be two alarms; the second one finds nothing to do.
"""

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import mq
from examples.orders.books import Books
from examples.orders.model import TRIES_MAX, Change, Order
from examples.orders.plan import RETRY_LEVEL, KillPoint, Plan, dies_at
from examples.orders.shop import CHANGES, ORDERS, NotEnough, Shop, now_ms

__all__ = ["DEAD_LETTERS", "DUE", "GROUPS", "number_of", "work"]

DUE = "due"
DEAD_LETTERS = "%DLQ%till"
GROUPS = {"till": ORDERS, "reception": ORDERS, "clerk": DUE, "collector": DEAD_LETTERS, "books": CHANGES}

LOOK_AGAIN = 10  # minutes later
THREADS = 4


def work(plan: Plan, _number: int, kill: KillPoint | None, parent: Connection) -> None:
    """Run an office until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        plan.open_broker() as broker,
        Shop(plan.shop, dies_at(kill)) as shop,
        Shop(plan.shop) as asked,  # A separate connection: checks do not wait for the listeners' one.
        Books(plan.books) as books,
        mq.TransactionProducer(broker, "offices", asked.check) as changes,
        mq.Producer(broker, "offices") as alarms,
        ExitStack() as consumers,
    ):
        office = Office(plan, shop, books, changes, alarms)

        def begin(group: str, listener: Callable[[Any], None], tags: str = "*", **options: Any) -> None:
            batch_size = options.pop("batch_size", None)
            consumer = mq.PushConsumer(broker, group, threads=THREADS, **options)
            consumer.subscribe(GROUPS[group], tags, batch_size=batch_size, listener=listener)
            consumer.start()
            consumers.enter_context(consumer)

        begin("till", office.charge, "card", max_reconsume_times=TRIES_MAX - 1)
        begin("reception", office.receive)
        begin("clerk", office.look_at, ordered=True, max_reconsume_times=-1)
        begin("collector", office.give_up)
        begin("books", office.write_down, batch_size=64)
        parent.poll(None)


class Office:
    """The listeners."""

    def __init__(
        self, plan: Plan, shop: Shop, books: Books, changes: mq.TransactionProducer, alarms: mq.Producer
    ) -> None:
        self._plan = plan
        self._shop = shop
        self._books = books
        self._changes = changes
        self._alarms = alarms

    def charge(self, message: mq.MessageExt) -> None:
        order = Order(*json.loads(message.body))
        if message.reconsume_times < order.unreachable_times:
            raise mq.Retry(delay_level=RETRY_LEVEL)
        try:
            if not self._shop.happen(self._changes, order.number, "paid"):
                self._shop.came_again("till")
        except NotEnough:
            raise mq.Retry(delay_level=RETRY_LEVEL) from None

    def receive(self, message: mq.MessageExt) -> None:
        order = self._shop.order(number_of(message))
        # A payment in time is handled before the alarm, however late both are: they go to one queue in the
        # order of their due times. So each has a delay, which counts from its store time, and the alarm's is
        # longer: even if the process is halted here, the payment is due first.
        due = [("alarm", order.deadline_ms)]
        if order.transfer_ms is not None:
            due.append(("transfer", order.transfer_ms))
        delay_ms = 0
        for what, due_ms in sorted(due, key=lambda each: each[1]):
            delay_ms = max(due_ms - now_ms(), delay_ms + 1)
            self._send(order.number, what, delay_ms)

    def look_at(self, message: mq.MessageExt) -> None:
        order = self._shop.order(number_of(message))
        if message.tags == "transfer":
            what = "paid" if order.state == "placed" else "refunded"
            if not self._shop.happen(self._changes, order.number, what):
                self._shop.came_again("clerk")
        elif order.state == "placed" and order.method == "card":
            self._send(order.number, "alarm", self._plan.ms(LOOK_AGAIN))
        else:
            self._shop.happen(self._changes, order.number, "cancelled")

    def give_up(self, message: mq.MessageExt) -> None:
        if not self._shop.happen(self._changes, number_of(message), "unpayable"):
            self._shop.came_again("collector")

    def write_down(self, messages: list[mq.MessageExt]) -> None:
        known = self._books.enter([Change(*json.loads(message.body)) for message in messages])
        if known:
            self._shop.came_again("books", known)

    def _send(self, number: int, what: str, delay_ms: int) -> None:
        body = str(now_ms() + delay_ms).encode()  # when it is due, or a little before
        message = mq.Message(DUE, body, tags=what, keys=str(number), delay_ms=delay_ms)
        self._alarms.send(message, shard_key=number)


def number_of(message: mq.MessageExt) -> int:
    """The number of the order that a message is about."""
    return int(message.keys[0])
