"""Send and bill each order once, although the program does everything twice."""

import mq

with mq.open("var/orders") as broker, mq.Producer(broker, dedup_window=600) as producer:
    for attempt in ("first", "second"):
        for number in (1001, 1002, 1003):
            order = mq.Message("orders", f"order {number}, {attempt} attempt".encode())
            producer.send(order, dedup_key=f"order-{number}")

    once = mq.Once(broker, "billing")
    billed: list[str] = []
    for _ in range(2):  # as after a crash that lost the offset
        for queue in broker.topic("orders").queues:
            for message in queue.read(0).messages:
                with once(message) as fresh:
                    if fresh:
                        billed.append(message.body.decode())

    print("billed:", ", ".join(sorted(billed)))
