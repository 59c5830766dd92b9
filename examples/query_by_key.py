"""Find messages by key and by id. A query finds every message that was sent before it."""

import mq

with mq.open("var/orders") as broker:
    topic = broker.create_topic("orders")
    for state in ("ordered", "paid", "shipped"):
        last = topic.send(state.encode(), tags=state, keys=("order-1001", "customer-7"))

    print("order-1001, newest first:")
    for message in broker.query("orders", "order-1001"):
        print(" ", message.body.decode(), message.msg_id)

    print("by its id:", broker.message(last.msg_id).body.decode())
    try:
        broker.message("0" * 32)
    except mq.MessageNotFound as error:
        print("not there:", error)
