"""mq for asyncio on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import mq
import mq.aio
from tests.support.cluster.shared import SharedCluster, unique_name

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(300)]

PATIENCE = 120.0


@pytest.fixture
def broker(cluster: SharedCluster) -> Iterator[mq.Broker]:
    with mq.open(f"rocketmq://{cluster.name_server}", namespace=unique_name("w"), timeout=30.0) as opened:
        opened.create_topic("orders", 2)
        yield opened


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_what_one_task_sends_another_consumes_in_order_of_its_key(broker: mq.Broker) -> None:
    async def main() -> None:
        async with (
            mq.aio.Producer(broker, timeout=PATIENCE) as producer,
            mq.aio.Consumer(broker, "billing") as consumer,
        ):
            consumer.subscribe("orders", "paid")

            async def produce() -> None:
                for number in range(100):
                    for tag in ("paid", "open"):
                        message = mq.Message("orders", b"%d" % number, tags=tag)
                        await producer.send(message, shard_key=number % 7)

            sending = asyncio.create_task(produce())
            seen = []
            async for message in consumer:
                assert message.tags == "paid"
                seen.append(int(message.body))
                if len(seen) == 100:
                    break
            await sending
        for key in range(7):
            assert [number for number in seen if number % 7 == key] == list(range(key, 100, 7))

    run(main)


def test_many_sends_at_once_are_stored_once_each(broker: mq.Broker) -> None:
    async def main() -> None:
        async with mq.aio.Producer(broker, timeout=PATIENCE) as producer:
            messages = [mq.Message("orders", b"%d" % number) for number in range(300)]
            results = await asyncio.gather(*map(producer.send, messages))
            batch = await producer.send_batch([mq.Message("orders", b"batch")] * 10)
        assert len({(result.queue, result.queue_offset) for result in results}) == 300
        assert len(batch.msg_ids) == 10

    run(main)


def test_a_listener_that_fails_is_called_again_and_ends_with_a_dead_letter(broker: mq.Broker) -> None:
    attempts: list[tuple[bytes, int]] = []
    over = asyncio.Event()

    async def listener(message: mq.MessageExt) -> None:
        attempts.append((message.body, message.reconsume_times))
        if message.body == b"bad":
            if message.reconsume_times == 1:
                over.set()
            raise mq.Retry(delay_level=1)

    async def main() -> None:
        async with mq.aio.Producer(broker, timeout=PATIENCE) as producer:
            for body in (b"good", b"bad"):
                await producer.send(mq.Message("orders", body))
        async with mq.aio.Consumer(broker, "billing") as consumer:
            consumer.subscribe("orders")
            running = asyncio.create_task(consumer.run(listener, max_reconsume_times=1))
            await over.wait()
            while not dead_letters(broker):  # noqa: ASYNC110 - what is waited for is nobody's event
                await asyncio.sleep(0.1)
            await consumer.close()
            await running
        assert sorted(attempts) == [(b"bad", 0), (b"bad", 1), (b"good", 0)]
        assert dead_letters(broker) == [b"bad"]

    run(main)


def dead_letters(broker: mq.Broker) -> list[bytes]:
    try:
        queues = broker.topic("%DLQ%billing").queues
    except mq.TopicNotFound:
        return []
    return [message.body for queue in queues for message in queue.read(0).messages]


def test_seek_pause_and_assign_work_as_without_asyncio(broker: mq.Broker) -> None:
    async def main() -> None:
        queue = broker.topic("orders").queues[0]
        async with mq.aio.Producer(broker, timeout=PATIENCE) as producer:
            for number in range(6):
                await producer.send(mq.Message("orders", b"%d" % number), queue=queue)
        async with mq.aio.Consumer(broker, "audit") as consumer:
            consumer.assign([queue])
            seen = [message.queue_offset async for message in first(consumer, 6)]
            assert seen == list(range(6))
            consumer.seek(queue, 4)
            assert [message.queue_offset async for message in first(consumer, 2)] == [4, 5]
            consumer.seek(queue, 0)
            consumer.pause([queue])
            assert await consumer.poll(0.2) == []
            consumer.resume([queue])
            assert (await consumer.poll(PATIENCE))[0].queue_offset == 0

    run(main)


async def first(consumer: mq.aio.Consumer, count: int) -> Any:
    """So many messages of a consumer, by polling."""
    while count:
        for message in await consumer.poll(PATIENCE, count_max=count):
            count -= 1
            yield message
