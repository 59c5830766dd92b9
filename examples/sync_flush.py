"""Send messages that survive a power cut.

With flush="sync" a send returns when the bytes are on disk. Threads and processes that send at the same time
share one flush, so the throughput of eight is much more than that of one.
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
