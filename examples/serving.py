"""One store, two ways to use it: a Python consumer on the directory, and a producer through a name server.

The producer is mq's own client here. A program in Java, Go or C++ does the same with RocketMQ's client, as
docs/serving.md shows.
"""

import threading

import mq
import mq.remoting

billed: list[str] = []
done = threading.Event()

with (
    mq.open("var/shop") as store,
    mq.PushConsumer(store, "billing") as consumer,
    mq.remoting.serve(store, port=0, namesrv_port=0) as server,  # 0: a free port
):

    @consumer.subscribe("orders", "paid")
    def bill(message: mq.MessageExt) -> None:
        billed.append(message.body.decode())
        if len(billed) == 3:
            done.set()

    consumer.start()
    store.create_topic("orders", 2)

    address = "rocketmq://" + server.name_server
    with mq.open(address, timeout=30.0) as anywhere, mq.Producer(anywhere, timeout=30.0) as producer:
        for number in range(3):
            producer.send(mq.Message("orders", f"order {number}".encode(), tags="paid"))
    done.wait()

print("billed, though sent by another way:", ", ".join(sorted(billed)))
