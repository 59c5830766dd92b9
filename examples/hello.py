"""Send and receive in ten lines."""

import mq

with mq.open("var/hello") as broker:
    topic = broker.create_topic("greetings")
    sent = topic.send(b"hello, world", tags="plain", keys="first")
    print("sent", sent.msg_id, "as", sent.queue_offset, "of queue", sent.queue.queue_id)

    for queue in topic.queues:
        for message in queue.read(queue.min_offset).messages:
            print("read", message.body.decode(), message.tags, message.keys)
