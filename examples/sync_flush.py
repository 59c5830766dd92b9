"""Send so that not even a power cut takes the message away.

With flush="sync" a send returns after the bytes are on the disk. Threads and processes that send at the
same time share one flush, so eight of them together are much faster than eight times one.
"""

from concurrent.futures import ThreadPoolExecutor

import mq

with mq.open("var/payments", flush="sync") as broker, mq.Producer(broker) as producer:
    broker.create_topic("payments")

    def pay(number: int) -> mq.SendResult:
        message = mq.Message("payments", f"payment {number}".encode(), keys=f"P{number}")
        return producer.send(message, shard_key=f"customer {number % 7}")

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(pay, range(200)))

on_disk = sum(result.status is mq.SendStatus.SEND_OK for result in results)
print(f"{on_disk} of {len(results)} payments are on the disk")
