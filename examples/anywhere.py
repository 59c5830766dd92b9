"""One program: its tests run on a directory, production runs on a cluster.

    python examples/anywhere.py                                  a directory, var/anywhere
    python examples/anywhere.py rocketmq://10.0.0.5:9876         an Apache RocketMQ cluster

The code besides main() does not depend on the target. A customer's orders are billed one after the other,
since the customer is their shard key. The payment service fails at first, so one bill is retried.
"""

import argparse
import threading
from collections import Counter

import mq

CUSTOMERS = ("ann", "bob", "cid")


class Billing:
    """Bills each order once, and the orders of a customer in order."""

    def __init__(self, order_count: int) -> None:
        self.bills: dict[str, list[int]] = {}
        self.is_done = threading.Event()
        self._attempts = Counter[str]()
        self._left = order_count
        self._lock = threading.Lock()

    def bill(self, message: mq.MessageExt) -> None:
        customer, number = message.body.decode().split()
        with self._lock:
            self._attempts[message.msg_id] += 1
            if number == "3" and self._attempts[message.msg_id] == 1:
                raise mq.Retry(suspend_ms=100)  # The payment service is down; the customer's queue waits.
            bills = self.bills.setdefault(customer, [])
            if int(number) in bills:
                return  # A message may come twice: a killed process had not committed it.
            bills.append(int(number))
            self._left -= 1
            if not self._left:
                self.is_done.set()


def sell(broker: mq.Broker, count: int) -> None:
    with mq.Producer(broker, timeout=60.0) as producer:
        for number in range(1, count + 1):
            for customer in CUSTOMERS:
                body = f"{customer} {number}".encode()
                producer.send(mq.Message("orders", body, keys=customer), shard_key=customer)


def run(broker: mq.Broker, count: int = 5) -> dict[str, list[int]]:
    """Sell `count` orders to each customer and bill them; returns the bills. Tests call this function."""
    broker.create_topic("orders", 2)
    billing = Billing(count * len(CUSTOMERS))
    with mq.PushConsumer(broker, "billing", ordered=True) as consumer:
        consumer.subscribe("orders", listener=billing.bill)
        consumer.start()
        sell(broker, count)
        if not billing.is_done.wait(120):
            raise SystemExit(f"only these were billed: {billing.bills}")
    return billing.bills


def main() -> None:
    parser = argparse.ArgumentParser(description="Sell and bill, on a directory or on a cluster.")
    parser.add_argument(
        "target", nargs="?", default="var/anywhere", help="a directory, or rocketmq://HOST:PORT"
    )
    parser.add_argument("--namespace", help="of the cluster, before the names of topics and groups")
    parser.add_argument("--timeout", type=float, help="of the cluster, seconds for each request")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    target = options.pop("target")
    with mq.open(target, **options) as broker:
        for customer, numbers in sorted(run(broker).items()):
            print(f"{customer} is billed for orders {', '.join(map(str, numbers))}")


if __name__ == "__main__":
    main()
