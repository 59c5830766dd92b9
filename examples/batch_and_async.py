"""Two ways to send faster than one by one: a batch, and futures.

A batch goes to one queue and is stored completely or not at all. send_async passes the message to a thread
and returns at once; the messages of one calling thread keep their order in a queue.
"""

import mq

with mq.open("var/readings") as broker, mq.Producer(broker) as producer:
    topic = broker.create_topic("readings")

    batch = [mq.Message("readings", f"{n} °C".encode(), tags="celsius") for n in range(1000)]
    result = producer.send_batch(batch)
    print(f"{len(result.msg_ids)} messages in one batch, in queue {result.queue.queue_id}")

    futures = [
        producer.send_async(mq.Message("readings", f"{n} K".encode(), tags="kelvin"), shard_key="sensor 7")
        for n in range(1000)
    ]
    offsets = [future.result().queue_offset for future in futures]
    print(f"{len(offsets)} messages by futures, in the order of the calls: {offsets == sorted(offsets)}")
