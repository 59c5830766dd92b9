"""Read a queue as Arrow record batches: columns filled in C, no Python object per message (needs pyarrow)."""

import mq

with mq.open("var/clicks") as broker, mq.Producer(broker) as producer:
    queue = broker.create_topic("clicks", queue_count=1).queues[0]
    producer.send_batch([mq.Message("clicks", b"x" * (n % 100 + 1), tags="web") for n in range(5000)])

    queue_offset = queue.min_offset
    while queue_offset < queue.max_offset:
        batch = queue.read_arrow(queue_offset, count_max=2000, byte_max=1 << 20)
        print(batch.num_rows, "rows with the columns", ", ".join(batch.schema.names))
        queue_offset += batch.num_rows
