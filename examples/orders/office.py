"""An office does all the rest, as five consumer groups that the offices share:

    till        orders by card: charges the card; again later where that fails, at last a dead letter
    reception   all orders: has the bank make the transfer on its day, and sets the alarm for the deadline
    clerk       what is due, one after the other for each order: a transfer is taken, or sent back; at the
                deadline the order is cancelled, unless its card is still tried: then he looks again later
    collector   dead letters of the till: the order is unpayable
    books       changes: writes them down, many at a time

A transactional message cannot be delayed as well. So it is not the seller who sets the alarm but who receives
the order; that is done at least once, as all that a consumer does, and an alarm too many finds nothing to do.
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
from examples.orders.plan import RETRY_LEVEL, Doom, Plan, fate
from examples.orders.shop import CHANGES, ORDERS, NotEnough, Shop, now_ms

__all__ = ["DEAD_LETTERS", "DUE", "GROUPS", "number_of", "work"]

DUE = "due"
DEAD_LETTERS = "%DLQ%till"
GROUPS = {"till": ORDERS, "reception": ORDERS, "clerk": DUE, "collector": DEAD_LETTERS, "books": CHANGES}

LOOK_AGAIN = 10  # minutes later
THREADS = 4


def work(plan: Plan, _number: int, doom: Doom | None, parent: Connection) -> None:
    """Be an office until the parent says that it is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        plan.open_broker() as broker,
        Shop(plan.shop, fate(doom)) as shop,
        Shop(plan.shop) as asked,  # Who is asked does not wait for the turn of his own threads.
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
        # Who pays in time has paid when the alarm is looked at, however late that is: both go to one queue in
        # the order in which they are due. That is why each is sent with a delay, which counts from when it is
        # stored, and a longer one than the one before: who is halted here has neither due by then.
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
    """Of the order that a message of any topic is about."""
    return int(message.keys[0])
