"""Send a payment reminder at a given time, unless the customer has paid by then."""

import threading
import time

import mq

reminded = threading.Event()
with mq.open("var/delayed") as broker, mq.PushConsumer(broker, "reminders") as consumer:
    orders = broker.create_topic("orders")

    @consumer.subscribe("orders")
    def remind(message: mq.MessageExt) -> None:
        late = time.time() - (message.deliver_at_ms or 0) / 1000
        print(message.body.decode(), "never early:", late >= 0)
        reminded.set()

    consumer.start()
    now_ms = int(time.time() * 1000)
    paid = orders.send(b"order 1001 is not paid", deliver_at_ms=now_ms + 3_600_000)
    orders.send(b"order 1002 is not paid", deliver_at_ms=now_ms + 1000)

    # The payment of order 1001 arrives: its reminder is recalled, and is then never delivered.
    assert paid.recall_handle is not None
    broker.recall(paid.recall_handle)
    reminded.wait()
    try:
        broker.recall(paid.recall_handle)
        print("order 1001 was recalled")
    except mq.NotPermitted:
        print("order 1001 was reminded before")
