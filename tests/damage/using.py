"""Every public thing that a broker, and what is bound to it, can be asked to do; and closing under it."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mq
from tests.damage.known import SIZES
from tests.support.appending import append_many, append_one

ID = "7F00000100002A9F0000000000000000"
BREATHLESS_COUNT = 200


def uses(broker: mq.LocalBroker, producer: mq.Producer) -> dict[str, Callable[[], Any]]:
    """By name. The topic "orders" has one queue and messages; every queue was used before."""
    message = mq.Message("orders", b"body", tags="paid", keys="key")
    slow = mq.Message("orders", b"body", wait=False)
    topic = broker.topic("orders")
    (queue,) = topic.queues
    name = queue.message_queue
    return {
        "send": lambda: producer.send(message),
        "send by key": lambda: producer.send(message, shard_key="a"),
        "send without waiting": lambda: producer.send(slow),
        "send_batch": lambda: producer.send_batch([message, message]),
        "send_async": lambda: producer.send_async(message).result(30),
        "send_oneway": lambda: producer.send_oneway(message),
        "topic.send": lambda: topic.send(b"body"),
        "topic.queues": lambda: topic.queues,
        "append": lambda: append_one(broker, "orders", 0, message, b"body", 0),
        "append again": lambda: append_one(broker, "orders", 0, message, b"body", 0, ID),
        "append_batch": lambda: append_many(broker, "orders", 0, [message]),
        "pull": lambda: broker.puller(name)(0, 32, 1 << 20, None, 0.0),
        "read": lambda: queue.read(0),
        "read by tag": lambda: queue.read(0, expression="paid"),
        "read at the end": lambda: queue.read(1 << 40),
        "read_arrow": lambda: queue.read_arrow(0),
        "min_offset": lambda: queue.min_offset,
        "max_offset": lambda: queue.max_offset,
        "offset_at": lambda: queue.offset_at(0),
        "topics": broker.topics,
        "topic": lambda: broker.topic("orders"),
        "create_topic": lambda: broker.create_topic("another"),
        "delete_topic": lambda: broker.delete_topic("another"),
        "settings": lambda: broker.settings("orders"),
        "publishable": lambda: broker.publishable("orders"),
        "readable": lambda: broker.readable("orders"),
        "query": lambda: broker.query("orders", "key"),
        "message": lambda: broker.message(ID),
        "flush": broker.flush,
        "expire": broker.expire,
    }


def opened(root: str, **options: Any) -> tuple[mq.LocalBroker, mq.Producer]:
    broker = mq.open(root, **{**SIZES, **options})
    broker.create_topic("orders", 1)
    producer = mq.Producer(broker)
    producer.send(mq.Message("orders", b"first", keys="key"))
    return broker, producer


def outcomes(all_uses: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """The name of the error of each use, "" for none."""
    found = {}
    for name, use in all_uses.items():
        try:
            use()
        except Exception as error:  # noqa: BLE001 - which one it is is the result
            found[name] = type(error).__name__
        else:
            found[name] = ""
    return found


def use_after_close(root: str) -> tuple[dict[str, str], dict[str, str]]:
    broker, producer = opened(root)
    all_uses = uses(broker, producer)
    before = outcomes(all_uses)
    broker.close()
    broker.close()
    after = outcomes(all_uses)
    producer.close()
    return before, after


def use_in_forked_child(root: str) -> tuple[dict[str, str], str, int, int]:
    """What a forked child is told, what its closing raised, how many messages there are before and after."""
    broker, producer = opened(root)
    all_uses = uses(broker, producer)
    outcomes(all_uses)
    # Last, since no topic changes from here on: what was looked up before is still in force in the child.
    outcomes({name: all_uses[name] for name in ("send", "append", "append_batch", "read", "read_arrow")})
    before = broker.max_offset(mq.MessageQueue("orders", broker.name, 0))
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            told = outcomes(all_uses)
            # A broker of another process must not close this process's descriptors.
            own = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]
            closing = outcomes({"close": broker.close, "again": broker.close})
            closing["own"] = outcomes({"own": lambda: [os.fstat(fd) for fd in own]})["own"]
            with mq.open(root) as other:
                other.topic("orders").send(b"from the child")
            os.write(sending, repr((told, closing)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(sending)
    text = b""
    while piece := os.read(receiving, 1 << 16):
        text += piece
    os.close(receiving)
    _, status = os.waitpid(pid, 0)
    if status:
        raise AssertionError(f"the forked child ended with status {status}")
    told, closing = eval(text)
    producer.send(mq.Message("orders", b"parent"))
    after = broker.max_offset(mq.MessageQueue("orders", broker.name, 0))
    broker.close()
    return told, "".join(closing.values()), before, after


def wait_at_end(queue: mq.Queue) -> None:
    queue.read(queue.max_offset, wait=3600.0)


def close_while_used(root: str, kinds: list[str], rounds: int) -> dict[str, int]:
    """Close under the hands of three threads of each kind. The errors that they ended with."""
    sys.setswitchinterval(1e-6)
    ended: dict[str, int] = {}
    for round_ in range(rounds):
        broker, producer = opened(str(Path(root) / str(round_ % 3)))
        queue = broker.topic("orders").queues[0]
        all_uses = uses(broker, producer)
        all_uses["wait"] = partial(wait_at_end, queue)
        busy = threading.Barrier(3 * len(kinds) + 1)

        def use(
            name: str, all_uses: dict[str, Callable[[], Any]] = all_uses, busy: threading.Barrier = busy
        ) -> None:
            busy.wait()
            for count in itertools.count():
                # The slower the machine, the later comes the close: without a pause that grows there would be
                # so many messages until then that closing, which indexes them, takes longer and longer.
                if count > BREATHLESS_COUNT:
                    time.sleep((count - BREATHLESS_COUNT) * 1e-5)
                try:
                    all_uses[name]()
                except mq.MessageNotFound:
                    continue
                except BaseException as error:  # noqa: BLE001 - which one it is is the result
                    text = (
                        type(error).__name__ if isinstance(error, mq.BrokerClosed) else f"{name}: {error!r}"
                    )
                    ended[text] = ended.get(text, 0) + 1
                    return

        threads = [
            threading.Thread(target=use, args=(name,), daemon=True) for name in kinds for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        busy.wait()
        for _ in range(round_ % 7):
            all_uses["append"]()
        broker.close()
        for thread in threads:
            thread.join(30)
            if thread.is_alive():
                raise AssertionError(f"round {round_}: a thread goes on 30 s after the close")
        producer.close()
    return ended


def send_from_threads(root: str, threads: int, each: int) -> list[tuple[int, str]]:
    """(queue offset, message id) of all that `threads` threads sent to one queue."""
    broker, producer = opened(root)
    results: list[tuple[int, str]] = []

    def send(number: int) -> None:
        for at in range(each):
            body = b"%d %d" % (number, at)
            result = producer.send(mq.Message("orders", body, keys=f"{number}-{at}"))
            results.append((result.queue_offset, result.msg_id))

    running = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    producer.close()
    broker.close()
    return results
