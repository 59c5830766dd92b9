"""Send and receive in ten lines."""

import threading

import mq

received = threading.Event()
with mq.open("var/hello") as broker, mq.PushConsumer(broker, "greeters") as consumer:

    @consumer.subscribe("greetings")
    def greet(message: mq.MessageExt) -> None:
        print("received", message.body.decode(), message.tags, message.keys)
        received.set()

    consumer.start()
    broker.create_topic("greetings").send(b"hello, world", tags="plain", keys="first")
    received.wait()
