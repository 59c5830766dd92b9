"""One store, two languages: a Java producer sends orders, and this program bills those that are paid.

    python examples/java_and_python/billing.py

serves the directory var/shop at 127.0.0.1 and consumes from it, until Ctrl-C. In another shell, with a JDK
and Maven:

    cd examples/java_and_python
    mvn dependency:copy-dependencies -DoutputDirectory=jars        RocketMQ's Java client, once
    java -cp 'jars/*' SendOrders.java 127.0.0.1:9876

The Java program finds a name server and a broker, and uses RocketMQ's client as on a cluster. No message goes
over the network to the Python consumer: it reads the directory.
"""

import argparse
import signal

import mq
import mq.remoting


def bill(message: mq.MessageExt) -> None:
    # A message may come twice, as from a cluster. The order's number, its key, tells.
    print(f"billed {message.keys[0]}: {message.body.decode()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a store, and bill the paid orders that Java sends.")
    parser.add_argument("--port", type=int, default=10911, help="of the broker (10911); 0 is a free one")
    parser.add_argument(
        "--name-server-port", type=int, default=9876, help="of the name server (9876); 0 is a free one"
    )
    arguments = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with (
        mq.open("var/shop") as store,
        mq.PushConsumer(store, "billing") as consumer,
        mq.remoting.serve(store, port=arguments.port, namesrv_port=arguments.name_server_port) as server,
    ):
        store.create_topic("orders", 2)
        consumer.subscribe("orders", "paid", listener=bill)
        consumer.start()
        print(f"waiting for orders: the name server is {server.name_server}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
